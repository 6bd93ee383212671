"""ChatTemplate: a compiled template, and what one rendering of it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Literal

from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context
from jinja2.utils import Namespace

from agentctx.errors import RenderError
from agentctx.rendering.spans import Run, Source
from agentctx.rendering.templates.environment import (
    Hooks,
    MeteredTemplate,
    RelaxedEnvironment,
    StrictEnvironment,
    TemplateRefusal,
)
from agentctx.rendering.templates.limits import LimitError, Limits, Meter, size_of
from agentctx.rendering.templates.loops import (
    LoopRecord,
    Messages,
    Passes,
    ResumablePasses,
    Watch,
    leading_same,
    namespace_contents,
    resume_at,
    same_value,
    set_namespace,
)
from agentctx.rendering.templates.operations import RUN
from agentctx.rendering.templates.tracing import Traced
from agentctx.rendering.written import Written
from agentctx.surrogates import replace_surrogates

Dialect = Literal["transformers", "relaxed"]
_CHANGING = frozenset(("append", "extend", "insert", "pop", "remove", "update", "setdefault", "reverse"))
_MAY_CHANGE = re.compile(rf"\.\s*(?:{'|'.join(sorted(_CHANGING))})\b")
_STATEFUL = frozenset(("cycler", "joiner"))


@dataclass(slots=True)
class Conversation:
    """What a template is given: messages and tools in the form that it wants.

    ``messages`` and ``tools`` are never changed once a template has seen them, so equal objects mean equal text. ``origins`` maps the
    ``id()`` of structured values to their source. ``json_texts`` keeps the JSON of ``tools`` and their parts between renderings.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    origins: dict[int, Source] = field(default_factory=dict)
    traced: bool = False
    kept: frozenset[int] = frozenset()
    json_texts: dict[Any, str] = field(default_factory=dict)

    def copied(self) -> Conversation:
        """The same, with containers of its own."""
        origins: dict[int, Source] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, dict):
                made: Any = {key: copy(item) for key, item in value.items()}
            elif isinstance(value, list):
                made = [copy(item) for item in value]
            else:
                return value
            if id(value) in self.origins:
                origins[id(made)] = self.origins[id(value)]
            return made

        return Conversation(copy(self.messages), copy(self.tools), origins, self.traced)


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text a template wrote, the origins of its parts, and what is needed to go on from there.

    ``same_chars``, ``same_runs``: how much of both, at the beginning, is known to be as in the rendering before; the rest may be too.
    """

    written: Written
    runs: list[Run]
    conversation: Conversation
    loops: dict[int, LoopRecord]
    namespaces: list[Namespace]
    now: datetime
    template: ChatTemplate
    same_chars: int = 0
    same_runs: int = 0

    @property
    def text(self) -> str:
        return str(self.written)


@dataclass(slots=True)
class Taken:
    """A part of the previous rendering: its characters and runs there, its places among the pieces and runs of the new one."""

    start: int
    chars: int
    first_run: int
    runs: int
    place: int
    run_place: int


class RenderRun:
    """One rendering while it goes on."""

    def __init__(
        self,
        template: ChatTemplate,
        conversation: Conversation,
        now: datetime,
        previous: Rendering | None,
        same_messages: int,
    ) -> None:
        self.template = template
        self.conversation = conversation
        self.now = now
        self.traced = conversation.traced
        self.origins = conversation.origins
        self.kept = conversation.kept
        self.json_texts = conversation.json_texts
        self.meter = Meter(template.limits, conversation.messages, conversation.tools)
        self.watch = Watch()
        self.out: list[str] = []
        self.taken: Taken | None = None
        self.chars = 0
        self.runs: list[Run] = []
        self.namespaces: list[Namespace] = []
        self.loops: dict[int, LoopRecord] = {}
        self.context: Context | None = None
        usable = (
            previous is not None
            and previous.template is template
            and (previous.now == now or not template.reads_clock)
        )
        self.previous = previous if usable else None
        self.same_messages, self.all_same = 0, False
        if self.previous is not None:
            self._compare_messages(self.previous.conversation.messages, same_messages)

    def _compare_messages(self, old: list[dict[str, Any]], known: int) -> None:
        new = self.conversation.messages
        same = leading_same(old, new, known)
        self.same_messages = same
        self.all_same = same == len(old) == len(new)

    def emit(self, piece: str) -> None:
        """Take what the template wrote next."""
        self.meter.spend(size_of(piece))
        at = self.chars
        if type(piece) is Traced:
            self.runs.extend([(at + start, at + end, source) for start, end, source in piece.runs])
        self.out.append(piece)
        self.chars = at + len(piece)
        self.meter.check_output(self.chars)

    def namespace_states(self) -> tuple[dict[str, Any], ...]:
        return tuple([namespace_contents(each) for each in self.namespaces]) if self.namespaces else ()

    def begin_loop(self, number: int, items: list[Any], offset: int) -> Passes:
        """The passes of top-level loop ``number``; text of passes that need not be made again is taken over first."""
        assert self.context is not None
        resolve = self.context.resolve_or_missing
        names = {name: resolve(name) for name in self.template.loop_names[number]}
        record = LoopRecord(items, offset, names, self.namespace_states(), self.chars, len(self.runs))
        self.loops[number] = record
        old = self.previous.loops.get(number) if self.previous is not None else None
        count = 0
        if old is not None and self._same_entry(old, record):
            count = resume_at(old, record, self.same_messages, self.all_same)
            if count and not self._skip(old, record, count):
                count = 0
        return ResumablePasses(items, self, record, count)

    def _same_entry(self, old: LoopRecord, new: LoopRecord) -> bool:
        """Whether every variable that a pass can read is what it was."""
        assert self.previous is not None
        if len(old.entry) != len(new.entry):
            return False
        places: dict[int, int] = {}
        if old.entry:
            places = {id(made): i for i, made in enumerate(self.previous.namespaces[: len(old.entry)])}
            places |= {id(made): i for i, made in enumerate(self.namespaces)}
        for before, after in zip(old.entry, new.entry, strict=True):
            if before.keys() != after.keys() or not all(
                same_value(value, after[key], places) for key, value in before.items()
            ):
                return False
        for name, value in old.names.items():
            if value is not new.names[name] and not same_value(value, new.names[name], places):
                return False
        return True

    def _skip(self, old: LoopRecord, new: LoopRecord, count: int) -> bool:
        """Take over ``count`` passes from the previous rendering, unless their state can't be."""
        assert self.previous is not None
        boundary = old.boundaries[count]
        states = []
        for state, before, after in zip(boundary.namespaces, old.entry, new.entry, strict=False):
            made = {}
            for key, value in state.items():
                if key in before and value is before[key]:
                    made[key] = after[key]
                elif _refers_to_rendering(value):
                    return False
                else:
                    made[key] = value
            states.append(made)
        if len(boundary.namespaces) != len(self.namespaces):
            return False
        for namespace, made in zip(self.namespaces, states, strict=True):
            set_namespace(namespace, made)
        shift = self.chars - old.start_char
        where = (len(self.out), len(self.runs))
        self._take(Taken(old.start_char, boundary.chars, old.start_run, boundary.runs, *where))
        self._take_runs(old.start_run, old.start_run + boundary.runs, shift)
        self.chars += boundary.chars
        new.boundaries = old.boundaries[: count + 1]
        return True

    def _take_runs(self, first: int, end: int, shift: int) -> None:
        """Take over runs of the previous rendering: copied once when what stands before them is the same too."""
        assert self.previous is not None
        old = self.previous.runs
        if not shift and len(self.runs) == first and self.runs == old[:first]:
            self.runs = old[:end]
        else:
            runs = old[first:end]
            self.runs.extend(runs if not shift else [(a + shift, b + shift, source) for a, b, source in runs])

    def _take(self, part: Taken) -> None:
        """Take over a part of the previous text: the longest one only when all is written, so that it is copied once."""
        assert self.previous is not None
        text = self.previous.written
        later = self.taken
        if later is None or later.chars < part.chars:
            self.taken, later = part, later
            self.out.append("")
        else:
            self.out.append(text.part(part.start, part.start + part.chars))
            return
        if later is not None:
            self.out[later.place] = text.part(later.start, later.start + later.chars)

    def finished(self) -> Rendering:
        """What was written."""
        text, same_chars, same_runs = self._joined()
        return Rendering(
            text,
            self.runs,
            self.conversation,
            self.loops,
            self.namespaces,
            self.now,
            self.template,
            same_chars,
            same_runs,
        )

    def _joined(self) -> tuple[Written, int, int]:
        """The text, and how many characters and runs at its beginning are known to be the previous rendering's."""
        part = self.taken
        if part is None or self.previous is None:
            return Written("".join(self.out)), 0, 0
        text, old_runs = self.previous.written, self.previous.runs
        head, tail = "".join(self.out[: part.place]), "".join(self.out[part.place :])
        end = part.start + part.chars
        if len(head) != part.start or not text.startswith(head):
            return Written("".join((head, text.part(part.start, end), tail))), 0, 0
        before = part.run_place
        same = before == part.first_run and self.runs[:before] == old_runs[:before]
        same_runs = before + part.runs if same else 0
        rest = text.behind(end)
        if tail.startswith(rest):
            return text.extended(len(text), tail[len(rest) :]), len(text), same_runs
        return text.extended(end, tail), end, same_runs


def _refers_to_rendering(value: Any) -> bool:
    """Whether a value kept in a namespace belongs to the rendering that made it."""
    if isinstance(value, Messages | Namespace):
        return True
    return isinstance(value, list | tuple) and any(isinstance(item, Messages | Namespace) for item in value)


@lru_cache(maxsize=2)
def _environment(dialect: Dialect) -> StrictEnvironment | RelaxedEnvironment:
    return StrictEnvironment() if dialect == "transformers" else RelaxedEnvironment()


class ChatTemplate:
    """A chat template, compiled once.

    ``variables``: special tokens and other constants that the template may name (``bos_token``, …). ``dialect``: ``transformers``, or
    ``relaxed`` for engines that let a template change lists.

    Raises ``RenderError`` when the source is too long or is no valid template.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "chat template",
        variables: Mapping[str, Any] | None = None,
        dialect: Dialect = "transformers",
        limits: Limits | None = None,
    ) -> None:
        self.source = replace_surrogates(source)
        self.name = name
        self.variables = dict(variables or {})
        self.dialect = dialect
        self.limits = limits or Limits()
        self.loop_names: list[frozenset[str]] = []
        if len(source) > self.limits.source:
            raise LimitError(
                f"{name}: the template has {len(source)} characters, more than the limit of {self.limits.source}"
            )
        self._compiled: Template = self._compile()

    @property
    def relaxed(self) -> bool:
        return self.dialect == "relaxed"

    @cached_property
    def syntax(self) -> nodes.Template:
        """The parsed source, without hooks."""
        return _environment(self.dialect).parse(self.source)

    @staticmethod
    def needs_relaxed(source: str) -> bool:
        """Whether a template calls methods that change lists or dicts, which transformers forbids and llama.cpp allows."""
        if len(source) > Limits().source or not _MAY_CHANGE.search(source):
            return False
        try:
            tree = _environment("relaxed").parse(source)
        except (TemplateSyntaxError, RecursionError):
            return False
        return any(
            isinstance(call.node, nodes.Getattr) and call.node.attr in _CHANGING
            for call in tree.find_all(nodes.Call)
        )

    @cached_property
    def reads_clock(self) -> bool:
        return "strftime_now" in self.source

    def _compile(self) -> Template:
        environment = _environment(self.dialect)
        try:
            self._count_words(environment)
            tree = environment.parse(self.source)
            resumable = not self.relaxed and not _stateful(tree)
            hooks = Hooks(tree, resumable)
            hooks.visit(tree)
            self._instrument(tree)
            self.loop_names = hooks.loops
            code = environment.compile(tree, filename=f"<{self.name}>")
            # A plain dict, not Jinja's chain of them: each rendering copies it.
            return MeteredTemplate.from_code(environment, code, dict(environment.globals))
        except TemplateSyntaxError as error:
            raise RenderError(f"{self.name}:{error.lineno}: not a valid template: {error.message}") from error
        except (RecursionError, MemoryError) as error:
            raise LimitError(f"{self.name}: the template is nested too deeply") from error
        except (SyntaxError, ValueError, OverflowError) as error:
            raise RenderError(f"{self.name}: not a valid template: {error}") from error

    def _instrument(self, tree: nodes.Template) -> None:
        """Add to the parsed template before it is compiled."""

    def took(self, number: int, value: Any, chars: int, written: Callable[[Any], str]) -> Any:
        """A site was passed; only templates that are followed have any."""
        return value

    def _count_words(self, environment: Environment) -> None:
        """Refuse a source that takes seconds to compile."""
        most = self.limits.words
        if len(self.source) > most and any(
            number >= most for number, _ in enumerate(environment.lexer.tokeniter(self.source, self.name))
        ):
            raise LimitError(f"{self.name}: the template has more than {most} words of template language")

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool,
        now: datetime,
        arguments: Mapping[str, Any] | None = None,
        previous: Rendering | None = None,
        same_messages: int = 0,
    ) -> Rendering:
        """Render a conversation; with ``previous``, passes that can't differ are not made again.

        ``same_messages``: leading messages that are known to be the same objects as in ``previous``.
        Raises ``RenderError``: ``TemplateRefusal`` when the template raises, ``LimitError`` over a limit.
        """
        if self.relaxed:
            # The template may change what it is given.
            conversation, same_messages = conversation.copied(), 0
        run = RenderRun(self, conversation, now, previous, same_messages)
        variables = {
            "messages": Messages(conversation.messages, run),
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.variables,
            **(arguments or {}),
        }
        token = RUN.set(run)
        try:
            run.context = self._compiled.new_context(variables)
            for piece in self._compiled.root_render_func(run.context):
                run.emit(piece)
        except RenderError as error:
            if isinstance(error, LimitError | TemplateRefusal):
                raise type(error)(f"{self.name}{self._line(error)}: {error}") from None
            raise
        except (RecursionError, MemoryError) as error:
            raise LimitError(
                f"{self.name}: the template recurses too deeply or needs too much memory"
            ) from error
        except Exception as error:
            what = "forbidden" if isinstance(error, SecurityError) else type(error).__name__
            raise RenderError(f"{self.name}{self._line(error)}: {what}: {str(error)[:2000]}") from error
        finally:
            RUN.reset(token)
        return run.finished()

    def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        now: datetime,
        **arguments: Any,
    ) -> str:
        """The text for messages and tools given just as the template is to see them."""
        conversation = Conversation(
            [dict(message) for message in messages],
            [dict(tool) for tool in tools] if tools is not None else None,
        )
        rendering = self.render(
            conversation, add_generation_prompt=add_generation_prompt, now=now, arguments=arguments
        )
        return rendering.text

    def _line(self, error: BaseException) -> str:
        """``:LINE`` of the template where the error arose, if it is known."""
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == f"<{self.name}>":
                line = self._compiled.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return f":{line}" if line else ""


def _stateful(tree: nodes.Template) -> bool:
    """Whether passes can hand something on that isn't watched."""
    if any(name.name in _STATEFUL for name in tree.find_all(nodes.Name)):
        return True
    return any(
        getattr(access, "attr", None) == "changed"
        or (
            isinstance(access, nodes.Getitem)
            and isinstance(access.arg, nodes.Const)
            and access.arg.value == "changed"
        )
        for access in tree.find_all((nodes.Getattr, nodes.Getitem))
    )
