"""The sandbox: Jinja as transformers sets it up, with every operation metered and every string traced.

The language a template sees is that of ``transformers.apply_chat_template``: immutable sandbox, ``trim_blocks``,
``lstrip_blocks``, loop controls, ``{% generation %}``, ``tojson`` without ASCII or HTML escapes, ``raise_exception``,
``strftime_now``. The ``relaxed`` dialect lets lists and dicts be changed, which llama.cpp and vLLM's forks accept. Left out are ``lipsum``
and the filters ``random``, ``pprint``, ``urlize``, ``wordwrap`` and ``xmlattr``: no prompt needs them, and they are random or unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment, is_internal_attribute
from jinja2.utils import Namespace, missing
from jinja2.visitor import NodeTransformer

from agentctx.errors import RenderError
from agentctx.rendering.templates import operations
from agentctx.rendering.templates.loops import Loop
from agentctx.rendering.templates.methods import metered_method
from agentctx.rendering.templates.operations import current_run

LEFT_OUT = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
# Filters whose names no template can write: the hooks that the compiler puts in.
RESUME, ITERATE, JOIN, COMPARE, BOUND, SLICE, FOLLOW = (
    f"agentctx {name}" for name in ("resume", "iterate", "join", "compare", "bound", "slice", "follow")
)

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_NUMBERS = frozenset(
    ("first", "last", "index", "index0", "revindex", "revindex0", "length", "depth", "depth0")
)


class TemplateRefusal(RenderError):
    """The template itself refused the conversation, by ``raise_exception``."""


class GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}``: marks what the model wrote; the text is what stands inside."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class Hooks(NodeTransformer):
    """Puts the meter and the tracer into a parsed template.

    ``loops`` collects, for each resumable loop, the names that its passes can read. A loop is resumable when it stands outside of
    every other loop, macro and buffered block, iterates plainly, and the template has no stateful helper.
    """

    def __init__(self, template: nodes.Template, resumable: bool) -> None:
        self.loops: list[frozenset[str]] = []
        self._inside = 0 if resumable else 1
        macros = template.find_all((nodes.Macro, nodes.CallBlock))
        self._macro_names = frozenset(name for macro in macros for name in names_read(macro))

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's visitor
        arguments: tuple[nodes.Const, ...]
        if self._inside or node.test is not None or node.recursive:
            hook, arguments = ITERATE, ()
        else:
            hook, arguments = RESUME, (nodes.Const(len(self.loops)),)
            self.loops.append(frozenset(names_read(node, only=("body",))) | self._macro_names)
        return self._inner(node, lambda done: _wrap(done, "iter", hook, arguments))

    def _inner(self, node: nodes.Node, then: Callable[[Any], None] = lambda node: None) -> nodes.Node:
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        then(node)
        return node

    visit_Macro = visit_CallBlock = visit_FilterBlock = visit_AssignBlock = visit_Block = _inner  # noqa: N815
    visit_Scope = visit_ScopedEvalContextModifier = _inner  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return filter_node(nodes.List(node.nodes), JOIN, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if len(node.ops) == 1:
            operand = node.ops[0]
            return filter_node(node.expr, COMPARE, node, [nodes.Const(operand.op), operand.expr])
        node.expr = filter_node(node.expr, BOUND, node)
        for operand in node.ops:
            operand.expr = filter_node(operand.expr, BOUND, node)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            if not isinstance(node.arg, nodes.Const):
                node.arg = filter_node(node.arg, BOUND, node)
            return node
        part = node.arg
        ends = [end if end is not None else nodes.Const(None) for end in (part.start, part.stop, part.step)]
        return filter_node(node.node, SLICE, node, ends)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = filter_node(node.key, BOUND, node)
        return node


def filter_node(
    value: nodes.Node, name: str, at: nodes.Node, arguments: Sequence[nodes.Expr] = ()
) -> nodes.Filter:
    """``value`` passed through a filter that is ours, at the place of ``at``."""
    made = nodes.Filter(value, name, list(arguments), [], None, None)
    made.set_lineno(at.lineno)
    if at.environment is not None:
        made.set_environment(at.environment)
    return made


def _wrap(node: nodes.For, field: str, hook: str, arguments: Sequence[nodes.Expr]) -> None:
    setattr(node, field, filter_node(getattr(node, field), hook, node, arguments))


def names_read(node: nodes.Node, only: tuple[str, ...] | None = None) -> set[str]:
    """Every variable name mentioned under ``node``, whether assigned there or not."""
    found: set[str] = set()
    for child in node.iter_child_nodes(only=only):
        if isinstance(child, nodes.Name | nodes.NSRef):
            found.add(child.name)
        found |= names_read(child)
    return found


class MeteredCodeGenerator(CodeGenerator):
    """Jinja's compiler without constant folding: a constant expression may be as hostile as any other."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        # What str() would do, sized first.
        if frame.eval_ctx.volatile:
            self.write("(escape if context.eval_ctx.autoescape else identity)(environment.escaped_later(")
        elif frame.eval_ctx.autoescape:
            self.write("escape(environment.escaped_later(")
        else:
            self.write("(environment.written(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("))")


class MeteredTemplate(Template):
    """A template whose ``loop`` is ours."""

    @classmethod
    def _from_namespace(cls, environment: Any, namespace: Any, globals: Any) -> Any:
        namespace["LoopContext"] = Loop
        return super()._from_namespace(environment, namespace, globals)


class _Hooked(SandboxedEnvironment):
    """What both dialects share."""

    code_generator_class = MeteredCodeGenerator
    template_class = MeteredTemplate
    intercepted_binops = frozenset(("+", "*", "**", "%", "//"))
    concat = staticmethod(operations.output_joined)
    written = staticmethod(operations.written)
    escaped_later = staticmethod(operations.escaped_later)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationTag, LoopControlExtension],
        )
        for name in LEFT_OUT:
            del self.filters[name]
        self.filters = {name: operations.metered_filter(name, made) for name, made in self.filters.items()}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: operations.metered_test(made) for name, made in tests.items()}
        self.filters["tojson"] = operations.tojson
        self.filters |= {
            RESUME: operations.resume_loop,
            ITERATE: operations.iterate,
            JOIN: operations.join_operator,
            COMPARE: operations.compared,
            BOUND: operations.bounded,
            SLICE: operations.sliced,
            FOLLOW: operations.followed,
        }
        del self.globals["lipsum"]
        self.globals["namespace"] = _namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def getattr(self, obj: Any, attribute: str) -> Any:
        # As Jinja's, without asking for attributes that a dict can't have, nor whether what a loop says of itself is safe.
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            value = obj.get(attribute, missing)
            return value if value is not missing else self.undefined(obj=obj, name=attribute)
        if kind is Loop and attribute in _LOOP_NUMBERS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # Jinja gives an undefined value, which prints as nothing. No template needs these, so we say what is wrong.
        if attribute.startswith("_") or is_internal_attribute(obj, attribute):
            raise SecurityError(f"templates can't read {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return operations.binary(operator, left, right, self.binop_table[operator])

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = current_run().meter
        meter.charge(8 * (len(args) + len(kwargs)))
        if type(__obj) is Macro or type(__obj) is Loop:
            meter.enter()
            meter.step()
            try:
                return super().call(__context, __obj, *args, **kwargs)
            finally:
                meter.leave()
        method = metered_method(__obj)
        return super().call(__context, method, *args, **kwargs)


class StrictEnvironment(_Hooked, ImmutableSandboxedEnvironment):
    """As transformers renders."""


class RelaxedEnvironment(_Hooked):
    """As engines render whose templates may change lists and dicts."""


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore: transformers refuses to store them."""

    def __init__(
        *args: Any, **kwargs: Any
    ) -> None:  # as Jinja's: the template may name an attribute ``self``
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template can't hold {name!r}: rename it")


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    made = _Namespace(*args, **kwargs)
    current_run().namespaces.append(made)
    return made


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(f"the chat template refuses the conversation: {operations.written(message)[:2000]}")


def _strftime_now(form: str) -> str:
    if len(form) > 1000:
        raise SecurityError("the format of strftime_now is too long")
    return current_run().now.strftime(form)
