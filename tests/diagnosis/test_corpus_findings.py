"""Every real session and request log of the corpus: no finding where all is well; what is found was looked at, one by one.

The figures are the provider's own, where the file carries them: prompt tokens and how many of them were read from its
cache, summed over the session. A recorded session shows what was said, not the bodies that were sent, so what its
usage gives away is suspected and never proven.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from agentctx.diagnosis import Diagnosis, diagnose_log, parse_target
from agentctx.traces import read_calls

pytestmark = pytest.mark.corpus

Figures = tuple[int, int] | None

# File: requests, conversations, (prompt tokens, cached tokens) as reported.
HEALTHY: dict[str, tuple[int, int, Figures]] = {
    # Prompts too short to be cached, or nothing marked for caching: 0 % is what was to be expected.
    "requests/llm-anthropic-tool-chain-thinking.jsonl": (2, 1, (1_305, 0)),
    "requests/pydantic-ai-anthropic-compaction.jsonl": (2, 1, (459, 0)),
    # Chains by previous_response_id and histories that the server compacts, of a few words each.
    "requests/pydantic-ai-openai-responses-chain.jsonl": (8, 4, (1_264, 0)),
    "traces/agentcmd/full-session-five.jsonl": (3, 1, (59_628, 50_325)),
    "traces/claude-code/29ccd257-68b1-427f-ae5f-6524b7cb6f20.jsonl": (2, 1, (44_007, 36_009)),
    "traces/claude-code/agent-668b5ac2.jsonl": (5, 1, (140_390, 101_298)),
    "traces/claude-code/subagent-of-29ccd257-agent-a2271d1.jsonl": (10, 1, (284_202, 236_968)),
    "traces/copilot-chat/4c289ca8-f8bb-4588-8400-88b78beb784d.jsonl": (5, 1, (86_280, 78_476)),
    "traces/inspect/78_epoch_1.json": (24, 1, None),
    # Orchestrator, agents and their side questions in one log; the last eight requests are retries.
    "traces/lmcache-magentic/e58895aeb237c2865519206612cf0c6c.openai_chat.jsonl": (11, 3, None),
    # Several runs of one task in one log: each goes on by itself, from a prefix that it shares with the others.
    "traces/lmcache-miniswe/6f1a88fc2fa796cf515b263d8f5f55c4.jsonl": (30, 3, None),
    "traces/lmcache-miniswe/ba443702286bd3610b74b264aaf2b6a3.jsonl": (30, 3, None),
    "traces/lmcache-miniswe/c9a69aa29bb95747980705c2ac0012cc.jsonl": (12, 3, None),
    "traces/lmcache-miniswe/ce5308d303aa2043af2fdc79cf92ff71.jsonl": (30, 2, None),
    "traces/lmcache-miniswe/dc4b66869afd786bc4b341ef1119ca53.jsonl": (12, 3, None),
    # An agent and a simulated user who talk to each other, each with a prompt of its own.
    "traces/lmcache-taubench/9dc9f8c9407949e5f4429c081a7a90b6.jsonl": (43, 4, None),
    "traces/mini-swe-agent/github_issue.traj.json": (10, 1, None),
    "traces/openhands-sdk/nonfncall-llm-message.json": (4, 1, None),
    "traces/openhands/resolver_mock_output.jsonl": (26, 2, None),
    "traces/swe-agent/function_calling_simple.traj": (5, 1, None),
    "traces/swe-agent/i_got_id_demo.traj": (21, 1, None),
    "traces/swe-agent/marshmallow-1867__default_sys-env_cursors_window100.traj": (12, 1, None),
    "traces/swe-agent/marshmallow-1867__function_calling__install-1.traj": (11, 1, None),
    "traces/swe-agent/marshmallow-1867__function_calling_replace_from_source.traj": (13, 1, None),
    "traces/swe-agent/pydicom__pydicom-1458.traj": (12, 1, None),
    "traces/tau-bench/gpt-4o-airline_task002_trial1.json": (30, 1, None),
    "traces/tau-bench/gpt-4o-airline_task028_trial1.json": (18, 1, None),
    "traces/tau-bench/gpt-4o-airline_task033_trial0.json": (30, 1, None),
    "traces/tau-bench/gpt-4o-airline_task034_trial1.json": (18, 1, None),
}

# Sound as recorded, yet the provider read less than it had stored: requests, figures, and for each suspicion its
# cause, the index of the first request and the number of requests.
SUSPECTED: dict[str, tuple[int, Figures, tuple[tuple[str, int, int], ...]]] = {
    # The client sends each reply back as a block that it had got as a string. The prompts are far above the minimum
    # and nothing was cached in six requests, but no marker asked for it; whether the shape reaches the prompt is open.
    "requests/openhands-sdk-claude-sonnet-4.jsonl": (6, (35_428, 0), (("content_shape", 1, 4),)),
    # The person answered after 388 s, an entry lives 300 s: 12,203 of 28,541 stored tokens were read.
    "traces/agentcmd/full-session-askuserquestion.jsonl": (3, (82_869, 49_327), (("ttl_expired", 2, 1),)),
    # Gemini's implicit cache: prompts grow from 5,377 tokens on, and single requests read 1,381 or nothing at all.
    "traces/agentcmd/session-2025-10-27T19-55-981c87cb.json": (15, (102_805, 45_385), (("unexplained", 1, 11),)),
    # Prompts of 320,000 tokens that are read to the last token, and five times, once within the same second, 4,922 or
    # 15,581 only: the head of the prompt changed or the entry was gone. Dear: 1.8 million tokens.
    "traces/claude-code-obra/large-conversation.jsonl": (170, (69_321_281, 66_925_567), (("unexplained", 48, 5),)),
    # Twice exactly the 19,923 tokens of tools and system prompt were read, the second time with a shorter prompt:
    # something behind them changed that the recording leaves out.
    "traces/claude-code-pomodoro/claude-code-pomodoro-timer.jsonl": (
        40, (1_351_174, 1_295_467), (("unexplained", 9, 2),),
    ),
    # 13,761 of 26,712 after 65 s; a pause of 334 s; 27,493 of 32,399 after 166 s.
    "traces/claude-code/0d3a8e6f-290f-4105-a327-a2496e5e2a83.jsonl": (
        15, (434_223, 348_985), (("unexplained", 6, 2), ("ttl_expired", 10, 1)),
    ),
    # Prompts that became shorter although only messages were added, and a night of twelve hours.
    "traces/claude-code/9e953218-585f-4692-89df-9e0747a31c68.jsonl": (
        101, (5_106_066, 4_775_345), (("unexplained", 1, 8), ("ttl_expired", 91, 2)),
    ),
    # A lunch of 4,166 s; 98 % otherwise.
    "traces/claude-code/a7da6a22-facc-4fcd-8bab-f83c87862004.jsonl": (
        103, (8_682_623, 8_505_166), (("ttl_expired", 38, 1),),
    ),
    # Thinking is on: after messages of the user, part of the last turn is written again. Two pauses besides.
    "traces/claude-code/cb2e607c-c758-415a-8b45-c49e4631906a.jsonl": (
        80, (3_635_985, 3_483_153), (("unexplained", 20, 5), ("ttl_expired", 23, 2)),
    ),
    # Nothing of 18,071 tokens after 3 s: another machine. Later a tool that ran for 322 s.
    "traces/claude-code/subagent-of-ef958aa1-agent-a4ca7529859c158c2.jsonl": (
        20, (729_908, 615_694), (("unexplained", 2, 2), ("ttl_expired", 17, 1)),
    ),
    # A pause of 403 s.
    "traces/cline/session.messages.json": (16, (630_254, 534_435), (("ttl_expired", 11, 1),)),
    # After each new question the prompt is shorter than the one before: reasoning of earlier turns is left out.
    "traces/codex-pomodoro/codex-pomodor-timer.jsonl": (21, (215_755, 181_760), (("unexplained", 9, 2),)),
    # 37 times nothing at all was read, mostly within minutes: 4.1 million tokens. Four pauses are longer than a life.
    "traces/pi/large-session.jsonl": (
        439, (47_526_750, 43_229_469), (("ttl_expired", 4, 4), ("unexplained", 7, 33)),
    ),
}  # fmt: skip

# An orchestrator asks after every round with an instruction at the end ("Recall we are working on …"), takes it away
# again and puts what the agent did in its place: from that point on, 690 tokens twice, each request is computed anew.
MAGENTIC = "traces/lmcache-magentic/6a12ad809c5fbe6670613f0eca233fd8.openai_chat.jsonl"

LARGE = {"traces/pi/large-session.jsonl", "traces/claude-code-obra/large-conversation.jsonl"}


@cache
def diagnosed(path: Path, target: str = "as-sent") -> Diagnosis:
    return diagnose_log(read_calls(path), parse_target(target))


def figures(diagnosis: Diagnosis) -> Figures:
    told = [conversation for conversation in diagnosis.conversations if conversation.reported]
    return (sum(c.prompt for c in told), sum(c.cached for c in told)) if told else None


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_a_healthy_session(shared_dir: Path, name: str) -> None:
    diagnosis = diagnosed(shared_dir / "corpus" / name)
    assert (diagnosis.findings, diagnosis.suspicions) == ([], [])
    assert (diagnosis.requests, diagnosis.conversation_count, figures(diagnosis)) == HEALTHY[name]


@pytest.mark.parametrize("name", SUSPECTED)
def test_what_a_provider_read_less_is_suspected(shared_dir: Path, name: str) -> None:
    requests, reported, suspicions = SUSPECTED[name]
    diagnosis = diagnosed(shared_dir / "corpus" / name)
    assert diagnosis.findings == []
    assert tuple((s.cause, s.turn, s.count) for s in diagnosis.suspicions) == suspicions
    assert (diagnosis.requests, figures(diagnosis)) == (requests, reported)
    for suspicion in diagnosis.suspicions:
        if suspicion.cause != "content_shape":
            assert suspicion.detail
            assert suspicion.loss.again


def test_an_instruction_that_wanders_at_the_end(shared_dir: Path) -> None:
    diagnosis = diagnosed(shared_dir / "corpus" / MAGENTIC)
    (finding,) = diagnosis.findings
    assert (finding.cause, finding.turns, finding.place) == ("message_inserted", [4, 6], "input@2592")
    assert "user: Recall we are working on" in finding.was
    assert "assistant: WebSurfer, navigate to" in finding.now
    assert 1_300 < (finding.loss.again or 0) < 1_450
    assert not diagnosis.suspicions


@pytest.mark.parametrize("target", ["anthropic", "openai", "chatml+paged:16", "chatml+slot"])
def test_no_target_finds_more(shared_dir: Path, target: str) -> None:
    """The verdict may depend on the server; these sessions are sound for all of them."""
    for name in {*HEALTHY, *SUSPECTED, MAGENTIC} - LARGE:
        diagnosis = diagnosed(shared_dir / "corpus" / name, target)
        found = [finding.cause for finding in diagnosis.findings]
        if target == "chatml+slot":
            found = [cause for cause in found if cause != "slot_taken"]  # several conversations, one slot
        assert found == (["message_inserted"] if name == MAGENTIC else []), name
        # As recorded they are append-only: nothing of an earlier prompt is lost.
        assert not any(c.lost for c in diagnosis.conversations if c.api != "text"), name


def test_every_file_of_the_corpus_is_here(shared_dir: Path) -> None:
    corpus = shared_dir / "corpus"
    files = {str(path.relative_to(corpus)) for path in (corpus / "traces").glob("*/*")}
    files |= {f"requests/{path.name}" for path in (corpus / "requests").glob("*.jsonl")}
    # The two kinds of traces that hold hashes of blocks and no requests.
    files = {name for name in files if "mooncake" not in name and "kvtrace" not in name}
    assert files == {*HEALTHY, *SUSPECTED, MAGENTIC}
