"""Policies by name: ``keep-last:5`` for the command line, configuration files and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentctx.errors import UsageError
from agentctx.policies.append_only import AppendOnly
from agentctx.policies.base import EditingPolicy
from agentctx.policies.break_even import BreakEven
from agentctx.policies.compose import Composition
from agentctx.policies.offload import OffloadResults
from agentctx.policies.results import ClearResults, KeepLastResults, MaskObservations
from agentctx.policies.summarize import RollingSummary, SummarizeAt, SummarizeAtBudget
from agentctx.policies.window import SlidingWindow


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number behind the colon. It must be given unless it is ``optional``; then the policy has its own default."""

    name: str
    optional: bool = False
    kind: type[int] | type[float] = int

    def read(self, text: str) -> int | float:
        """The value of a text. Raises ``UsageError``."""
        try:
            return self.kind(text.strip().replace("_", ""))
        except ValueError:
            what = "a whole number" if self.kind is int else "a number"
            raise UsageError(f"{self.name} must be {what}, not {text!r}") from None


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One entry of the registry: how a policy is written, made and explained in a line."""

    name: str
    parameters: tuple[Parameter, ...]
    make: Callable[..., EditingPolicy]
    line: str

    @property
    def usage(self) -> str:
        """How it is written: ``keep-last:N`` with optional parameters in brackets."""
        text = self.name
        for index, parameter in enumerate(self.parameters):
            part = (":" if index == 0 else ",") + parameter.name.upper()
            text += f"[{part}]" if parameter.optional else part
        return text


def _fresh(**values: Any) -> EditingPolicy:
    return SummarizeAtBudget(**values, asking="fresh")


_N = Parameter("n")
_AT_LEAST = Parameter("at_least", optional=True)
_TOKENS = Parameter("tokens", optional=True)
_KEEP = Parameter("keep", optional=True)
_BUDGET = (Parameter("budget"), _KEEP, _TOKENS, Parameter("low", optional=True))

POLICIES = (
    PolicySpec("append-only", (), AppendOnly, "send everything; nothing is dropped"),
    PolicySpec(
        "keep-last",
        (_N,),
        KeepLastResults,
        "keep the newest N tool results, drop older ones with their calls",
    ),
    PolicySpec(
        "clear-results",
        (_N, _AT_LEAST),
        ClearResults,
        "keep the newest N tool results, put a placeholder in older ones, at least AT_LEAST tokens at a time",
    ),
    PolicySpec(
        "mask",
        (_N, _AT_LEAST),
        MaskObservations,
        "cut results before the newest N turns to their first line, at least AT_LEAST tokens at a time",
    ),
    PolicySpec("window", (_N,), SlidingWindow, "keep the task and the newest N turns"),
    PolicySpec(
        "summarize-at",
        (Parameter("at"), Parameter("first"), _TOKENS),
        SummarizeAt,
        "at turn AT, put a summary of TOKENS (300) tokens in the place of turns 1 to FIRST",
    ),
    PolicySpec(
        "summarize-budget",
        _BUDGET,
        SummarizeAtBudget,
        "above BUDGET tokens, summarize all but the task and the newest KEEP tokens (BUDGET/4), or down to LOW",
    ),
    PolicySpec(
        "summarize-fresh",
        _BUDGET,
        _fresh,
        "summarize-budget, but the summary is asked for in a prompt of its own instead of the conversation's",
    ),
    PolicySpec(
        "rolling-summary",
        (_N, _TOKENS),
        RollingSummary,
        "a new summary every turn, in front of the newest N turns (a bad example)",
    ),
    PolicySpec(
        "offload",
        (Parameter("limit"), Parameter("preview", optional=True)),
        OffloadResults,
        "results of more than LIMIT tokens go to files before they are sent; PREVIEW (10) lines and a name stay",
    ),
    PolicySpec(
        "break-even",
        (
            Parameter("ratio", optional=True, kind=float),
            _KEEP,
            _TOKENS,
            Parameter("horizon", optional=True),
        ),
        BreakEven,
        "summarize when what it saves over HORIZON turns (learnt) pays the rewrite at a cached token's RATIO (0.1)",
    ),
)


def parse_policy(spec: str) -> EditingPolicy:
    """A new policy from its spec, such as ``append-only`` or ``summarize-at:13,12,300``.

    Parameters stand in order, or as ``name=value``. ``+`` composes: ``offload:2000+summarize-budget:60000``. Raises
    ``UsageError`` naming the spec and what is allowed.
    """
    parts = [_parse_one(part) for part in spec.split("+")]
    return parts[0] if len(parts) == 1 else Composition(parts)


def _parse_one(spec: str) -> EditingPolicy:
    name, colon, rest = spec.strip().partition(":")
    entry = next((policy for policy in POLICIES if policy.name == name), None)
    if entry is None:
        raise UsageError(f"no policy is called {spec!r}; choose from {', '.join(p.usage for p in POLICIES)}")
    try:
        return entry.make(**_arguments(entry, rest.split(",") if colon else []))
    except UsageError as error:
        raise UsageError(f"policy {spec!r}: {error}; write it as {entry.usage}") from None


def _arguments(entry: PolicySpec, given: list[str]) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    by_name = {parameter.name: parameter for parameter in entry.parameters}
    for index, text in enumerate(given):
        key, equals, value = text.partition("=")
        if not equals:
            if index >= len(entry.parameters):
                raise UsageError(f"{len(given)} parameters given, {len(entry.parameters)} allowed")
            key, value = entry.parameters[index].name, text
        key = key.strip()
        if key not in by_name:
            raise UsageError(f"there is no parameter {key!r}")
        if key in values:
            raise UsageError(f"{key} is given twice")
        values[key] = by_name[key].read(value)
    missing = [p.name for p in entry.parameters if not p.optional and p.name not in values]
    if missing:
        raise UsageError(f"{missing[0]} is missing")
    return values


def describe_policies() -> list[tuple[str, str]]:
    """How each policy is written and what it does, for help texts."""
    return [(policy.usage, policy.line) for policy in POLICIES]
