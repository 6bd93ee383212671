"""A slot's prompt: the tokens whose memory it holds, and the context checkpoints along them."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentctx_engine.memory.slot_memory import SavedState
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, common_tokens


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A copy of the memory that can't be rolled back, taken when the slot held ``num_tokens`` tokens.

    ``oldest`` and ``newest`` are the positions that the memory held then, not those that the copy holds.
    """

    num_tokens: int
    oldest: int
    newest: int
    task: int
    state: SavedState


@dataclass(slots=True)
class SlotPrompt:
    """Packed tokens and their checkpoints, oldest first. Both are replaced, never changed in place: copies are cheap."""

    text: bytes = b""
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.text) // TOKEN_BYTES

    def copy(self) -> SlotPrompt:
        return SlotPrompt(self.text, list(self.checkpoints))

    def common(self, text: bytes) -> int:
        """Tokens shared with ``text``, from the start."""
        return common_tokens(self.text, text)


def find_checkpoint(checkpoints: list[Checkpoint], num_tokens: int, limit: int) -> Checkpoint | None:
    """The newest checkpoint that ends at or before ``num_tokens`` and reaches back below ``limit`` (or to the start)."""
    for checkpoint in reversed(checkpoints):
        if checkpoint.newest <= num_tokens and (checkpoint.oldest < limit or checkpoint.oldest == 0):
            return checkpoint
    return None


def add_checkpoint(checkpoints: list[Checkpoint], new: Checkpoint, *, most: int, min_step: int) -> None:
    """Append ``new``, of at most ``most``: what stands too close to an earlier one goes first, then the oldest."""
    last = -1
    index = 0
    while len(checkpoints) + 1 >= most and index < len(checkpoints):
        current = checkpoints[index]
        if current.task != new.task and last >= 0 and current.num_tokens <= last + min_step:
            del checkpoints[index]
            continue
        last = current.num_tokens
        index += 1
    while len(checkpoints) >= most:
        del checkpoints[0]
    checkpoints[:] = [kept for kept in checkpoints if kept.num_tokens != new.num_tokens]
    checkpoints.append(new)


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """The next batch of a prompt: ``start`` to ``end``; ``checkpoint`` says to take one before it is computed."""

    start: int
    end: int
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """When a prompt is cut into batches, and which of them begin with a checkpoint.

    ``user_starts``: positions at which the prompt's user messages begin. ``most`` 0: no checkpoints, no cuts.
    """

    num_tokens: int
    n_batch: int
    n_ubatch: int
    most: int
    min_step: int
    user_starts: frozenset[int]

    def next_batch(self, start: int, checkpoints: list[Checkpoint]) -> PromptBatch:
        """The batch that begins at ``start``."""
        last_user = max(self.user_starts, default=-1)
        end = min(self.num_tokens, start + self.n_batch)
        if self.most > 0:
            cuts = [self.num_tokens - min(self.n_batch, tail) for tail in (4 + self.n_ubatch, 4)]
            since = checkpoints[-1].num_tokens + self.min_step if checkpoints else -1
            cuts += [user for user in self.user_starts if user == last_user or user > since]
            end = min([cut for cut in cuts if start < cut < end], default=end)
        return PromptBatch(start, end, self.most > 0 and self._wanted(start, end, checkpoints))

    def _wanted(self, start: int, end: int, checkpoints: list[Checkpoint]) -> bool:
        near_end = self.num_tokens < end + self.n_ubatch
        if end < self.num_tokens and start not in self.user_starts and not near_end:
            return False
        last_user = max(self.user_starts, default=-1)
        return (
            not checkpoints
            or start == last_user
            or near_end
            or start > checkpoints[-1].num_tokens + self.min_step
        )
