"""Backend: one shape for everything that can run a turn, and one shape for what it says about it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentctx.errors import AgentctxError
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt, TokenIds
from agentctx.usage import Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished turn.

    ``reply_ids`` are the token ids that were generated, end token included when the server reports it;
    ``None`` when the server only gives text. ``slot`` is the llama-server slot that served the turn. ``lost``: reasons and
    tokens that were not reused, where the server gives them (a Prediction's words). ``unanswered``: how often the same request had been
    sent before over a connection that broke without an answer; the server may have run, and cached, each of them. ``seconds`` and
    ``first_token_seconds`` are wall-clock times.
    """

    message: Message
    usage: Usage
    reply_ids: TokenIds | None = field(default=None, compare=False)
    finish_reason: str | None = None
    model: str | None = None
    slot: int | None = None
    lost: tuple[tuple[str, int], ...] = ()
    unanswered: int = 0
    seconds: float | None = None
    first_token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How one turn is to be run. Everything here leaves the prompt's bytes alone.

    ``conversation`` names the conversation to routers and prompt caches (a session header, ``prompt_cache_key``),
    so that it stays on the replica that holds its prefix. ``slot`` pins a llama-server slot. ``cache_life`` asks a hosted cache to
    keep the prompt for so long, in the provider's words (``5m`` and ``1h`` at Anthropic, ``24h`` at OpenAI). ``at`` is when the turn is
    sent, in seconds of the caller's clock, for predictions of what has expired; sessions fill in the time.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    conversation: str | None = None
    slot: int | None = None
    cache_prompt: bool = True
    cache_life: str | None = None
    at: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed reply. The last one carries the whole ``completion``."""

    text: str = ""
    completion: Completion | None = None


class Backend(Protocol):
    """Runs turns, one caller at a time. ``takes_tokens``: it is sent the prompt's token ids and not its messages."""

    @property
    def name(self) -> str: ...

    @property
    def takes_tokens(self) -> bool: ...

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        """Run a turn and wait for all of it. Raises a :class:`BackendError`."""
        ...

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        """Run a turn piece by piece; the last delta carries the completion. Closing the generator ends the turn."""
        ...


class AsyncBackend(Protocol):
    """The same shape for asyncio."""

    @property
    def name(self) -> str: ...

    @property
    def takes_tokens(self) -> bool: ...

    async def complete(self, prompt: Prompt, options: Options) -> Completion: ...

    def stream(self, prompt: Prompt, options: Options) -> AsyncGenerator[Delta, None]: ...


class BackendError(AgentctxError):
    """A turn that did not run to its end. What was asked stays in the history, sealed as it was sent; there is no reply."""


class ConnectionFailed(BackendError):
    """Nobody answered at the address, or the connection broke before the reply began."""


class TimedOut(BackendError):
    """The server was silent for longer than the timeout allows."""


class StreamBroken(BackendError):
    """The stream ended before the reply did. ``partial`` is the text that had arrived; it is not in the history."""

    def __init__(self, problem: str, *, partial: str = "") -> None:
        super().__init__(problem)
        self.partial = partial


class Refused(BackendError):
    """The server answered with an error status. ``retry_after`` is in seconds, when it named one."""

    def __init__(self, problem: str, *, status: int, retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self.retry_after = retry_after


class BadResponse(BackendError):
    """The server answered with something that is not the API it was asked for."""
