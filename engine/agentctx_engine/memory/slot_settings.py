"""What decides a llama-server's reuse: its switches, and what kind of memory its model has.

Source: llama.cpp b11434 and b11549 (``tools/server``, ``common/arg.cpp``), checked against a live server in ``tests/real``.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """How a model remembers. The byte counts size entries of the host cache; 0 means unknown, and the host cache never fills.

    ``window``: width of the sliding-window layers in tokens, 0 for none. ``recurrent``: some layers keep one running
    state (Mamba, short convolutions) that can't be rolled back. ``attention``: some layers keep every token.
    """

    window: int = 0
    recurrent: bool = False
    attention: bool = True
    bytes_per_token: int = 0  # in the layers that keep every token, with 12 bytes of position and sequence
    overhead_bytes: int = 0  # of those layers' part of a saved state, whatever it holds
    window_bytes_per_token: int = 0  # in the sliding-window layers
    checkpoint_bytes: int = (
        0  # of a context checkpoint besides its window's tokens: the running state, headers
    )

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window is {self.window}; it must be 0 (none) or a number of tokens")
        if self.window and self.recurrent:
            raise ValueError("a model with both sliding windows and recurrent layers is not covered")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """llama-server's switches with its defaults; the comment names the flag.

    ``cache_ram_mib``: 0 turns the host cache off, −1 takes its limit of bytes away.
    """

    n_slots: int = 4  # -np (-1: four)
    kv_unified: bool = True  # -kvu: one pool of cells for all slots; else each has n_ctx / n_slots
    n_ctx: int = 4096  # -c
    n_batch: int = 2048  # -b
    n_ubatch: int = 512  # -ub
    cache_prompt: bool = True  # --cache-prompt
    cache_reuse: int = 0  # --cache-reuse
    slot_prompt_similarity: float = 0.1  # -sps
    cache_ram_mib: int = 8192  # --cache-ram
    cache_idle_slots: bool = True  # --cache-idle-slots
    ctx_checkpoints: int = 32  # -ctxcp
    checkpoint_min_step: int = 8192  # -cms
    swa_full: bool = False  # --swa-full

    def __post_init__(self) -> None:
        for name in ("n_slots", "n_ctx", "n_batch", "n_ubatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def slot_ctx(self) -> int:
        """Tokens that one slot may hold: the server rounds contexts up to whole 256s."""
        total = _whole_256(self.n_ctx)
        return total if self.kv_unified else _whole_256(total // self.n_slots)

    @property
    def total_ctx(self) -> int:
        """Tokens that all slots may hold together."""
        return self.slot_ctx if self.kv_unified else self.slot_ctx * self.n_slots

    @property
    def host_cache(self) -> bool:
        """Whether contents that leave a slot are kept in host memory."""
        return self.cache_ram_mib != 0

    @property
    def saves_idle_slots(self) -> bool:
        """Whether each new request saves the idle slots to the host cache (and, with unified KV, clears them)."""
        return self.cache_idle_slots and self.host_cache

    def window_of(self, model: ModelMemory) -> int:
        """The window that limits reuse: none when the sliding-window layers keep every token."""
        return 0 if self.swa_full else model.window

    def window_cells(self, model: ModelMemory) -> int:
        """Cells of the sliding-window layers, for all slots together (unified) or for each."""
        if self.swa_full:
            return self.slot_ctx
        cells = model.window * (self.n_slots if self.kv_unified else 1) + self.n_ubatch
        return _whole_256(min(self.slot_ctx, cells))


def _whole_256(count: int) -> int:
    return -(-count // 256) * 256


# One slot and no host cache: only the slot's own content counts.
ONE_SLOT = ServerSettings(n_slots=1, cache_ram_mib=0, n_ctx=1 << 20)
