"""Lesson example 13: what each history policy makes a slot cache process again, turn by turn.

Tools and system prompt hold 2000 tokens, every turn adds a call and its result of together 400 tokens. The
renderer is a word tokenizer without a template, so that a message has exactly the tokens that it is given.
"""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import pytest

from agentctx.history import History
from agentctx.messages import Message, Request, Tool
from agentctx.policies import Policy, Turn, parse_policy
from agentctx.rendering.prompt import TokenIds, common_prefix_length

TURNS = 20


class WordTokenizer:
    """One token per word, each different word its own id."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in text.split()]

    def count(self, text: str) -> int:
        return len(text.split())

    def render(self, request: Request) -> TokenIds:
        ids: list[int] = []
        for tool in request.tools:
            ids += self.encode(tool.name)
            ids += self.encode(tool.description)
        for message in request.messages:
            ids += self.encode(message.text_with_notes)
            for call in message.tool_calls:
                ids += self.encode(call.name)
                ids += self.encode(call.arguments)
        return np.array(ids, dtype=np.int32)


def words(fresh: counter[int], n: int) -> str:
    return " ".join(f"w{next(fresh)}" for _ in range(n))


def replay(policy: Policy) -> tuple[list[int], list[int], list[Turn]]:
    """Processed tokens, prompt lengths and turns of the lesson's session under a policy."""
    tokenizer, fresh = WordTokenizer(), counter()
    tools = [Tool(name=f"tool_{i}", description=words(fresh, 99), parameters_json="") for i in range(10)]
    history = History(system=words(fresh, 1000), tools=tools)
    processed, lengths, turns = [], [], []
    slot = np.empty(0, dtype=np.int32)
    for turn in range(TURNS):
        call = history.tool_call(words(fresh, 1), words(fresh, 49), id=f"call_{turn}")
        history.tool_result(call, words(fresh, 350))
        answer = policy.turn(history, tokenizer.count)
        prompt = tokenizer.render(answer.request)
        processed.append(len(prompt) - common_prefix_length(slot, prompt))
        lengths.append(len(prompt))
        turns.append(answer)
        slot = prompt
    return processed, lengths, turns


def test_append_only() -> None:
    processed, lengths, turns = replay(parse_policy("append-only"))
    assert processed == [2400] + [400] * 19
    assert (sum(processed), max(processed), lengths[-1]) == (10000, 2400, 10000)
    assert all(turn.rewrites_at is None and not turn.dropped for turn in turns)


def test_keep_last_five_results() -> None:
    processed, lengths, turns = replay(parse_policy("keep-last:5"))
    assert processed == [2400] + [400] * 4 + [2000] * 15
    assert (sum(processed), max(processed), lengths[-1]) == (34000, 2400, 4000)
    assert [turn.rewrites_at for turn in turns] == [None] * 5 + [1] * 15
    assert [turn.rewritten for turn in turns] == [0] * 5 + [1600] * 15
    assert sum(item.tokens for item in turns[-1].dropped) == 15 * 400


@pytest.mark.parametrize("spec", ["summarize-at:13,12,300", "summarize-at:at=13,first=12,tokens=300"])
def test_one_summary_at_turn_13(spec: str) -> None:
    processed, lengths, turns = replay(parse_policy(spec))
    assert processed == [2400] + [400] * 11 + [700] + [400] * 7
    assert (sum(processed), max(processed), lengths[-1]) == (10300, 2400, 5500)
    assert [turn.compacted for turn in turns] == [turn == 12 for turn in range(TURNS)]
    assert [turn.rewritten for turn in turns] == [300 * (turn == 12) for turn in range(TURNS)]
    assert [turn.stand_in for turn in turns] == [turn >= 12 for turn in range(TURNS)]
    assert sum(item.tokens for item in turns[-1].dropped) == 12 * 400


def test_the_sliding_window_costs_what_keeping_five_results_costs() -> None:
    processed, _, _ = replay(parse_policy("window:5"))
    assert processed == replay(parse_policy("keep-last:5"))[0]


def test_clearing_in_place_breaks_at_the_cleared_result() -> None:
    """From turn 6 on, the newest four results, the cleared one's placeholder and the new turn are processed."""
    processed, _, turns = replay(parse_policy("clear-results:5"))
    placeholder = Message(role="tool", content=turns[-1].request.messages[2].content, tool_call_id="x").text
    again = len(placeholder.split()) + 5 * 400
    assert processed == [2400] + [400] * 4 + [again] * 15
