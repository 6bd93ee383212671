"""Five forms in which a model may read a request, and the check that each of them only grows.

The two templates are written here in the manner of Qwen and Llama 3: ChatML with tools in the system message and results
grouped in a user message, and header tokens with trimmed contents and results in an ``ipython`` message. For the APIs whose
layout is not public the bytes of the exported items stand for the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache

import numpy as np
import tiktoken

from agentctx.interchange import anthropic, openai_responses
from agentctx.messages import Message, Request, canonical_json
from agentctx.rendering.chatml import ChatMLRenderer
from agentctx.rendering.embedded import embedded_encoding
from agentctx.rendering.prompt import Prompt, Renderer, TokenIds
from agentctx.rendering.template_renderer import TemplateRenderer
from agentctx.rendering.templates import ChatTemplate
from agentctx.rendering.tokenizer import TiktokenTokenizer

_CONTENT = """{%- macro text(content) -%}
{%- if content is string %}{{ content }}{% else %}
{%- for part in content or [] %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif -%}
{%- endmacro -%}
"""

QWEN_STYLE = (
    _CONTENT
    + """{%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages and messages[0].role == 'system' %}{{ text(messages[0].content) + '\n\n' }}{% endif %}
{{- '# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}
{%- elif messages and messages[0].role == 'system' %}{{ '<|im_start|>system\n' + text(messages[0].content) + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + text(message.content) + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
{%- set said = text(message.content) %}{{ said }}
{%- for call in message.tool_calls or [] %}
{{- ('' if loop.first and not said else '\n') + '<tool_call>\n' }}{{ call.function | tojson }}{{ '\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\n' + text(message.content) + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
)

LLAMA3_STYLE = (
    _CONTENT
    + """{{- '<|begin_of_text|>' }}
{%- if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}
{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + (text(message.content) | trim) }}
{%- for call in message.tool_calls or [] %}{{ '<|python_tag|>' }}{{ call.function | tojson }}{% endfor %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
)

_LLAMA_TOKENS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
_QWEN_TOKENS = ("<|im_start|>", "<|im_end|>")

_CUTS = {  # the text of a generation prompt, which gives way when the model did not answer
    "qwen-style": "<|im_start|>assistant\n",
    "llama3-style": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "chatml": "<|im_start|>assistant<|im_sep|>",
}


def _tokenizer(specials: tuple[str, ...]) -> TiktokenTokenizer:
    base = embedded_encoding()
    ids = {text: base.n_vocab + number for number, text in enumerate(specials)}
    encoding = tiktoken.Encoding(
        name="embedded+specials",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens=ids,
    )
    return TiktokenTokenizer(encoding, exact=False)


@cache
def renderers() -> dict[str, Renderer]:
    """The three renderings with tokens."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    return {
        "chatml": ChatMLRenderer(),
        "qwen-style": TemplateRenderer(
            ChatTemplate(QWEN_STYLE), _tokenizer(_QWEN_TOKENS), name="qwen-style", now=now, arguments="raw"
        ),
        "llama3-style": TemplateRenderer(
            ChatTemplate(LLAMA3_STYLE),
            _tokenizer(_LLAMA_TOKENS),
            name="llama3-style",
            now=now,
            arguments="raw",
        ),
    }


def _anthropic_bytes(request: Request) -> bytes:
    body = anthropic.write(request)
    head = canonical_json([body.get("tools"), body.get("system")])
    return "\n".join([head, *map(canonical_json, body["messages"])]).encode()


def _responses_bytes(request: Request) -> bytes:
    body = openai_responses.write(request)
    head = canonical_json([body.get("tools"), body.get("instructions")])
    return "\n".join([head, *map(canonical_json, body["input"])]).encode()


EXPORTS: dict[str, Callable[[Request], bytes]] = {
    "anthropic": _anthropic_bytes,
    "responses": _responses_bytes,
}


class Renderings:
    """The five renderings of one conversation's requests, each checked against the one before it."""

    def __init__(self) -> None:
        self._prompts: dict[str, Prompt] = {}
        self._bytes: dict[str, bytes] = {}
        self._messages: tuple[Message, ...] = ()
        self._epoch = -1

    def check(self, request: Request, epoch: int) -> None:
        """Every rendering of a request in the same epoch extends the one before, and none is shorter than it."""
        same = epoch == self._epoch
        grown = len(request.messages) > len(self._messages)
        answered = grown and request.messages[len(self._messages)].role == "assistant"
        for name, renderer in renderers().items():
            before = self._prompts.get(name)
            prompt = renderer.render(request, before)
            if same and before is not None:
                old = before.token_ids
                if grown and not answered:
                    old = old[: len(old) - len(renderer.tokenizer.encode(_CUTS[name]))]
                assert len(prompt) > len(before) or not grown, name
                assert np.array_equal(prompt.token_ids[: len(old)], old), name
            self._prompts[name] = prompt
        for name, export in EXPORTS.items():
            data = export(request)
            if same and name in self._bytes:
                assert data.startswith(self._bytes[name]), name
                new = request.messages[len(self._messages) :]
                # A reply of nothing is a message that the API refuses to be sent: there it adds none.
                adds = not all(map(anthropic.says_nothing, new)) if name == "anthropic" else grown
                assert (len(data) > len(self._bytes[name])) == adds, name
            self._bytes[name] = data
        self._messages, self._epoch = request.messages, epoch

    def of(self, request: Request) -> tuple[list[TokenIds], list[bytes]]:
        """All five renderings, made from nothing."""
        tokens = [renderer.render(request).token_ids for renderer in renderers().values()]
        return tokens, [export(request) for export in EXPORTS.values()]

    def same_as_last(self, request: Request) -> bool:
        """Whether the five renderings of a request are those of the last one, to the byte."""
        tokens, exported = self.of(request)
        return [ids.tobytes() for ids in tokens] == [
            self._prompts[name].token_ids.tobytes() for name in renderers()
        ] and exported == [self._bytes[name] for name in EXPORTS]
