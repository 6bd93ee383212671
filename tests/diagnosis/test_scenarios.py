"""Scenarios a to l in three wire formats: break turns, place, cause, tokens, and the verdict per target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentctx.diagnosis import Diagnosis, Exchange, Target, diagnose_log, exchange_of, parse_target
from agentctx.interchange import read_request
from agentctx.messages import Message, Request
from agentctx.rendering.chatml import ChatMLRenderer
from agentctx.rendering.prompt import Prompt, TokenIds

FORMATS = ("openai", "anthropic", "anthropic_cc")
NAMES = ("a", "b", "c", "d", "d2", "e", "f", "g", "h", "h0", "i", "j", "k", "kimg", "l")
CAUSES = {
    "b": "volatile_text",
    "c": "tool_order",
    "d": "history_trimmed",
    "d2": "compaction",
    "e": "message_edited",
    "f": "compaction",
    "g": "json_key_order",
    "h": "reasoning_removed",
    "j": "whitespace",
}
PLACES = {
    "openai": {
        "b": "messages[0].content@29",
        "c": "tools (order)",
        "d": "messages[2]",
        "d2": "messages[3].content@0",
        "e": "messages[7].content@378",
        "f": "messages[2]",
        "g": "tools[2].function.parameters",
        "h": "messages[2].reasoning_content",
        "j": "messages[6].content@67",
    },
    "anthropic": {
        "b": "system@29",
        "c": "tools (order)",
        "d": "messages[1]",
        "d2": "messages[2].content[0].content@0",
        "e": "messages[6].content[0].content@378",
        "f": "messages[1]",
        "g": "tools[2].input_schema",
        "h": "messages[1].content[0]",
        "j": "messages[5].content[0].text@67",
    },
}
PLACES["anthropic_cc"] = {**PLACES["anthropic"], "b": "system[0].text@29"}


def log(shared_dir: Path, wire: str, name: str) -> list[Exchange]:
    with open(shared_dir / "cases" / "scenarios" / wire / f"{name}.jsonl", encoding="utf-8") as lines:
        return [exchange_of(json.loads(line), line=number) for number, line in enumerate(lines, start=1)]


def break_turns(shared_dir: Path, wire: str, name: str) -> list[int]:
    """1-based, as truth.json counts them; the fork in ``i`` is no break (the scenarios' README)."""
    truth = json.loads((shared_dir / "cases" / "scenarios" / "truth.json").read_text(encoding="utf-8"))
    turns: list[int] = truth[f"{wire.removesuffix('_cc')}/{name}/api"]["break_turns"]
    return [] if name == "i" else turns


def found(diagnosis: Diagnosis) -> list[tuple[str, str | None, list[int]]]:
    return [
        (finding.cause, finding.place, [turn + 1 for turn in finding.turns]) for finding in diagnosis.findings
    ]


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_as_sent(shared_dir: Path, wire: str, name: str) -> None:
    """Without a target: the body as it was sent. (In anthropic_cc/k the opening message is a marked block first and a
    string then, which is a difference in the body; whether it reaches the prompt is for a target to say.)
    """
    diagnosis = diagnose_log(log(shared_dir, wire, name))
    if (wire, name) == ("anthropic_cc", "k"):
        assert [(f.cause, f.turn) for f in diagnosis.findings] == [("content_shape", 1)]
        return
    turns = break_turns(shared_dir, wire, name)
    expected = [(CAUSES[name], PLACES[wire][name], turns)] if turns else []
    assert found(diagnosis) == expected
    assert len(diagnosis.conversations) == (2 if name == "i" else 1)
    assert diagnosis.findings == [] or diagnosis.findings[0].recurs == (len(turns) > 1)


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_for_a_server_that_parses_schemas(shared_dir: Path, wire: str, name: str) -> None:
    diagnosis = diagnose_log(log(shared_dir, wire, name), parse_target("anthropic"))
    turns = [] if name in ("g", "k") else break_turns(shared_dir, wire, name)
    assert found(diagnosis) == ([(CAUSES[name], PLACES[wire][name], turns)] if turns else [])
    assert not diagnosis.suspicions


# -- with a renderer: exact ---------------------------------------------------------------------------------------


class Changing:
    """A layout that rewrites messages before it renders them, as many chat templates do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._layout = ChatMLRenderer()

    def shown(self, messages: tuple[Message, ...]) -> Iterator[Message]:
        yield from messages

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        prompt = self._layout.render(
            request.model_copy(update={"messages": tuple(self.shown(request.messages))})
        )
        return replace(prompt, request=request)

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        return self._layout.reply_ids(prompt, reply)


class Trimming(Changing):
    """Strips the white space around every content."""

    def shown(self, messages: tuple[Message, ...]) -> Iterator[Message]:
        for message in messages:
            yield message.model_copy(update={"content": message.text.strip()})


class Forgetting(Changing):
    """Shows reasoning only behind the last user message."""

    def shown(self, messages: tuple[Message, ...]) -> Iterator[Message]:
        last = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        for index, message in enumerate(messages):
            yield message if index > last else message.model_copy(update={"reasoning": None})


@cache
def plain() -> Target:
    target = parse_target("chatml")
    assert target.renderer is not None
    return target


def lost_by_prefix(calls: list[Exchange], renderer: Any) -> dict[int, int]:
    """Turn (1-based) to tokens of the previous prompt outside the longest common prefix: every prompt rendered afresh."""
    lost: dict[int, int] = {}
    previous: TokenIds | None = None
    for turn, call in enumerate(calls, start=1):
        ids = renderer.render(read_request(call.api, call.request)).token_ids
        if previous is not None:
            limit = min(len(previous), len(ids))
            apart = np.flatnonzero(previous[:limit] != ids[:limit])
            lost[turn] = len(previous) - (int(apart[0]) if len(apart) else limit)
        previous = ids
    return lost


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "i"])
def test_tokens_under_a_renderer(shared_dir: Path, wire: str, name: str) -> None:
    calls = log(shared_dir, wire, name)
    diagnosis = diagnose_log(calls, plain())
    turns = break_turns(shared_dir, wire, name)
    assert found(diagnosis) == ([(CAUSES[name], PLACES[wire][name], turns)] if turns else [])
    truth = lost_by_prefix(calls, plain().renderer)
    assert sorted(turn for turn, tokens in truth.items() if tokens) == turns
    assert sum(finding.loss.lost or 0 for finding in diagnosis.findings) == sum(truth.values())
    assert diagnosis.conversations[0].lost == sum(truth.values())
    for finding in diagnosis.findings:
        assert 0 <= (finding.loss.again or 0) <= (finding.loss.lost or 0) + 400


@pytest.mark.parametrize("wire", FORMATS)
def test_two_conversations_under_a_renderer(shared_dir: Path, wire: str) -> None:
    diagnosis = diagnose_log(log(shared_dir, wire, "i"), plain())
    assert not diagnosis.findings
    assert [conversation.lost for conversation in diagnosis.conversations] == [0, 0]


@pytest.mark.parametrize("wire", FORMATS)
def test_a_trailing_space_breaks_only_layouts_that_keep_it(shared_dir: Path, wire: str) -> None:
    calls = log(shared_dir, wire, "j")
    assert found(diagnose_log(calls, plain()))[0][2] == [6]
    assert not diagnose_log(calls, Target("trimming", Trimming("trimming"))).findings


@pytest.mark.parametrize("wire", FORMATS)
def test_a_template_that_drops_old_reasoning_breaks_an_append_only_log(shared_dir: Path, wire: str) -> None:
    calls = log(shared_dir, wire, "l")
    assert not diagnose_log(calls, plain()).findings
    renderer = Forgetting("forgetting")
    diagnosis = diagnose_log(calls, Target("forgetting", renderer))
    (finding,) = diagnosis.findings
    assert (finding.cause, finding.turns, finding.info.blame) == ("template_made", [5], "template")
    assert finding.place is not None
    assert finding.place.split(".")[0] in ("messages[2]", "messages[1]")
    truth = lost_by_prefix(calls, renderer)
    assert finding.loss.lost == truth[6] > 500
    assert finding.loss.exact is plain().renderer.render(read_request(calls[0].api, calls[0].request)).exact
