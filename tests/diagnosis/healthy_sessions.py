"""Random healthy agent sessions in the four wire formats: every request extends the one before it.

Texts are drawn from a seeded generator, so a session is named by its seed. Nothing here knows the diagnosis.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

from agentctx.diagnosis import Api, Exchange

WORDS = [
    "parser",
    "module",
    "timeout",
    "branch",
    "ledger",
    "invoice",
    "rounding",
    "cache",
    "merge",
    "commit",
    "header",
    "schema",
    "widget",
    "router",
    "queue",
    "latency",
    "budget",
    "region",
    "replica",
    "shard",
    "deploy",
    "rollback",
    "metric",
    "alert",
    "ticket",
    "refund",
    "garden",
    "compost",
    "shelf",
    "sensor",
    "thermostat",
    "window",
    "bracket",
    "frame",
    "torque",
    "handbook",
    "export",
    "column",
    "decimal",
    "minor",
    "currency",
    "archive",
    "cursor",
    "token",
    "stream",
    "retry",
    "backoff",
    "vendor",
]
WIRES: tuple[Api, ...] = ("openai.chat", "openai.responses", "anthropic.messages", "llama.completion")
START = 1_780_000_000.0


def sentence(rng: random.Random, low: int = 6, high: int = 18) -> str:
    """A sentence of random words, without digits."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(low, high))]
    return " ".join(words).capitalize() + "."


def paragraph(rng: random.Random, low: int = 3, high: int = 9) -> str:
    """Some sentences, with a line break here and there."""
    return "".join(
        sentence(rng) + rng.choice((" ", " ", "\n")) for _ in range(rng.randint(low, high))
    ).rstrip()


def identifier(rng: random.Random, prefix: str) -> str:
    """A call identifier as servers make them."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return prefix + "".join(rng.choice(alphabet) for _ in range(20))


@dataclass
class Step:
    """One model call: what the user or the tools said before it, and the reply."""

    user: str | None
    results: list[tuple[str, str, str]]  # id, name, text
    text: str
    reasoning: str
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    encrypted: str = ""


@dataclass
class Session:
    """A conversation: ``bodies[t]`` is the request of turn t, ``replies[t]`` the response to it."""

    api: Api
    bodies: list[dict[str, Any]]
    replies: list[dict[str, Any] | None]
    times: list[float]
    hint: str | None = None

    def exchanges(self) -> list[Exchange]:
        """The session as a log."""
        return [
            Exchange(self.api, body, reply, at, self.hint, line + 1)
            for line, (body, reply, at) in enumerate(zip(self.bodies, self.replies, self.times, strict=True))
        ]

    @property
    def key(self) -> str:
        """Where the items stand in a body."""
        return {"openai.responses": "input", "llama.completion": "prompt"}.get(self.api, "messages")


def tools(rng: random.Random, api: str) -> list[dict[str, Any]]:
    """Four to eight tools with schemas of several properties."""
    made = []
    for name in rng.sample(
        [f"{a}_{b}" for a in ("read", "list", "run", "find") for b in ("file", "job", "shop")],
        k=rng.randint(4, 8),
    ):
        properties = {
            word: {"type": rng.choice(("string", "integer")), "description": sentence(rng)}
            for word in rng.sample(WORDS, k=rng.randint(3, 5))
        }
        schema = {"type": "object", "properties": properties, "required": list(properties)[:2]}
        description = paragraph(rng, 1, 2)
        if api == "anthropic.messages":
            made.append({"name": name, "description": description, "input_schema": schema})
        elif api == "openai.responses":
            made.append({"type": "function", "name": name, "description": description, "parameters": schema})
        else:
            function = {"name": name, "description": description, "parameters": schema}
            made.append({"type": "function", "function": function})
    return made


def steps(rng: random.Random, count: int, names: list[str], prefix: str, reasoning: bool) -> list[Step]:
    """A run of model calls: tool calls, then an answer, then the user again."""
    made: list[Step] = []
    pending: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(count):
        user = None if pending else sentence(rng, 8, 30)
        results = [(ident, name, paragraph(rng, 2, 12)) for ident, name, _ in pending]
        calls = []
        if number + 1 < count and rng.random() < 0.8:
            calls = [
                (
                    identifier(rng, prefix),
                    rng.choice(names),
                    {w: sentence(rng, 2, 5) for w in rng.sample(WORDS, k=rng.randint(2, 3))},
                )
                for _ in range(rng.choice((1, 1, 1, 2)))
            ]
        made.append(
            Step(
                user,
                results,
                paragraph(rng, 1, 3) if not calls or rng.random() < 0.6 else "",
                paragraph(rng, 1, 4) if reasoning else "",
                calls,
                identifier(rng, "gAAAA") * 3,
            )
        )
        pending = calls
    return made


def make(
    seed: int,
    api: Api,
    *,
    turns: int | None = None,
    reasoning: bool = True,
    replies: bool = True,
    head: int | None = None,
) -> Session:
    """A healthy session. ``head``: the seed of tools and system prompt, where sessions share them."""
    rng = random.Random(seed)
    count = turns or rng.randint(4, 9)
    front = rng if head is None else random.Random(head)
    declared = tools(front, api)
    system = paragraph(front, 8, 20)
    names = [(tool.get("function") or tool)["name"] for tool in declared]
    prefix = "toolu_" if api == "anthropic.messages" else "call_"
    run = steps(rng, count, names, prefix, reasoning)
    build = {
        "openai.chat": _chat,
        "openai.responses": _responses,
        "anthropic.messages": _anthropic,
        "llama.completion": _completion,
    }[api]
    bodies, responses = build(run, system, declared)
    at, times = START + seed % 1000, []
    for _ in bodies:
        times.append(at)
        at += rng.randint(4, 40)
    return Session(api, bodies, responses if replies else [None] * len(bodies), times)


def _chat(run: list[Step], system: str, declared: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    bodies, replies = [], []
    for step in run:
        if step.user is not None:
            messages.append({"role": "user", "content": step.user})
        for ident, _, text in step.results:
            messages.append({"role": "tool", "tool_call_id": ident, "content": text})
        bodies.append(
            {
                "model": "gpt-4.1",
                "messages": copy.deepcopy(messages),
                "tools": copy.deepcopy(declared),
                "temperature": 0,
            }
        )
        reply: dict[str, Any] = {"role": "assistant", "content": step.text or None}
        if step.reasoning:
            reply["reasoning_content"] = step.reasoning
        if step.calls:
            reply["tool_calls"] = [
                {
                    "id": ident,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for ident, name, arguments in step.calls
            ]
        replies.append({"choices": [{"index": 0, "message": copy.deepcopy(reply)}]})
        messages.append(reply)
    return bodies, replies


def _responses(run: list[Step], system: str, declared: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    items: list[dict[str, Any]] = []
    bodies, replies = [], []
    for number, step in enumerate(run):
        if step.user is not None:
            content = [{"type": "input_text", "text": step.user}]
            items.append({"type": "message", "role": "user", "content": content})
        for ident, _, text in step.results:
            items.append({"type": "function_call_output", "call_id": ident, "output": text})
        bodies.append(
            {
                "model": "gpt-5.1",
                "instructions": system,
                "input": copy.deepcopy(items),
                "tools": copy.deepcopy(declared),
                "store": False,
            }
        )
        output: list[dict[str, Any]] = []
        if step.reasoning:
            output.append(
                {
                    "type": "reasoning",
                    "id": f"rs_{number}",
                    "summary": [],
                    "encrypted_content": step.encrypted,
                }
            )
        if step.text:
            content = [{"type": "output_text", "text": step.text, "annotations": []}]
            output.append(
                {
                    "type": "message",
                    "role": "assistant",
                    "id": f"msg_{number}",
                    "content": content,
                    "status": "completed",
                }
            )
        for ident, name, arguments in step.calls:
            output.append(
                {
                    "type": "function_call",
                    "id": f"fc_{ident[5:]}",
                    "call_id": ident,
                    "name": name,
                    "arguments": json.dumps(arguments),
                }
            )
        replies.append({"output": copy.deepcopy(output)})
        items.extend(output)
    return bodies, replies


def _anthropic(run: list[Step], system: str, declared: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    marker = {"cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = []
    bodies, replies = [], []
    for step in run:
        blocks: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": ident, "content": [{"type": "text", "text": text}]}
            for ident, _, text in step.results
        ]
        if step.user is not None:
            blocks.append({"type": "text", "text": step.user})
        messages.append({"role": "user", "content": blocks})
        sent = copy.deepcopy(messages)
        sent[-1]["content"][-1].update(marker)
        bodies.append(
            {
                "model": "claude-sonnet-4-5",
                "max_tokens": 4096,
                "system": [{"type": "text", "text": system, **marker}],
                "messages": sent,
                "tools": copy.deepcopy(declared),
            }
        )
        content: list[dict[str, Any]] = []
        if step.reasoning:
            content.append({"type": "thinking", "thinking": step.reasoning, "signature": step.encrypted})
        if step.text:
            content.append({"type": "text", "text": step.text})
        content += [
            {"type": "tool_use", "id": ident, "name": name, "input": arguments}
            for ident, name, arguments in step.calls
        ]
        replies.append({"role": "assistant", "content": copy.deepcopy(content), "stop_reason": "end_turn"})
        messages.append({"role": "assistant", "content": content})
    return bodies, replies


def _completion(run: list[Step], system: str, declared: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    prompt = f"<|im_start|>system\n{system}<|im_end|>\n"
    bodies, replies = [], []
    for step in run:
        for _, _, text in step.results:
            prompt += f"<|im_start|>tool\n{text}<|im_end|>\n"
        if step.user is not None:
            prompt += f"<|im_start|>user\n{step.user}<|im_end|>\n"
        prompt += "<|im_start|>assistant\n"
        bodies.append({"prompt": prompt, "n_predict": 512, "cache_prompt": True})
        reply = step.text or "Let me look."
        for _, name, arguments in step.calls:
            reply += f"\n<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        replies.append({"content": reply, "stop": True})
        prompt += f"{reply}<|im_end|>\n"
    return bodies, replies
