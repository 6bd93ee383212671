"""Subject: a chat template under test, and the forms of conversation that it takes.

``TemplateProfile`` says in which form a renderer should hand a request over. The battery needs to know more: what the template does
with each part, so that a case is not called clean because nothing of it was printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from agentctx.checks import material
from agentctx.checks.material import ArgumentForm, Json
from agentctx.errors import RenderError
from agentctx.rendering.templates.limits import DepthError, LimitError
from agentctx.rendering.templates.profile import reasoning_key
from agentctx.rendering.templates.template import ChatTemplate, Conversation, Rendering
from agentctx.rendering.templates.trail import Event, FollowedTemplate

MOST_SECONDS = 20.0  # of CPU time for all texts of one template; real ones take less than one
NOON = datetime(2025, 1, 15, 9, 30)
Handling = Literal["rendered", "ignored", "rejected", "raises"]


@dataclass(frozen=True, slots=True)
class Call:
    """One rendering: what the client sends, and when."""

    messages: Sequence[Json]
    tools: Sequence[Json] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    now: datetime = NOON


@dataclass(frozen=True, slots=True)
class Forms:
    """What the template takes.

    ``plain``: a chat of strings is rendered. ``parts``: content has to be a list of parts. ``needs_tools``: it renders with tools only.
    ``system``: what becomes of a system message. ``arguments``: form of tool-call arguments that comes out best; ``beside_calls``: content
    of a message with calls (``None``: some text has to stand there). ``calls``, ``results``, ``definitions``: what becomes of tool calls, their
    results and the tools. ``refusal``: why tool calls are not taken.
    """

    plain: bool
    parts: bool
    needs_tools: bool
    system: Handling
    arguments: ArgumentForm
    beside_calls: str | None
    definitions: Handling
    calls: Handling
    results: Handling
    reasoning_key: str
    refusal: str = ""

    @property
    def opening(self) -> list[Json]:
        """The system message, where the template takes one."""
        return [] if self.system == "rejected" else [material.SYSTEM]

    @property
    def least_tools(self) -> list[Json] | None:
        """The tools of a conversation that needs none."""
        return material.TOOLS if self.needs_tools else None


class Subject:
    """A template with everything that rendering it takes.

    ``variables``: special tokens; those that every template expects are filled in where the source doesn't name them.
    ``keywords``: how the template is used, in every call. ``relaxed``: templates may change lists and dicts; by default where the source does.
    Raises ``RenderError`` when the template is none.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        variables: Mapping[str, Any] | None = None,
        relaxed: bool | None = None,
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        self.keywords = dict(keywords or {})
        known = dict(variables or {})
        known.setdefault("bos_token", "<s>")
        known.setdefault("eos_token", "</s>")
        known.setdefault("pad_token", known["eos_token"])
        known.setdefault("unk_token", "<unk>")
        self.relaxed = ChatTemplate.needs_relaxed(source) if relaxed is None else relaxed
        self.template = ChatTemplate(
            source,
            name=name,
            variables=known,
            dialect="relaxed" if self.relaxed else "transformers",
        )
        self.name = name
        self._seconds = 0.0

    def render(self, call: Call, generation: bool) -> str:
        """The text. Raises ``RenderError`` when the template refuses."""
        return self.rendering(call, generation).text

    def rendering(self, call: Call, generation: bool, previous: Rendering | None = None) -> Rendering:
        """The text and what is needed to go on from there. ``previous``: a rendering whose messages begin this call's."""
        tools = list(call.tools) if call.tools is not None else None
        with self._timed():
            return self.template.render(
                Conversation(list(self._shaped(call.messages)), tools),
                add_generation_prompt=generation,
                now=call.now,
                arguments={**self.keywords, **call.keywords},
                previous=previous if previous is not None and previous.conversation.tools == tools else None,
            )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds up CPU time: a template may be slow within the limit of each text, and take hours for all."""
        if self._seconds > MOST_SECONDS:
            raise LimitError(
                f"{self.name}: trying this template takes more than {MOST_SECONDS:g} s of CPU time"
            )
        start = time.thread_time()
        try:
            yield
        except DepthError as error:  # a refusal like another: the next conversation may be taken
            raise RenderError(str(error)) from error
        finally:
            self._seconds += time.thread_time() - start

    @cached_property
    def followed(self) -> FollowedTemplate:
        """The same template, with a trail."""
        template = self.template
        return FollowedTemplate(
            template.source,
            name=template.name,
            variables=template.variables,
            dialect=template.dialect,
            limits=template.limits,
        )

    def follow(self, call: Call, generation: bool, flip: int = -1) -> tuple[str, list[Event]]:
        """The text and its trail; ``flip`` numbers a decision that is to come out the other way."""
        tools = list(call.tools) if call.tools is not None else None
        with self._timed():
            return self.followed.follow(
                Conversation(list(self._shaped(call.messages)), tools),
                add_generation_prompt=generation,
                now=call.now,
                arguments={**self.keywords, **call.keywords},
                flip=flip,
            )

    def _shaped(self, messages: Sequence[Json]) -> Sequence[Json]:
        return [material.in_parts(message) for message in messages] if self._in_parts else messages

    def text(self, call: Call, generation: bool = False) -> str | None:
        """The text, or ``None`` where the template refuses."""
        try:
            return self.render(call, generation)
        except LimitError:  # no form of conversation makes this template usable
            raise
        except RenderError:
            return None

    def shows(self, call: Call, *words: str) -> bool:
        """Whether the template takes the call and prints the words."""
        text = self.text(call)
        return text is not None and all(word in text for word in words)

    _in_parts = False

    @cached_property
    def forms(self) -> Forms:
        """Found by trying."""
        chat = [message for n in (1, 2, 3) for message in (material.user(n), material.answer(n))]
        seen = ("USRQ1", "ASTQ1", "USRQ3")
        plain = self.shows(Call(chat), *seen)
        needs_tools = False
        if not plain:
            self._in_parts = True
            self._in_parts = self.shows(Call(chat), *seen)
            needs_tools = not self._in_parts and self.shows(Call(chat, material.TOOLS), *seen)
        tools = material.TOOLS if needs_tools else None
        system = self._system(tools)
        opening = [] if system == "rejected" else [material.SYSTEM]
        best, refusal = self._best_calls(opening)
        arguments, beside, text = best
        return Forms(
            plain=plain or needs_tools,
            parts=self._in_parts,
            needs_tools=needs_tools,
            system=system,
            arguments=arguments,
            beside_calls=beside,
            definitions=_handling(text, "TDESCA"),
            calls=_handling(text, "src/parse.py"),
            results=_handling(text, "RESQ1"),
            reasoning_key=reasoning_key(self.template.syntax) or "reasoning_content",
            refusal=refusal,
        )

    def _system(self, tools: list[Json] | None) -> Handling:
        text = self.text(Call([material.SYSTEM, material.user(1)], tools))
        return "rejected" if text is None else "rendered" if "SYSQ" in text else "ignored"

    def _best_calls(self, opening: list[Json]) -> tuple[tuple[ArgumentForm, str | None, str | None], str]:
        """The form in which a call, its arguments and its result come out best, and the text; else the first refusal."""
        best: tuple[int, ArgumentForm, str | None, str | None] = (-1, "mapping", "", None)
        refusal = ""
        forms: tuple[ArgumentForm, ...] = ("mapping", "raw")
        for form in forms:
            for beside in ("", None):
                try:
                    text = self.render(Call(one_call(opening, form, beside), material.TOOLS), False)
                except LimitError:
                    raise
                except RenderError as error:
                    refusal = refusal or str(error)
                    continue
                score = ("RESQ1" in text) + 2 * ("src/parse.py" in text) + 4 * ("read_file" in text)
                if score > best[0]:
                    best = (score, form, beside, text)
        return best[1:], "" if best[3] is not None else refusal


def one_call(opening: list[Json], form: ArgumentForm, beside: str | None) -> list[Json]:
    """A conversation with one tool call."""
    made = material.call(1, "read_file", {"path": "src/parse.py", "limit": 40}, form)
    return [
        *opening,
        material.user(1),
        material.answer(1, beside, calls=[made]),
        material.result(1, "read_file", material.RESULT_TEXT),
        material.answer(2),
    ]


def _handling(text: str | None, word: str) -> Handling:
    return "raises" if text is None else "rendered" if word in text else "ignored"
