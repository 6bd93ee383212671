"""Finished prompts (text or token ids) in the layouts of several models: changes that have no structure to be read off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from agentctx.diagnosis import Exchange, diagnose_log

SYSTEM = "You steer the greenhouse of a botanical garden. You read sensors, open vents and keep a diary.\nBe brief."
TOOLS = [
    {"name": "read_sensor", "parameters": {"house": "string", "kind": "string"}},
    {"name": "open_vent", "parameters": {"house": "string", "share": "number"}},
    {"name": "write_diary", "parameters": {"text": "string"}},
]
TURNS = (
    ("How warm is the palm house, and how humid?", "The palm house has 24 degrees and 81 percent, as it should."),
    ("And the orchids? They looked dry to me this morning.", "The orchids stand at 62 percent, a little dry indeed.\n"),
    ("Open the vents there a little, and tell me what you did.", "I opened two vents by a tenth; the humidity will rise."),
    ("Write that into the diary, with the figures from before.", "Written: orchids 62 percent, two vents by a tenth."),
    ("Then look after the cactus house. Is it still too cold?", "The cactus house has 11 degrees, that is cold but safe."),
    ("Good. Heat it to fourteen degrees until the evening.", "The heating is on; fourteen degrees will take an hour."),
)  # fmt: skip
Said = tuple[str, str]


@dataclass
class Talk:
    """What a prompt is made of; a change makes another one of it."""

    system: str = SYSTEM
    tools: str = field(default_factory=lambda: "\n".join(map(json.dumps, TOOLS)))
    turns: list[Said] = field(default_factory=list)
    ask: str = ""


LAYOUTS: dict[str, tuple[str, str, str]] = {
    "chatml": ("<|im_start|>system\n{}\n{}<|im_end|>\n", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "{}<|im_end|>\n"),
    "llama 3": ("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{}\n{}<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "{}<|eot_id|>"),
    "gemma": ("<bos><start_of_turn>user\n{}\n{}\n\n", "{}<end_of_turn>\n<start_of_turn>model\n", "{}<end_of_turn>\n<start_of_turn>user\n"),
    "plain": ("{}\n{}\n", "\nUser: {}\nAssistant:", " {}\n"),
}  # fmt: skip


def prompt(talk: Talk, layout: str) -> str:
    head, question, answer = LAYOUTS[layout]
    text = head.format(talk.system, talk.tools)
    for asked, said in talk.turns:
        text += question.format(asked) + answer.format(said)
    return text + question.format(talk.ask)


Change = Callable[[Talk, int], None]


def edited(talk: Talk, n: int) -> None:
    talk.turns[1] = (talk.turns[1][0].replace("dry", "pale"), talk.turns[1][1])


def inserted(talk: Talk, n: int) -> None:
    talk.turns.insert(1, ("Mind that the garden closes at six today.", "I will."))


def trimmed(talk: Talk, n: int) -> None:
    del talk.turns[:2]


def summed_up(talk: Talk, n: int) -> None:
    said = (
        "Summary of the conversation so far: palm house 24 degrees and 81 percent; orchids dry at 62 percent."
    )
    talk.turns[:3] = [(said, "Understood.")]


def stripped(talk: Talk, n: int) -> None:
    talk.turns = [(asked, said.strip()) for asked, said in talk.turns]


def answer_changed(talk: Talk, n: int) -> None:
    talk.turns[0] = (talk.turns[0][0], talk.turns[0][1].replace("24 degrees", "warm air"))


def tools_turned(talk: Talk, n: int) -> None:
    talk.tools = "\n".join(json.dumps(tool) for tool in reversed(TOOLS))


def tool_added(talk: Talk, n: int) -> None:
    talk.tools += "\n" + json.dumps(
        {"name": "water_bed", "parameters": {"house": "string", "litres": "number"}}
    )


def clock(talk: Talk, n: int) -> None:
    talk.system = f"It is 2026-03-0{n + 1}T10:0{n}:00Z.\n{SYSTEM}"


def tag(talk: Talk, n: int) -> None:
    talk.system = f"[run 7f3a{n}c9e{n}b12d]\n{SYSTEM}"


CHANGES: dict[str, tuple[Change, int, frozenset[str]]] = {
    "an old question is reworded": (edited, 3, frozenset({"message_edited"})),
    "an exchange slips in": (inserted, 3, frozenset({"message_inserted"})),
    "the oldest exchanges are dropped": (trimmed, 4, frozenset({"history_trimmed", "message_removed"})),
    "a summary": (summed_up, 4, frozenset({"compaction"})),
    "line ends of answers are stripped": (stripped, 3, frozenset({"whitespace"})),
    "an answer is changed": (answer_changed, 3, frozenset({"message_edited"})),
    "the tools are turned around": (tools_turned, 3, frozenset({"tool_order", "json_key_order", "message_edited", "message_inserted", "message_removed"})),
    "a tool joins": (tool_added, 3, frozenset({"tool_added", "system_moved", "message_inserted"})),
    "a clock": (clock, 0, frozenset({"volatile_text"})),
    "a tag": (tag, 0, frozenset({"random_value"})),
}  # fmt: skip


def log(layout: str, change: Change | None, since: int, replies: bool) -> list[Exchange]:
    calls = []
    for number, (asked, said) in enumerate(TURNS):
        talk = Talk(turns=list(TURNS[:number]), ask=asked)
        if change is not None and number >= since:
            change(talk, number)
        generated = f" {said}" if layout == "plain" else said
        response = {"content": generated} if replies else None
        body = {"prompt": prompt(talk, layout), "n_predict": 200, "cache_prompt": True}
        at = 1_772_359_200.0 + 86_460 * number if change is clock else 1_772_359_200.0 + 30 * number
        calls.append(Exchange("llama.completion", body, response, at, line=number + 1))
    return calls


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replies", [True, False], ids=["replies", "requests"])
def test_the_base_is_clean(layout: str, replies: bool) -> None:
    diagnosis = diagnose_log(log(layout, None, 0, replies))
    assert (diagnosis.clean, diagnosis.suspicions, diagnosis.conversation_count) == (True, [], 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replies", [True, False], ids=["replies", "requests"])
@pytest.mark.parametrize("kind", CHANGES)
def test_change(kind: str, replies: bool, layout: str) -> None:
    change, since, causes = CHANGES[kind]
    calls = log(layout, change, since, replies)
    turn = max(1, since)
    before, after = calls[turn - 1].request["prompt"], calls[turn].request["prompt"]
    if replies:
        before += calls[turn - 1].response["content"]  # type: ignore[index]
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    diagnosis = diagnose_log(calls)
    said = [(f.cause, f.turn, f.place) for f in diagnosis.findings]
    assert len(said) == 1, said
    assert said[0][1:] == (turn, f"prompt@{at}")
    assert said[0][0] in causes, (said, diagnosis.findings[0].was, diagnosis.findings[0].now)
    assert diagnosis.conversation_count == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_requests_in_between_are_no_break(layout: str) -> None:
    """A title for the conversation, another conversation under the same system prompt, a retry."""
    calls = log(layout, None, 0, True)
    title = Talk(
        system="You give conversations a title of at most six words.", tools="", ask=" / ".join(TURNS[0])
    )
    other = Talk(ask="Which plants may stand in full sun in July? Name five of them.")
    mixed = [calls[0], calls[0], calls[1]]
    for number, talk in enumerate((title, other)):
        body = {"prompt": prompt(talk, layout)}
        mixed += [
            Exchange("llama.completion", body, {"content": "Done."}, 1_772_359_300.0),
            calls[2 + number],
        ]
    diagnosis = diagnose_log([*mixed, *calls[4:]])
    assert (diagnosis.findings, diagnosis.suspicions) == ([], [])


def test_token_ids() -> None:
    """Ids instead of text: edited, trimmed, grown."""
    rng = np.random.default_rng(7)
    ids = [int(number) for number in rng.integers(0, 32_000, 900)]

    def calls(third: list[int]) -> list[Exchange]:
        prompts = [ids[:400], ids[:600], third]
        replies = [ids[400:430], ids[600:640], []]
        return [
            Exchange("llama.completion", {"prompt": given}, {"tokens": made})
            for given, made in zip(prompts, replies, strict=True)
        ]

    assert diagnose_log(calls(ids[:900])).clean
    edited = [*ids[:250], 31_999, *ids[251:900]]
    (finding,) = diagnose_log(calls(edited)).findings
    assert (finding.cause, finding.turn, finding.place) == ("message_edited", 2, "prompt[250]")
    (finding,) = diagnose_log(calls([*ids[:100], *ids[300:900]])).findings
    assert (finding.cause, finding.turn, finding.place) == ("history_trimmed", 2, "prompt[100]")
