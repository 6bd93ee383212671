"""Compare history policies: recorded sessions × policies on one cache, turn by turn.

A recorded session is replayed: at every model call the policy decides what of the history the model reads, the
renderer makes the prompt, the cache model says what a server would reuse, and the recorded reply is appended.
Recorded replies stand for what the model would have said under each policy; a policy that hides something from a
real model may change its answer, which a replay can't show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from agentctx.caches.model import CacheModel
from agentctx.caches.registry import parse_cache
from agentctx.errors import AgentctxError
from agentctx.history import History
from agentctx.policies import SideRequest, parse_policy
from agentctx.rendering import Prompt, Renderer, load_renderer
from agentctx.reports.ledger import Ledger, predicted_turn
from agentctx.reports.turn import SessionReport, TurnReport
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
    """What a comparison runs under: specs, so that worker processes can build their own."""

    cache: str = "paged:16"
    layout: str = "chatml"


def replay(session: Session, policy_spec: str, setting: Setting) -> SessionReport:
    """Run one session under one policy on a fresh cache and account for every turn.

    Raises the errors of policies and rendering; a session that breaks the chat protocol was refused when it was read.
    """
    policy = parse_policy(policy_spec)
    cache = parse_cache(setting.cache)
    renderer = load_renderer(setting.layout)
    ledger = Ledger()
    history = History(system=session.system, tools=session.tools)
    turns: list[TurnReport] = []
    stand_in = False
    prompt = None
    promptless = 0
    for message, generated in zip(session.messages, session.generated, strict=True):
        if generated and not len(history):
            promptless += 1  # the recorder kept the reply and not what was asked
        elif generated:
            turn = policy.turn(history, renderer.count)
            stand_in = stand_in or turn.stand_in
            asked, asked_reused = _ask(turn.asked, prompt, renderer, cache)
            prompt = renderer.render(turn.request, prompt)
            reply_ids = renderer.reply_ids(prompt, message)
            account = ledger.account(prompt)
            rounded = cache.without_limits(prompt.token_ids)
            prediction = cache.commit(prompt.token_ids, reply_ids)
            ledger.commit(prompt, reply_ids, message)
            report = predicted_turn(
                len(turns) + 1, turn, prompt, account, rounded=rounded, predicted=prediction.cached
            )
            turns.append(replace(report, reply=len(reply_ids), asked=asked, asked_reused=asked_reused))
        history.append(message)
    notes = (
        [f"{promptless} replies have no recorded prompt and were not counted as turns"] if promptless else []
    )
    notes += session.conversation.repairs
    return SessionReport(
        _title(session), policy_spec, cache.name, renderer.name, tuple(turns), stand_in, notes=tuple(notes)
    )


def _ask(
    requests: Sequence[SideRequest], previous: Prompt | None, renderer: Renderer, cache: CacheModel
) -> tuple[int, int]:
    """Serve a policy's requests for summaries on the same cache: their prompt tokens, and those of them reused."""
    tokens = reused = 0
    for side in requests:
        prompt = renderer.render(side.request, previous)
        prediction = cache.commit(prompt.token_ids, renderer.reply_ids(prompt, side.reply))
        tokens += len(prompt)
        reused += prediction.cached
    return tokens, reused


def _title(session: Session) -> str:
    """The file's name, with the session's id where that says more."""
    name = Path(session.file).name
    return name if session.id in name else f"{name} ({session.id})"


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
    Raises ``UsageError`` for a wrong spec before any work starts.
    """
    setting = setting or Setting()
    for spec in policies:
        parse_policy(spec)
    parse_cache(setting.cache)
    load_renderer(setting.layout)
    pairs = [(session, spec) for session in sessions for spec in policies]
    if jobs is None:
        size = sum(session.size for session in sessions) * len(policies)
        jobs = min(len(pairs), os.cpu_count() or 1) if size > _PARALLEL_FROM_CHARS else 1
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


def _attempt(session: Session, spec: str, setting: Setting) -> SessionReport | Failure:
    try:
        return replay(session, spec, setting)
    except AgentctxError as error:
        return Failure(session.id, session.file, spec, error)


def _run(
    pairs: Sequence[tuple[Session, str]], setting: Setting, jobs: int
) -> Iterator[tuple[int, SessionReport | Failure]]:
    if jobs <= 1:
        for index, (session, spec) in enumerate(pairs):
            yield index, _attempt(session, spec, setting)
        return
    # The longest first, so that no process is left alone with a long one at the end.
    order = sorted(range(len(pairs)), key=lambda index: -pairs[index][0].size)
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        futures = {pool.submit(_attempt, *pairs[index], setting): index for index in order}
        for future in as_completed(futures):
            yield futures[future], future.result()
