"""What a turn's prompt costs when only its new part is rendered and encoded, beside rendering and encoding all of it.

    python tests/bench/rendering.py           # the table: every turn in full as well
    python tests/bench/rendering.py GGUF …    # the same for the templates and vocabularies of GGUF files

A session of 200 turns grows to about 150,000 tokens: code, tool calls, results, notes. Each turn is rendered from the prompt
before it; the baseline renders and encodes the same request from nothing, in the same process, with warm caches, right after. Both
are processor time. ``total``: all turns. ``last``: thirty more turns of 400 tokens behind the whole session, one after the other, then
one of them in full, and all of that ten times, so that a busy machine disturbs both sides alike; the fastest on both sides. The claims:
total at most 1/20, last at most 1/100.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from time import thread_time

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from agentctx.messages import Message, Request, Tool, ToolCall
from agentctx.rendering import Prompt, Renderer, load_renderer
from agentctx.rendering.template_renderer import TemplateRenderer
from agentctx.rendering.templates import ChatTemplate
from agentctx.rendering.tokenizer import embedded_tokenizer, with_tokens
from tests.bench.timed_tokenizer import WORDS

TURNS, TOKENS = 200, 150_000
LAST_TURNS, LAST_TOKENS = 30, 400
MOST_TOTAL, MOST_LAST = 1 / 20, 1 / 100
TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
_WORDS = WORDS[:12]


def template_renderer() -> TemplateRenderer:
    """A template like Qwen's, with the embedded vocabulary."""
    tokens = (
        "<|im_start|>",
        "<|im_end|>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    )
    tokenizer = with_tokens(embedded_tokenizer(), tokens)
    return TemplateRenderer(ChatTemplate(TEMPLATE), tokenizer, name="template", now=datetime(2026, 1, 1))


RENDERERS = {"built-in layout": lambda: load_renderer("chatml"), "chat template": template_renderer}


def requests(renderer: Renderer, turns: int = TURNS, tokens: int = TOKENS) -> Iterator[Request]:
    """The session's requests, turn by turn, and thirty more with 400 new tokens each. Sizes are the tokenizer's own count."""
    rng = random.Random(5)
    tools = tuple(
        Tool.of(
            name,
            f"{name} something in the workspace.",
            {"type": "object", "properties": {"path": {"type": "string"}}},
        )
        for name in ("read", "edit", "run", "search")
    )

    def text(size: int) -> str:
        out: list[str] = []
        have = 0
        while have < size:
            line = "    " * rng.randrange(4) + " ".join(
                rng.choice(
                    (
                        rng.choice(_WORDS),
                        f"{rng.choice(_WORDS)}_{rng.randrange(99)}",
                        str(rng.randrange(10**6)),
                        "=",
                        "(x)",
                        "→ 漢字",
                    )
                )
                for _ in range(8)
            )
            out.append(line)
            have += renderer.count(line + "\n")
        return "\n".join(out)

    messages = [Message(role="system", content=text(1_500)), Message(role="user", content=text(100))]
    yield Request(tools=tools, messages=tuple(messages))
    each = (tokens - 1_700) // (turns - 1)
    for number in range(turns - 1 + LAST_TURNS):
        size = each if number < turns - 1 else LAST_TOKENS
        call = ToolCall(
            id=f"call{number:05d}", name="read", arguments=f'{{"path": "src/{rng.choice(_WORDS)}.py"}}'
        )
        messages.append(Message(role="assistant", content=text(40), tool_calls=(call,)))
        result = text(max(20, size - 110))
        messages.append(Message(role="tool", content=result, tool_call_id=call.id, notes=(f"turn {number}",)))
        yield Request(tools=tools, messages=tuple(messages))


@dataclass(frozen=True)
class Row:
    """Seconds of processor time. ``full``: of the sampled turns, times the step between them."""

    name: str
    turns: int
    tokens: int
    new_tokens: int
    incremental: float
    full: float
    last_incremental: float
    last_full: float

    @property
    def total_ratio(self) -> float:
        return self.incremental / self.full

    @property
    def last_ratio(self) -> float:
        return self.last_incremental / self.last_full


def measure(name: str, renderer: Renderer, *, step: int = 1) -> Row:
    """Run the session. ``step``: render every so manieth turn in full as well, from the middle of the first step on."""
    previous: Prompt | None = None
    incremental = full = 0.0
    every = list(requests(renderer))
    session, last = every[:-LAST_TURNS], every[-LAST_TURNS:]
    for number, request in enumerate(session):
        start = thread_time()
        prompt = renderer.render(request, previous)
        incremental += thread_time() - start
        if number % step == step // 2:
            start = thread_time()
            whole = renderer.render(request)
            full += (thread_time() - start) * step
            same(prompt, whole)
        previous = prompt
    assert previous is not None
    tokens = len(previous)
    fast: list[float] = []
    slow: list[float] = []
    for number in range(2, LAST_TURNS, 3):
        prompts = [previous]
        for request in last:
            start = thread_time()
            prompts.append(renderer.render(request, prompts[-1]))
            fast.append(thread_time() - start)
        start = thread_time()
        whole = renderer.render(last[number])
        slow.append(thread_time() - start)
        same(prompts[number + 1], whole)
    new = [len(after) - len(before) for before, after in pairwise(prompts)]
    return Row(
        name, len(session), tokens, sorted(new)[LAST_TURNS // 2], incremental, full, min(fast), min(slow)
    )


def same(left: Prompt, right: Prompt) -> None:
    """Both ways give one prompt."""
    assert left.text == right.text
    assert left.spans == right.spans
    assert (left.token_ids == right.token_ids).all()


def table(rows: list[Row]) -> str:
    lines = [
        "| renderer | turns | tokens | all turns, ms | in full, ms | ratio | last turn | ms | in full, ms | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.name} | {row.turns} | {row.tokens:,} | {row.incremental * 1000:,.0f} | {row.full * 1000:,.0f} "
        f"| 1/{1 / row.total_ratio:.0f} | {row.new_tokens:,} tokens | {row.last_incremental * 1000:.2f} "
        f"| {row.last_full * 1000:.0f} | 1/{1 / row.last_ratio:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    files = {Path(name).stem: load_renderer(name) for name in sys.argv[1:]}
    chosen = files or {name: make() for name, make in RENDERERS.items()}
    print(table([measure(name, renderer) for name, renderer in chosen.items()]))
