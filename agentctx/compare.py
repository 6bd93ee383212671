"""Compare history policies: recorded sessions × policies on one cache, turn by turn.

A recorded session is replayed (see :mod:`agentctx.replaying`), in a cache model alone or on a server as well.
Recorded replies stand for what the model would have said under each policy; a policy that hides something from a
real model may change its answer, which a replay can't show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing import get_context

from agentctx.caches.registry import parse_cache
from agentctx.errors import AgentctxError, UsageError
from agentctx.policies import parse_policy
from agentctx.rendering import load_renderer
from agentctx.replaying import Live, Replay, connect
from agentctx.replaying.live import DEFAULT_CACHE, DEFAULT_LAYOUT, ENGINE
from agentctx.reports.turn import SessionReport
from agentctx.traces import Session

DEFAULT_POLICIES = ("append-only", "keep-last:5", "clear-results:5", "window:10", "summarize-budget:8000")

# Replaying needs about a microsecond a message-token; below this, starting processes costs more than it saves.
_PARALLEL_FROM_CHARS = 400_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A session that could not be replayed under a policy, and why."""

    session: str
    file: str
    policy: str
    error: AgentctxError

    def __str__(self) -> str:
        return f"{self.file}: session {self.session}, policy {self.policy}: {self.error}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The reports in the order sessions × policies, and what could not be replayed."""

    reports: tuple[SessionReport, ...]
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What a comparison runs under: specs, so that worker processes can build their own.

    ``cache`` and ``layout``: ``paged:16`` and ``chatml`` without them, or what an observed server says of itself.
    ``observe``: ``engine`` or a server's URL, on which every turn is run; ``api_key``: the server's.
    """

    cache: str | None = None
    layout: str | None = None
    observe: str | None = None
    api_key: str | None = field(default=None, repr=False)


def replay(session: Session, policy_spec: str, setting: Setting) -> SessionReport:
    """Run one session under one policy, on a fresh cache or a fresh engine, and account for every turn.

    Raises the errors of policies, rendering and servers.
    """
    if setting.observe is None:
        return _replay(session, policy_spec, setting, None)
    with _connected(setting) as live:
        return _replay(session, policy_spec, setting, live)


def _connected(setting: Setting) -> AbstractContextManager[Live]:
    assert setting.observe is not None
    return connect(setting.observe, cache=setting.cache, layout=setting.layout, api_key=setting.api_key)


def _replay(session: Session, spec: str, setting: Setting, live: Live | None) -> SessionReport:
    policy = parse_policy(spec)
    if live is None:
        renderer = load_renderer(setting.layout or DEFAULT_LAYOUT)
        cache = parse_cache(setting.cache or DEFAULT_CACHE)
    else:
        live.forget()
        renderer, cache = live.renderer, live.cache
    return Replay(session, policy, renderer, cache, policy_name=spec, live=live).run()


def compare(
    sessions: Sequence[Session],
    policies: Sequence[str] = DEFAULT_POLICIES,
    setting: Setting | None = None,
    *,
    jobs: int | None = None,
    on_done: Callable[[], None] | None = None,
) -> Comparison:
    """Replay every session under every policy. A session that fails under a policy does not stop the others.

    ``jobs``: processes (default: one per core when there is much to do). ``on_done`` is called after each replay.
    Raises ``UsageError`` for a wrong spec before any work starts, and where the setting fits no session.
    """
    setting = setting or Setting()
    for spec in policies:
        parse_policy(spec)
    if setting.cache is not None:
        parse_cache(setting.cache)
    if setting.layout is not None:
        load_renderer(setting.layout)
    pairs = [(session, spec) for session in sessions for spec in policies]
    if setting.observe not in (None, ENGINE):
        jobs = 1  # one server, whose cache is followed request by request
    if jobs is None:
        size = sum(session.size for session in sessions) * len(policies)
        worth = size > _PARALLEL_FROM_CHARS or setting.observe == ENGINE
        jobs = min(len(pairs), os.cpu_count() or 1) if worth else 1
    results: dict[int, SessionReport | Failure] = {}
    for index, result in _run(pairs, setting, jobs):
        results[index] = result
        if on_done is not None:
            on_done()
    ordered = [results[index] for index in range(len(pairs))]
    return Comparison(
        tuple(result for result in ordered if isinstance(result, SessionReport)),
        tuple(result for result in ordered if isinstance(result, Failure)),
    )


def _attempt(
    session: Session, spec: str, setting: Setting, live: Live | None = None
) -> SessionReport | Failure:
    try:
        return replay(session, spec, setting) if live is None else _replay(session, spec, setting, live)
    except UsageError:
        raise  # the call is wrong, whatever the session: an engine without torch, a cache that it hasn't
    except AgentctxError as error:
        return Failure(session.id, session.file, spec, error)


def _one_thread() -> None:
    """Processes share the cores already: an engine that is loaded in one takes one thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _run(
    pairs: Sequence[tuple[Session, str]], setting: Setting, jobs: int
) -> Iterator[tuple[int, SessionReport | Failure]]:
    if setting.observe not in (None, ENGINE):
        with _connected(setting) as live:
            for index, (session, spec) in enumerate(pairs):
                yield index, _attempt(session, spec, setting, live)
        return
    if jobs <= 1:
        for index, (session, spec) in enumerate(pairs):
            yield index, _attempt(session, spec, setting)
        return
    # The longest first, so that no process is left alone with a long one at the end.
    order = sorted(range(len(pairs)), key=lambda index: -pairs[index][0].size)
    # An engine has threads: a process that is forked from one with threads may hang.
    context = get_context("spawn" if setting.observe is not None else None)
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(_attempt, *pairs[index], setting): index for index in order}
        for future in as_completed(futures):
            yield futures[future], future.result()
