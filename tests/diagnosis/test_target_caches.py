"""A target with a cache model: what its server would have lost is the server's doing, per target."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agentctx.diagnosis import Diagnosis, Exchange, LogDiagnosis, diagnose_log, parse_target
from agentctx.diagnosis.tokens import Rendered
from agentctx.errors import UsageError
from agentctx.rendering.prompt import Prompt
from agentctx.rendering.user_starts import UserStarts

from .healthy_sessions import make


def interleaved(first: int = 3, second: int = 4) -> list[Exchange]:
    """Two healthy conversations without replies, a request of each in turn."""
    sides = [
        make(seed, "openai.chat", replies=False, turns=6, reasoning=False).exchanges()
        for seed in (first, second)
    ]
    return [call for pair in zip(*sides, strict=True) for call in pair]


def causes(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(finding.cause, finding.verdict) for finding in diagnosis.findings}


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ("paged:16", set()),
        ("radix:page=1", set()),
        ("paged:block=16,capacity=200", {("server_evicted", "server")}),
        ("slot", {("slot_taken", "server")}),
        ("llama-server:slots=1,ram=0", {("slot_taken", "server")}),
        ("llama-server:slots=2,ram=0,similarity=0.9", set()),
    ],
)
def test_one_log_and_the_servers_that_may_have_served_it(cache: str, expected: set[tuple[str, str]]) -> None:
    log = interleaved()
    diagnosis = diagnose_log(log, parse_target("chatml", cache=cache))
    assert causes(diagnosis) == expected
    assert diagnosis.target == f"chatml+{cache}"
    counted = [(c.tokens or 0) - (c.reused or 0) for c in diagnosis.conversations]
    kept = diagnose_log(log, parse_target("chatml")).conversations
    again = sum(finding.loss.again or 0 for finding in diagnosis.findings)
    # What isn't reused is new, rounded off, or lost by the server; a shared head may save some of it.
    assert sum(counted) <= sum((c.tokens or 0) - (c.reused or 0) for c in kept) + again + 16 * len(log)
    assert all(finding.loss.exact is False or finding.loss.again for finding in diagnosis.findings)


def test_a_window_keeps_a_branch_from_going_back() -> None:
    session = make(8, "openai.chat", replies=False, turns=8, reasoning=False)
    log = session.exchanges()
    target = parse_target("chatml+llama-server:slots=1,ram=0,window=128,checkpoints=0")
    assert not diagnose_log(log, target).findings  # what only grows never goes back
    assert target.cache is not None
    branch = replace(log[-1], request={**log[-1].request, "messages": log[-1].request["messages"][:3]})
    diagnosis = LogDiagnosis(target)
    for call in [*log, branch]:
        diagnosis.feed(call)
    assert diagnosis.turn is not None
    assert diagnosis.turn.reused == 0


def test_what_the_server_reported_beats_the_model() -> None:
    """The model says that the slot was taken; the server's own count says that it wasn't."""
    log = []
    for call in interleaved():
        size = len(str(call.request)) // 4
        usage = {"prompt_tokens": size, "prompt_tokens_details": {"cached_tokens": size - 1}}
        log.append(replace(call, response={"usage": usage}))
    assert not diagnose_log(log, parse_target("chatml", cache="slot")).findings


def test_spec_of_a_target() -> None:
    target = parse_target("chatml+paged:32")
    assert target.name == "chatml+paged:32"
    assert target.cache is not None
    assert target.cache().name == "paged:32"
    assert parse_target("chatml", tokenizer="embedded", prefill_rate=900.0).prefill_rate == 900.0
    for wrong in (
        "chatml+paged:block=none",
        "as-sent+slot",
        "anthropic+slot",
        "no-such-thing",
        "chatml+what",
    ):
        with pytest.raises(UsageError):
            parse_target(wrong)


def test_a_pause_longer_than_any_entry_lives_is_suspected() -> None:
    """No usage was logged: that the entry expired is likely, not proven."""
    session = make(5, "openai.chat", replies=False, turns=5)
    calls = session.exchanges()
    late = [
        replace(call, at=(call.at or 0) + (7_200 if index > 2 else 0)) for index, call in enumerate(calls)
    ]
    assert not diagnose_log(calls).suspicions
    diagnosis = diagnose_log(late)
    assert not diagnosis.findings
    (suspicion,) = diagnosis.suspicions
    assert (suspicion.cause, suspicion.turn, suspicion.count) == ("ttl_expired", 3, 1)


def test_prompts_that_were_given_up_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the prompts of a few conversations; more of them in turn change no count."""
    log = interleaved()
    whole = [(c.tokens, c.reused, c.lost) for c in diagnose_log(log, parse_target("chatml")).conversations]
    monkeypatch.setattr("agentctx.diagnosis.conversations._MAX_RENDERED", 1)
    again = [(c.tokens, c.reused, c.lost) for c in diagnose_log(log, parse_target("chatml")).conversations]
    assert again == whole


@pytest.fixture
def new_objects() -> Iterator[Callable[[type], int]]:
    """How many objects of a type are alive that didn't live before the test."""
    gc.collect()
    gc.freeze()  # the others are neither listed nor walked

    def count(kind: type) -> int:
        gc.collect()
        return sum(type(found) is kind for found in gc.get_objects())

    yield count
    gc.unfreeze()


def test_prompts_that_are_made_again_count_as_kept(
    monkeypatch: pytest.MonkeyPatch, new_objects: Callable[[type], int]
) -> None:
    """A branch needs the prompt of the request that it leaves, which stays a request of its own."""
    monkeypatch.setattr("agentctx.diagnosis.conversations._MAX_RENDERED", 1)
    sides = [make(seed, "openai.chat", replies=False, turns=6).exchanges() for seed in range(10, 18)]
    ends = [side[-1] for side in sides]
    branches = [
        replace(end, request={**end.request, "messages": end.request["messages"][:3]}) for end in ends
    ]
    diagnosis = LogDiagnosis(parse_target("chatml"))
    for call in [call for side in sides for call in side] + branches:
        diagnosis.feed(call)
        assert new_objects(Rendered) == 1
    assert diagnosis.result().conversation_count == len(sides)


def test_places_of_user_messages_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each conversation knows them of its last prompt; a turn walks what it adds."""
    walked, whole = [], []
    of = UserStarts.of

    def counted(self: UserStarts, prompt: Prompt) -> tuple[int, ...]:
        walked.append(len(prompt.spans) - self._kept(prompt))
        whole.append(len(prompt.spans))
        assert of(self, prompt) == of(UserStarts(), prompt)
        return of(self, prompt)

    monkeypatch.setattr(UserStarts, "of", counted)
    log = interleaved()
    diagnose_log(log, parse_target("chatml+llama-server"))
    assert len(walked) == len(log)
    assert sum(walked) < 0.5 * sum(whole)
