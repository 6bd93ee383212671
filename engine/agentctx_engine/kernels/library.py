"""Kernels: ``kernels.c`` compiled for this machine, kept in the user's cache directory, called through ctypes.

The library's name is a hash of the source, the compiler's command and the processor's features, so that a changed one of
them compiles anew and a home directory shared by several machines holds one for each. It is written beside its
place and renamed, so that processes that start together don't see half of it. ``AGENTCTX_ENGINE_KERNELS=torch`` says to
do without.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
MOST_ROWS = 8  # of ``coded_product``
LANES = 16  # floats of a vector
_LARGEST_HEAD = 256  # of attention
_SWITCH = "AGENTCTX_ENGINE_KERNELS"
_FLAGS = ("-std=gnu11", "-O2", "-march=native", "-shared", "-fPIC", "-w")
_SECONDS = 600.0  # for the compiler


class Kernels:
    """The loaded library. Tensors must be contiguous float32 on the CPU unless it says otherwise."""

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` if it can't be loaded."""
        library = ctypes.CDLL(str(path))
        pointer, size, threads = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
        self._product = library.coded_product
        self._product.restype = None
        self._product.argtypes = [pointer] * 3 + [size] * 4 + [threads]
        self._norm = library.rms_norm
        self._norm.restype = None
        self._norm.argtypes = [pointer] * 3 + [size] * 2 + [ctypes.c_float, threads]
        self._silu = library.gate_silu
        self._silu.restype = None
        self._silu.argtypes = [pointer] * 2 + [size] * 2 + [threads]
        self._rotate = library.rotate_and_write
        self._rotate.restype = None
        self._rotate.argtypes = [pointer] * 4 + [size] * 5 + [threads]
        self._attention = library.paged_attention
        self._attention.restype = None
        self._attention.argtypes = [pointer] * 9 + [size] * 7 + [ctypes.c_float, threads]
        self._chunk = library.chunk_attention
        self._chunk.restype = None
        self._chunk.argtypes = [pointer] * 4 + [size] * 10 + [ctypes.c_float, threads]
        # Whether ``chunk_attention`` is the faster one here; it is right everywhere.
        self.prefers_chunk_attention = bool(library.vectors_are_registers())

    def coded_product(self, x: Tensor, weight: Tensor, outputs: int, group: int) -> Tensor:
        """``x`` [1, 2, 4 or 8 rows, inputs] times a ``CodedWeight``'s data → [rows, outputs]."""
        rows, inputs = x.shape
        y = x.new_empty((rows, outputs))
        self._product(
            weight.data_ptr(), x.data_ptr(), y.data_ptr(), rows, outputs, inputs, group, torch.get_num_threads()
        )  # fmt: skip
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x`` [rows, size] over its root mean square, times ``weight``."""
        y = torch.empty_like(x)
        rows, size = x.shape
        self._norm(
            x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, size, eps, torch.get_num_threads()
        )  # fmt: skip
        return y

    def gate_silu(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * size] → silu of a row's first half times its second; ``size`` is a multiple of 16."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty((rows, size))
        self._silu(gate_up.data_ptr(), y.data_ptr(), rows, size, torch.get_num_threads())
        return y

    def rotate_and_write(self, qkv: Tensor, turn: Tensor, cache: Tensor, slots: Tensor, heads: int) -> None:
        """Turn queries and keys, the first ``heads`` heads of ``qkv`` [rows, heads + kv_heads, head_dim], in place by ``turn``
        [rows, 1, head_dim // 2] complex64; store keys and values at ``slots`` [rows]."""
        _, blocks, block_size, kv_heads, head_dim = cache.shape
        self._rotate(
            qkv.data_ptr(), turn.data_ptr(), cache.data_ptr(), slots.data_ptr(), len(slots), heads, kv_heads,
            head_dim, blocks * block_size, torch.get_num_threads(),
        )  # fmt: skip

    def paged_attention(
        self,
        queries: Tensor,
        cache: Tensor,
        out: Tensor,
        *,
        rows: Tensor,
        tables: Tensor,
        starts: Tensor,
        first: Tensor,
        end: Tensor,
        scratch: Tensor,
        scale: float,
    ) -> None:
        """Single tokens over their sequences' keys, into ``out`` [rows, heads * head_dim].

        queries: [rows, heads, head_dim]; cache: [2, num_blocks, block_size, kv_heads, head_dim]; head_dim a
            multiple of 16, at most 256.
        rows: [tokens] int64, each token's row. tables: int32, the tokens' block tables one after the other; token
            ``t``'s begins at ``starts[t]``; it reads positions ``first[t]`` … ``end[t] - 1`` (int64).
        scratch: [tokens * kv_heads, room for one KV head's weights].
        """
        _, blocks, block_size, kv_heads, head_dim = cache.shape
        self._attention(
            queries.data_ptr(), cache.data_ptr(), out.data_ptr(), scratch.data_ptr(), rows.data_ptr(),
            tables.data_ptr(), starts.data_ptr(), first.data_ptr(), end.data_ptr(), len(rows),
            blocks * block_size, block_size, kv_heads, queries.shape[1] // kv_heads, head_dim,
            scratch.shape[1], scale, torch.get_num_threads(),
        )  # fmt: skip

    def chunk_attention(
        self,
        queries: Tensor,
        cache: Tensor,
        out: Tensor,
        *,
        table: Tensor,
        start: int,
        window: int | None,
        scale: float,
    ) -> None:
        """Neighbouring tokens of one sequence, from position ``start`` on, over their keys, into ``out``.

        queries: [tokens, heads, head_dim] and out: [tokens, heads * head_dim], rows contiguous in themselves; cache as in
            ``paged_attention``.
        table: the sequence's block table, int32. window: how many positions a token sees up to its own.
        """
        _, blocks, block_size, kv_heads, head_dim = cache.shape
        seen = start + len(queries) if window is None else min(window, start + len(queries))
        self._chunk(
            queries.data_ptr(), cache.data_ptr(), out.data_ptr(), table.data_ptr(), len(queries), start, seen,
            queries.stride(0), out.stride(0), blocks * block_size, block_size, kv_heads,
            queries.shape[1] // kv_heads, head_dim, scale, torch.get_num_threads(),
        )  # fmt: skip


def attends(head_dim: int) -> bool:
    """Whether ``paged_attention`` and ``chunk_attention`` do heads of this size."""
    return head_dim % LANES == 0 and head_dim <= _LARGEST_HEAD


def load_kernels() -> Kernels | None:
    """The kernels, compiled if need be; ``None`` without a working compiler or when the environment says so."""
    return None if os.environ.get(_SWITCH) == "torch" else _load()


@functools.cache
def _load() -> Kernels | None:
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or platform.system() == "Windows":
        return None
    for flags in ((*_FLAGS, "-fopenmp"), _FLAGS):
        try:
            return Kernels(_compiled(compiler, flags))
        except (OSError, subprocess.SubprocessError, AttributeError):
            continue
    return None


def _compiled(compiler: str, flags: tuple[str, ...]) -> Path:
    source = SOURCE.read_bytes()
    identity = "\0".join((compiler, *flags, platform.machine(), _processor())).encode()
    folder = _cache_folder()
    target = folder / f"engine-{hashlib.sha256(source + identity).hexdigest()[:24]}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as build:
        made = Path(build, target.name)
        command = [compiler, *flags, "-o", str(made), str(SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        os.replace(made, target)
    return target


def _cache_folder() -> Path:
    """A folder of the user's own: a library that others may write is not to be loaded. Raises ``OSError``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "agentctx")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to or may be written by others")
    return folder


def _processor() -> str:
    """What ``-march=native`` looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
