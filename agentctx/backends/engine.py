"""The bundled paged engine, in process: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from agentctx.backends.backend import BackendError, Completion, Delta, Options
from agentctx.errors import UsageError
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt, TokenIds
from agentctx.usage import Usage

try:
    from agentctx_engine.runtime import Engine, EngineError, SamplingParams
except ModuleNotFoundError as error:  # torch is an extra
    raise UsageError(
        f"the bundled engine needs {error.name}; install it with: pip install 'agentctx-sdk[engine]'"
    ) from error

if TYPE_CHECKING:
    from agentctx_engine.runtime import GenerationHandle, GenerationResult

ReadReply = Callable[[TokenIds], Message]
"""Generated token ids (end token included, if it was generated) to the message that they spell."""

_DEFAULT_MAX_TOKENS = 256
_TINY_CONTEXT = 1 << 20
_TINY_POOL = 1 << 22
_TINY_STEP = 2048


class _EngineTurns:
    """What both faces share: how options become sampling, and a result a completion.

    ``read_reply`` turns generated ids into a message; ``stop_ids`` end a reply. The engine stays its owner's to close.
    """

    def __init__(self, engine: Engine, read_reply: ReadReply, stop_ids: tuple[int, ...]) -> None:
        self.engine = engine
        self._read_reply = read_reply
        self._stop_ids = stop_ids

    @property
    def name(self) -> str:
        return "engine"

    @property
    def takes_tokens(self) -> bool:
        return True

    def _submit(self, prompt: Prompt, options: Options) -> GenerationHandle:
        if options.stop:
            raise UsageError("the bundled engine stops at token ids, not at texts; leave Options.stop empty")
        params = SamplingParams(
            max_tokens=options.max_tokens or _DEFAULT_MAX_TOKENS,
            temperature=options.temperature or 0.0,
            seed=options.seed,
            stop_token_ids=self._stop_ids,
        )
        try:
            return self.engine.submit(
                prompt.token_ids,
                params,
                reuse=options.cache_prompt,
                cache_salt=options.extra.get("cache_salt"),
            )
        except EngineError as error:
            raise BackendError(f"bundled engine: {error}") from error

    def _completion(self, result: GenerationResult) -> Completion:
        reply_ids = np.asarray(result.token_ids, np.int32)
        return Completion(
            message=self._read_reply(reply_ids),
            usage=Usage(
                prompt=result.prompt_tokens, cached=result.cached_tokens, output=result.generated_tokens
            ),
            reply_ids=reply_ids,
            finish_reason=result.finish_reason.value,
            lost=tuple((reason.value, tokens) for reason, tokens in result.lost),
            seconds=result.total_time,
            first_token_seconds=result.time_to_first_token,
        )

    def _pieces(self) -> _Pieces:
        return _Pieces(self._read_reply)


class _Pieces:
    """Text of a reply token by token. A token that ends inside a character waits for the bytes that complete it."""

    def __init__(self, read_reply: ReadReply) -> None:
        self._read_reply = read_reply
        self._waiting: list[int] = []

    def take(self, token_id: int) -> str:
        """What can be said for certain now; the pieces of a reply joined are the text of all its ids."""
        self._waiting.append(token_id)
        text = self._text()
        if text.endswith("\ufffd"):  # an open character, or a broken one: the next token tells
            return ""
        self._waiting.clear()
        return text

    def rest(self) -> str:
        """What waited for bytes that never came."""
        return self._text() if self._waiting else ""

    def _text(self) -> str:
        return self._read_reply(np.asarray(self._waiting, np.int32)).text


class EngineBackend(_EngineTurns):
    """A Backend over a running :class:`agentctx_engine.runtime.Engine`."""

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        handle = self._submit(prompt, options)
        try:
            return self._completion(handle.result())
        except EngineError as error:
            raise BackendError(f"bundled engine: {error}") from error
        finally:
            handle.cancel()

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        handle = self._submit(prompt, options)
        pieces = self._pieces()
        try:
            for event in handle.stream():
                if text := pieces.take(event.token_id):
                    yield Delta(text)
            if text := pieces.rest():
                yield Delta(text)
            yield Delta(completion=self._completion(handle.result()))
        except EngineError as error:
            raise BackendError(f"bundled engine: {error}") from error
        finally:
            handle.cancel()


class AsyncEngineBackend(_EngineTurns):
    """The same for asyncio. Cancelling the task cancels the request."""

    async def complete(self, prompt: Prompt, options: Options) -> Completion:
        handle = self._submit(prompt, options)
        try:
            return self._completion(await handle.aresult())
        except EngineError as error:
            raise BackendError(f"bundled engine: {error}") from error
        finally:
            handle.cancel()

    async def stream(self, prompt: Prompt, options: Options) -> AsyncGenerator[Delta, None]:
        handle = self._submit(prompt, options)
        pieces = self._pieces()
        try:
            async with aclosing(aiter(handle)) as events:  # type: ignore[type-var]
                async for event in events:
                    if text := pieces.take(event.token_id):
                        yield Delta(text)
            if text := pieces.rest():
                yield Delta(text)
            yield Delta(completion=self._completion(await handle.aresult()))
        except EngineError as error:
            raise BackendError(f"bundled engine: {error}") from error
        finally:
            handle.cancel()


@contextmanager
def tiny_engine(
    vocabulary: int,
    *,
    block_size: int = 16,
    radix: bool = False,
    num_blocks: int | None = None,
    seed: int = 0,
) -> Iterator[EngineBackend]:
    """An engine with a small model of random weights, for measuring what is reused: it reads prompts, and its replies say nothing.

    ``vocabulary``: ids that prompts may have. ``num_blocks``: of ``block_size`` tokens; without it, room for four million tokens.
    """
    from agentctx_engine.models import random_config, random_model

    config = random_config(
        "llama", vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, max_context=_TINY_CONTEXT,
    )  # fmt: skip
    model = random_model(config=config, seed=seed)
    kind = "radix" if radix else "hash"
    try:
        engine = Engine(
            model,
            block_size=block_size,
            num_blocks=num_blocks or _TINY_POOL // block_size,
            prefix_cache=kind,
            max_step_tokens=_TINY_STEP,
        )
    except EngineError as error:
        raise BackendError(f"bundled engine: {error}") from error
    with engine:
        yield EngineBackend(engine, lambda _: Message(role="assistant", content=""), ())
