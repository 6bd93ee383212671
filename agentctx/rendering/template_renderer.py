"""TemplateRenderer: a chat template and a tokenizer, rendering exactly what a server would read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import numpy as np

from agentctx.common_ends import common_start
from agentctx.errors import UsageError
from agentctx.messages import Message, Request
from agentctx.rendering.incremental import Encoded, encode_further
from agentctx.rendering.prompt import GrowingPrompt, Prompt, TokenIds
from agentctx.rendering.sources import DEFAULT, WITH_TOOLS, ModelSource, token_like
from agentctx.rendering.spans import Mapped, map_spans
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.templates.conversation import Converter, Prepared
from agentctx.rendering.templates.profile import TemplateProfile, read_profile
from agentctx.rendering.templates.template import ChatTemplate, Dialect, Rendering
from agentctx.rendering.tokenizer import TiktokenTokenizer, Tokenizer, embedded_tokenizer, with_tokens
from agentctx.rendering.written import Written

ArgumentForm = Literal["mapping", "raw"]


@dataclass(frozen=True, slots=True)
class _State:
    """What the next prompt of the conversation can take over."""

    renderer: TemplateRenderer
    prepared: Prepared
    rendering: Rendering
    encoded: Encoded
    offset: int
    tail: int


class TemplateRenderer:
    """Renders requests with a chat template, as the server that the template came from does.

    ``keywords``: variables for the template (``enable_thinking``, …); a request's own ``template_kwargs_json`` goes before them.
    ``arguments``: form of tool-call arguments; by default what the template takes, a mapping where it takes both (``TemplateProfile``).
    ``now``: the moment that ``strftime_now`` tells; it stays fixed, so that equal requests give equal prompts.
    ``bos``/``add_bos``: what the server puts in front when the template doesn't. ``with_tools``: another template, for requests with tools.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        with_tools: ChatTemplate | None = None,
        name: str,
        now: datetime,
        keywords: Mapping[str, Any] | None = None,
        arguments: ArgumentForm | None = None,
        bos: str = "",
        add_bos: bool = False,
        blank_descriptions: bool = False,
    ) -> None:
        self.template = template
        self.with_tools = with_tools or template
        self.tokenizer = tokenizer
        self.name = name
        self.now = now
        self.keywords = dict(keywords or {})
        self._arguments = arguments
        self._bos = bos if add_bos else ""
        self._blank_descriptions = blank_descriptions

    @cached_property
    def profile(self) -> TemplateProfile:
        """The forms that the template takes, found by trying it once."""
        return self._profile_of(self.template)

    def _profile_of(self, template: ChatTemplate) -> TemplateProfile:
        found = read_profile(template)
        return found if self._arguments is None else replace(found, arguments=self._arguments)

    @cached_property
    def _converters(self) -> tuple[Converter, Converter]:
        """For requests without tools, and with."""
        plain = Converter(self.profile, blank_descriptions=self._blank_descriptions)
        if self.with_tools is self.template:
            return plain, plain
        return plain, Converter(
            self._profile_of(self.with_tools), blank_descriptions=self._blank_descriptions
        )

    def _prepare(self, request: Request, previous: Prepared | None = None) -> Prepared:
        plain, with_tools = self._converters
        converter = with_tools if request.tools else plain
        usable = previous is not None and (
            plain is with_tools or bool(previous.request.tools) == bool(request.tools)
        )
        return converter.prepare(request, previous if usable else None)

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        return self.tokenizer.count(text)

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        """Render with the generation prompt at the end.

        Costs time in what was added since ``previous`` as far as the template lets one prove that the rest is the same.
        Raises ``RenderError`` when the template refuses the request or runs over its limits.
        """
        state = self._state_of(previous)
        prepared = self._prepare(request, state.prepared if state else None)
        rendering = self._rendering(prepared, True, state)
        text, offset = self._begun(rendering.written)
        known = None
        if state is None or previous is None:
            encoded, _ = encode_further(self.tokenizer, text, None)
        else:
            same = rendering.same_chars + offset if offset == state.offset else 0
            encoded, unchanged = encode_further(self.tokenizer, text, state.encoded, same)
            runs, same_runs = state.rendering.runs, rendering.same_runs
            known = Mapped(
                previous.request, runs, state.offset, previous.spans, unchanged, state.tail, same_runs
            )
        spans, tail = map_spans(request, rendering.runs, offset, len(text), encoded.starts, known)
        return GrowingPrompt(
            token_ids=encoded.ids,
            text=text,  # type: ignore[arg-type]
            spans=spans,
            request=request,
            exact=self.tokenizer.exact,
            starts=encoded.starts,
            state=_State(self, prepared, rendering, encoded, offset, tail),
        )

    def render_text(self, request: Request, *, add_generation_prompt: bool = True) -> str:
        """The text alone, without what the server puts in front."""
        prepared = self._prepare(request)
        return self._rendering(prepared, add_generation_prompt, None).text

    def render_changed(
        self,
        request: Request,
        change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
        keywords: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text if someone changes the messages, in the form that the template takes, before it sees them.

        ``keywords`` go before the renderer's own and the request's. Raises ``RenderError`` like ``render``.
        """
        conversation = self._prepare(request).conversation
        template = self.with_tools if request.tools else self.template
        text = template.render_messages(
            change(conversation.messages),
            conversation.tools,
            add_generation_prompt=True,
            now=self.now,
            **{**self._keywords_of(request), **(keywords or {})},
        )
        return self.with_beginning(text)

    def with_beginning(self, text: str) -> str:
        """The text with what the server puts in front, if it isn't there."""
        return str(self._begun(Written(text))[0])

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        """Tokens of the reply as generated behind ``prompt``, end token included.

        They are read off the template's own rendering of the reply. Where the template doesn't repeat what it put in front of the
        reply (an opened thinking block), the reply's own text from its first field on is taken.
        """
        state = self._state_of(prompt)
        before = state.prepared if state else self._prepare(prompt.request)
        messages = (*prompt.request.messages, reply)
        prepared = self._prepare(prompt.request.model_copy(update={"messages": messages}), before)
        rendering = self._rendering(prepared, False, state)
        begun, offset = self._begun(rendering.written)
        text = str(begun)
        # What is as it was without the reply can't come from it.
        first = common_start(state.rendering.runs, rendering.runs, rendering.same_runs) if state else 0
        own = [
            (a + offset, b + offset)
            for a, b, source in rendering.runs[first:]
            if source[:2] == ("message", len(messages) - 1)
        ]
        end = self._end_of_reply(text, own[-1][1] if own else min(len(prompt.text), len(text)))
        if text.startswith(prompt.text) and state is not None:
            cut = self.tokenizer.cut(text, len(prompt.text))
            asked = prompt.token_ids[np.searchsorted(state.encoded.starts, np.int32(cut)) :]
            joined = self.tokenizer.encode(text[cut:end])
            if np.array_equal(joined[: len(asked)], asked):
                return joined[len(asked) :]
            return self.tokenizer.encode(text[len(prompt.text) : end])
        start = own[0][0] if own else end
        written = text[start:end]
        if reply.reasoning and not any(
            source[2] == "reasoning" for _, _, source in rendering.runs[-len(own) :]
        ):
            written = self._thought(prompt.text, reply.reasoning) + written
        return self.tokenizer.encode(written)

    @cached_property
    def _special(self) -> SpecialTokens:
        return SpecialTokens(self.tokenizer.special_tokens)

    def _state_of(self, prompt: Prompt | None) -> _State | None:
        state = prompt.state if prompt is not None else None
        return state if isinstance(state, _State) and state.renderer is self else None

    def _rendering(self, prepared: Prepared, generation: bool, state: _State | None) -> Rendering:
        template = self.with_tools if prepared.request.tools else self.template
        return template.render(
            prepared.conversation,
            add_generation_prompt=generation,
            now=self.now,
            arguments=self._keywords_of(prepared.request),
            previous=state.rendering if state else None,
            same_messages=prepared.kept if state else 0,
        )

    def _keywords_of(self, request: Request) -> dict[str, Any]:
        given = request.params.template_kwargs_json
        return {**self.keywords, **json.loads(given)} if given else self.keywords

    def _begun(self, text: Written) -> tuple[Written, int]:
        """The text with the server's own beginning, and how far that moved it."""
        if not self._bos or text.startswith(self._bos):
            return text, 0
        return text.begun(self._bos), len(self._bos)

    def _end_of_reply(self, text: str, start: int) -> int:
        """End of the token that ends a reply whose last field ends at ``start``."""
        ending = text[start:]
        specials = [
            (begin, end, ending[begin:end]) for begin, end, token in self._special.split(ending) if token >= 0
        ]
        ends = {str(self.template.variables.get("eos_token") or ""), *_END_TOKENS}
        for _, end, token in specials:
            if token in ends:
                return start + end
        return start + specials[-1][1] if specials else len(text.rstrip())

    def _thought(self, prompt: str, reasoning: str) -> str:
        """A thinking block that the template doesn't keep, as it was generated."""
        if "</think>" not in self.template.source:
            return ""
        opened = prompt.rstrip().endswith("<think>")
        return f"{'' if opened else '<think>' + chr(10)}{reasoning}\n</think>\n\n"


def renderer_of(
    source: ModelSource,
    *,
    name: str,
    now: datetime,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    keywords: Mapping[str, Any] | None = None,
    arguments: str | None = None,
) -> TemplateRenderer:
    """The renderer for a source; ``tokenizer`` goes before the source's own, and the embedded vocabulary stands in for a missing one.

    Raises ``UsageError`` for a template name that the source doesn't have, ``RenderError`` for a template that doesn't compile.
    """
    if arguments not in (None, "mapping", "raw"):
        raise UsageError(f"arguments must be mapping or raw, not {arguments!r}")

    def compiled(which: str) -> ChatTemplate:
        text = source.template(which)
        relaxed = source.tokenizer is None or source.llama_cpp
        dialect: Dialect = "relaxed" if relaxed and ChatTemplate.needs_relaxed(text) else "transformers"
        return ChatTemplate(text, name=f"{source.name}", variables=source.variables, dialect=dialect)

    main = compiled(template or DEFAULT)
    with_tools = compiled(WITH_TOOLS) if template is None and WITH_TOOLS in source.templates else None
    chosen = tokenizer or source.tokenizer
    if chosen is None or (isinstance(chosen, TiktokenTokenizer) and chosen is not source.tokenizer):
        chosen = with_tokens(chosen or embedded_tokenizer(), token_like(main.source))
    return TemplateRenderer(
        main,
        chosen,
        with_tools=with_tools,
        name=name,
        now=now,
        keywords={**source.keywords_at(now), **(keywords or {})},
        arguments="raw" if arguments == "raw" else "mapping" if arguments == "mapping" else None,
        bos=source.bos,
        add_bos=source.add_bos,
        blank_descriptions=source.llama_cpp,
    )


_END_TOKENS = frozenset(
    (
        *(
            "<|im_end|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
            "<end_of_turn>",
            "<turn|>",
        ),
        *(
            "<|endoftext|>",
            "<|end_of_text|>",
            "</s>",
            "[EOT]",
            "[e~[",
            "<｜end▁of▁sentence｜>",
            "<|END_OF_TURN_TOKEN|>",
        ),
    )
)
