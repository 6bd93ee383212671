"""Example 13: what a history policy makes the server process again, over twenty turns of an agent.

A fixed prefix of 2,000 tokens, then a tool call and its result of together 400 tokens a turn. Every word is one token.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from agentctx.history import History
from agentctx.messages import Request, Tool
from agentctx.policies import parse_policy
from agentctx.rendering.prompt import TokenIds, common_prefix_length

TURNS = 20


class Words:
    """A tokenizer with one token for each word, and no chat template."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def count(self, text: str) -> int:
        return len(text.split())

    def render(self, request: Request) -> TokenIds:
        texts = [f"{tool.name} {tool.description}" for tool in request.tools]
        for message in request.messages:
            calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
            texts += [message.text_with_notes, *calls]
        words = " ".join(texts).split()
        return np.array([self._ids.setdefault(word, len(self._ids)) for word in words], np.int32)


def replay(policy_name: str) -> tuple[list[int], int]:
    """Tokens processed in each turn, and the length of the last prompt."""
    policy, tokenizer, fresh = parse_policy(policy_name), Words(), count()

    def text(tokens: int) -> str:
        return " ".join(f"w{next(fresh)}" for _ in range(tokens))

    tools = [Tool(name=f"tool_{i}", description=text(99), parameters_json="") for i in range(10)]
    history = History(system=text(1000), tools=tools)
    processed: list[int] = []
    before = np.empty(0, np.int32)
    for turn in range(TURNS):
        call = history.tool_call(text(1), text(49), id=f"call_{turn}")
        history.tool_result(call, text(350))
        prompt = tokenizer.render(policy.turn(history, tokenizer.count).request)
        processed.append(len(prompt) - common_prefix_length(before, prompt))
        before = prompt
    return processed, len(before)


print(f"{'policy':<24} {'processed':>9} {'worst turn':>10} {'turn 13':>7} {'final prompt':>12}")
for name in ("append-only", "keep-last:5", "summarize-at:13,12,300"):
    processed, final = replay(name)
    print(f"{name:<24} {sum(processed):>9} {max(processed):>10} {processed[12]:>7} {final:>12}")
