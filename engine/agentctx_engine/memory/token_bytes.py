"""Token ids as packed int32 bytes: equal runs then compare at memory speed, and a short run is a dictionary key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import TokenIds

TOKEN_BYTES = 4


def pack(token_ids: TokenIds) -> bytes:
    """Token ids, shape [tokens], as native int32 bytes. An id outside int32 raises ``OverflowError`` or ``ValueError``."""
    if isinstance(token_ids, np.ndarray):
        if token_ids.ndim != 1:
            raise ValueError(f"token ids must have one dimension, not {token_ids.ndim}")
        if token_ids.dtype != np.int32:
            packed = token_ids.astype(np.int32)
            if not np.array_equal(packed, token_ids):
                raise ValueError(f"token ids of type {token_ids.dtype} do not fit int32")
            return packed.tobytes()
        return token_ids.tobytes()
    return np.array(token_ids, dtype=np.int32).tobytes()


def unpack(data: bytes) -> npt.NDArray[np.int32]:
    """The token ids of packed bytes, shape [tokens], read-only."""
    return np.frombuffer(data, dtype=np.int32)


def common_tokens(left: bytes, right: bytes, left_start: int = 0) -> int:
    """Tokens that ``right`` shares with ``left`` from byte ``left_start`` on, counted from the front of both."""
    limit = min((len(left) - left_start) // TOKEN_BYTES, len(right) // TOKEN_BYTES)
    done, step = 0, 256
    # Doubling chunks: an early difference costs little, a late one still compares at memory speed.
    while done < limit:
        count = min(step, limit - done)
        a = np.frombuffer(left, np.int32, count, left_start + done * TOKEN_BYTES)
        b = np.frombuffer(right, np.int32, count, done * TOKEN_BYTES)
        different = a != b
        if different.any():
            return done + int(different.argmax())
        done += count
        step *= 2
    return limit
