"""Engine: token ids in, token ids out, from any thread or event loop."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import Match, PrefixCache
from agentctx_engine.runtime import snapshots
from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.errors import PromptTooLongError, RequestError, SnapshotError
from agentctx_engine.runtime.handle import GenerationHandle
from agentctx_engine.runtime.kv_store import TokenArray
from agentctx_engine.runtime.loop import EngineLoop
from agentctx_engine.runtime.model_runner import DecoderModel
from agentctx_engine.runtime.request import Request, StopHook
from agentctx_engine.runtime.results import EngineState, GenerationResult, TokenEvent
from agentctx_engine.runtime.sampling_params import SamplingParams
from agentctx_engine.runtime.snapshot_file import SavedPrefix, Snapshot, read_snapshot, write_snapshot
from agentctx_engine.runtime.snapshots import RestoredPrefix

Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]


class RequestOptions(TypedDict, total=False):
    """What a request may say besides its prompt and its sampling."""

    cache_salt: str | None  # prefixes are shared among requests with an equal salt only
    stop_hook: StopHook | None  # called after each token, see StopHook
    reuse: bool  # False: computes the whole prompt, though what it computes stays findable
    keep_logits: bool  # the result carries each sampled token's logits, [tokens, vocabulary] float32: large


class Engine:
    """Runs a model with paged, shared KV memory on a thread of its own.

    Every call takes the same arguments as ``submit``: ``generate`` waits, ``stream`` gives tokens as they come, both with
    an ``a…`` twin for event loops. Close it, or use it as a (sync or async) context manager; one that is forgotten closes itself.

        with Engine(model, num_blocks=512) as engine:
            result = engine.generate([1, 2, 3], SamplingParams(max_tokens=8))
            result.token_ids, result.cached_tokens, result.computed_tokens
    """

    def __init__(self, model: DecoderModel, config: EngineConfig | None = None, **options: Any) -> None:
        """``options`` are ``EngineConfig``'s fields, instead of ``config``. Raises ``EngineMemoryError`` if the KV pool can't be had."""
        if config is not None and options:
            raise TypeError("give a config or its fields, not both")
        self.config = EngineConfig(**options) if config is None else config
        self.model = model
        self._core = build_core(model, self.config)
        self.max_context = self._core.max_context
        self._loop = EngineLoop(self._core)
        self._finalizer = weakref.finalize(self, self._loop.ask_to_close)

    # -- requests -------------------------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> GenerationHandle:
        """Queue a request and return at once.

        Raises ``RequestError`` (``PromptTooLongError``) for a request that can never run, ``EngineClosedError`` after
        ``close``.
        """
        params = params or SamplingParams()
        tokens = self._check(prompt, params)
        check_cache_salt(options.get("cache_salt"))
        if params.stop_token_ids is None:
            params = params.with_stop_token_ids(self.model.config.eos_token_ids)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        clock = self._core.clock

        def make(request_id: int) -> Request:
            return Request(
                id=request_id,
                prompt=tokens,
                params=params,
                seed=seed,
                arrival=clock(),
                **options,
            )

        return self._loop.submit(make)

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> GenerationResult:
        """``submit`` and wait. An interrupt while waiting cancels the request."""
        handle = self.submit(prompt, params, **options)
        try:
            return handle.result()
        finally:
            handle.cancel()

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[GenerationResult]:
        """All prompts together; results in their order. Raises the first error, after cancelling the rest."""
        handles: list[GenerationHandle] = []
        try:
            handles.extend(self.submit(prompt, params, **options) for prompt in prompts)
            return [handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> GenerationResult:
        """``generate`` for event loops; cancelling the task cancels the request."""
        return await self.submit(prompt, params, **options).aresult()

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Iterator[TokenEvent]:
        """Tokens as they come. For the result too, ``submit`` and use the handle's ``stream`` and ``result``."""
        return self.submit(prompt, params, **options).stream()

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[TokenEvent]:
        """``stream`` for event loops; leaving it early cancels the request."""
        return aiter(self.submit(prompt, params, **options))

    # -- the cache and the counters -------------------------------------------------------------------------

    def match(self, prompt: Prompt, *, cache_salt: str | None = None) -> Match:
        """What a request that came now would reuse, and why not more. Changes nothing."""
        tokens = np.asarray(prompt, dtype=np.int32)
        check_cache_salt(cache_salt)
        return self._loop.call(lambda: self._core.kv.match(tokens, cache_salt))

    def predictor(self) -> PrefixCache:
        """An empty prefix cache of the engine's kind and size, for predicting what a new engine like it will reuse.

        Committed and released as requests begin and end, it hits what the engine hits, to the token, as long as the
        requests run one after another.
        """
        return self._core.kv.predictor()

    def state(self) -> EngineState:
        """Totals, queue lengths and pool, at one moment between two steps."""
        return self._loop.call(self._core.state)

    def drop_cached(self) -> None:
        """Forget every prefix that no running request holds."""
        self._loop.call(self._core.kv.drop_cached)

    # -- prefixes that outlive the process ------------------------------------------------------------------

    def save(self, prefix: Prompt, place: str | Path, *, cache_salt: str | None = None) -> SavedPrefix:
        """Write the keys and values of ``prefix`` to a file, computing first what isn't cached.

        place: a ``Path``, or the plain name of a file in ``snapshot_dir``. Replaced at once, and only when it is whole.
        Saves whole blocks, or every token with ``token_granular``. Raises ``SnapshotError``, ``RequestError``.
        """
        path = self._snapshot_path(place)
        core, tokens = self._core, self._check(prefix, SamplingParams(max_tokens=1))
        taken: Future[Snapshot] = Future()

        def take(_sample: int, _output: Sequence[int]) -> bool:
            """The prompt has just been read: the one moment at which all of it is certain to be there."""
            sample = next(sample for sample in core.scheduler.running if sample.request.stop_hook is take)
            try:
                taken.set_result(snapshots.take(core, sample, cache_salt))
            except Exception as error:
                taken.set_exception(error)
            return True

        # It also puts the prefix last in the order of eviction.
        once = SamplingParams(max_tokens=1, stop_token_ids=())
        self.generate(tokens, once, cache_salt=cache_salt, stop_hook=take)
        return write_snapshot(path, taken.result())

    def restore(self, place: str | Path, *, cache_salt: str | None = None) -> RestoredPrefix:
        """Read a file that ``save`` wrote, here or in an earlier process, so that requests can reuse its prefix.

        Raises ``SnapshotError`` if a byte is wrong, or if it was written by another model, dtype or version or under
        another salt; ``EngineMemoryError`` if the pool has no room.
        """
        check_cache_salt(cache_salt)
        path = self._snapshot_path(place)
        core = self._core
        snapshot = read_snapshot(path, snapshots.comparable_identity(self.model))
        snapshots.check(path, snapshot, self.model, cache_salt)
        return self._loop.call(lambda: snapshots.put_back(core, snapshot, cache_salt))

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what runs (``EngineClosedError`` to those who wait), stop the thread, give the memory back. Twice is harmless."""
        self._finalizer.detach()
        self._loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)  # it waits for the step that runs

    def _snapshot_path(self, place: str | Path) -> Path:
        if self.config.prefix_cache == "none":
            raise SnapshotError(
                "an engine with prefix_cache='none' reuses nothing: there is nothing to save or restore"
            )
        return snapshots.snapshot_path(place, self.config.snapshot_dir)

    def _check(self, prompt: Prompt, params: SamplingParams) -> TokenArray:
        tokens = check_prompt(prompt, self.model.config.vocab_size, self.max_context)
        if params.n > self.config.max_samples:
            raise RequestError(
                f"n={params.n}: the engine runs {self.config.max_samples} samples together; raise max_samples"
            )
        return tokens


def check_cache_salt(salt: object) -> None:
    """Raises ``RequestError`` unless it is text, or ``None``."""
    if salt is None:
        return
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt must be a string or None, got {type(salt).__name__}")
    try:
        salt.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"cache_salt must be text that UTF-8 can encode: {error}") from None


def check_prompt(prompt: Prompt, vocab_size: int, max_context: int) -> TokenArray:
    """The prompt as an own int32 array. Raises ``RequestError`` that says what is wrong with it."""
    array = np.asarray(prompt)
    if array.ndim != 1 or len(array) == 0:
        raise RequestError("the prompt must be a non-empty list of token ids")
    if array.dtype.kind not in "iu":
        raise RequestError(f"the prompt must be token ids, got {array.dtype}")
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if len(wrong):
        place = int(wrong[0])
        raise RequestError(f"prompt[{place}]={array[place]} is no token id: the vocabulary has {vocab_size}")
    if len(array) >= max_context:
        raise PromptTooLongError(
            f"the prompt has {len(array)} tokens and must leave room for one more in a context of {max_context}; "
            "shorten it, or raise max_context and the number of KV blocks as far as the model allows"
        )
    return array.astype(np.int32)
