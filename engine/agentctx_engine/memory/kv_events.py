"""Events of the prefix cache: what a router or another tier needs to follow what is cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Medium = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that a lookup can find from now on, in prefix order.

    ``parent`` is the hash of the block before the first one, ``None`` at the start of the text.
    ``token_ids`` are the tokens of these blocks, ``len(hashes) * block_size`` of them; on the host, where blocks
    arrive one by one from the device, neither parent nor tokens are repeated.
    ``session`` is reported and never part of a hash.
    """

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    group: int = 0
    adapter: str | None = None
    session: str | None = None
    medium: Medium = "device"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A hash that no block of ``medium`` holds for ``group`` any longer."""

    hash: bytes
    group: int = 0
    medium: Medium = "device"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Everything that ``medium`` held was forgotten at once."""

    medium: Medium = "device"


Event = BlocksStored | BlockRemoved | AllBlocksCleared


class EventLog:
    """Events in order, until they are taken; listeners hear each one as it happens."""

    __slots__ = ("_listeners", "_pending")

    def __init__(self) -> None:
        self._pending: list[Event] = []
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with every event from now on. It must not call back into the memory manager."""
        self._listeners.append(listener)

    def publish(self, event: Event) -> None:
        self._pending.append(event)
        for listener in self._listeners:
            listener(event)

    def take(self) -> list[Event]:
        """The events since the last call; the log is empty afterwards."""
        taken, self._pending = self._pending, []
        return taken
