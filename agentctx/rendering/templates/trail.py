"""The trail of a rendering: every decision, pass, assignment and output of a template, with its line.

Two texts that part ways do so because the template took another way, or because an expression had another value. The trail says at which
line. A rendering can also be made to decide one thing differently, which tells whether that decision is what makes the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from agentctx.rendering.templates.environment import FOLLOW, filter_node, names_read
from agentctx.rendering.templates.template import ChatTemplate, Conversation

Kind = Literal["if", "inline if", "for", "set", "output", "text"]


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a template. ``line`` is 1-based. ``names``: variables that it reads. ``buffered``: what it writes goes to a value first.

    ``target``: the name that an assignment sets.
    """

    kind: Kind
    line: int
    names: frozenset[str]
    buffered: bool = False
    target: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at a site. ``value``: a decision's outcome, an output's text, an assigned value as far as it is plain.

    ``chars``: characters written so far.
    """

    site: int
    value: Any
    chars: int


class _Marks(NodeTransformer):
    """Puts a mark at every site."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._buffered = False

    def _site(self, kind: Kind, at: nodes.Node, reads: nodes.Node, target: str = "") -> int:
        """Number of a new site."""
        names = frozenset(names_read(nodes.Template([reads])))
        self.sites.append(Site(kind, at.lineno, names, self._buffered, target))
        return len(self.sites) - 1

    def _marked(self, value: nodes.Node, site: int, at: nodes.Node) -> nodes.Filter:
        return filter_node(value, FOLLOW, at, [nodes.Const(site)])

    def _decision(self, node: nodes.If | nodes.CondExpr, kind: Kind) -> nodes.Node:
        site = self._site(kind, node, node.test)
        self.generic_visit(node)
        node.test = self._marked(node.test, site, node)
        return node

    def visit_If(self, node: nodes.If) -> nodes.Node:  # noqa: N802 - jinja2's visitor
        return self._decision(node, "if")

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:  # noqa: N802
        return self._decision(node, "inline if")

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        outer, self._buffered = self._buffered, self._buffered or node.recursive
        site = self._site("for", node, nodes.List([]))
        self.generic_visit(node)
        self._buffered = outer
        mark = self._marked(nodes.Const(""), site, node)
        output = nodes.Output([mark])
        output.set_lineno(node.lineno)
        assert node.environment is not None
        output.set_environment(node.environment)
        node.body.insert(0, output)
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802
        place = node.target
        target = (
            f"{place.name}.{place.attr}" if isinstance(place, nodes.NSRef) else getattr(place, "name", "")
        )
        site = self._site("set", node, node.node, target)
        self.generic_visit(node)
        node.node = self._marked(node.node, site, node)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        made: list[nodes.Expr] = []
        for child in node.nodes:
            if isinstance(child, nodes.TemplateData):
                text = nodes.Const(child.data)
                made.append(self._marked(text, self._site("text", child, text), child))
            else:
                site = self._site("output", child, child)
                made.append(self._marked(self.visit(child), site, child))
        node.nodes = made
        return node

    def _buffer(self, node: nodes.Node) -> nodes.Node:
        outer, self._buffered = self._buffered, True
        self.generic_visit(node)
        self._buffered = outer
        return node

    visit_Macro = visit_CallBlock = visit_FilterBlock = visit_AssignBlock = _buffer  # noqa: N815


class FollowedTemplate(ChatTemplate):
    """A chat template whose renderings leave a trail."""

    sites: list[Site]

    def _instrument(self, tree: nodes.Template) -> None:
        marks = _Marks()
        marks.visit(tree)
        self.sites = marks.sites
        self._events: list[Event] = []
        self._flip = -1

    def follow(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool,
        now: datetime,
        arguments: dict[str, Any],
        flip: int = -1,
    ) -> tuple[str, list[Event]]:
        """The text and its trail. ``flip``: number of the event, a decision, that is to come out the other way."""
        self._events, self._flip = [], flip
        rendering = self.render(
            conversation, add_generation_prompt=add_generation_prompt, now=now, arguments=arguments
        )
        return rendering.text, self._events

    def took(self, number: int, value: Any, chars: int, written: Callable[[Any], str]) -> Any:
        """A site was passed. Returns the value to go on with."""
        kind = self.sites[number].kind
        if kind in ("if", "inline if"):
            outcome = bool(value)
            if len(self._events) == self._flip:
                value = outcome = not outcome
            self._events.append(Event(number, outcome, chars))
        elif kind in ("output", "text"):
            value = written(value)
            self._events.append(Event(number, str(value), chars))
        elif kind == "for":
            self._events.append(Event(number, None, chars))
        else:
            self._events.append(Event(number, _plain(value), chars))
        return value


def _plain(value: Any) -> Any:
    """A value that stays what it is; for others, their kind and size."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return (
        (type(value).__name__, len(value)) if isinstance(value, list | tuple | dict) else type(value).__name__
    )
