"""Policies by name: ``keep-last:5`` for the command line, configuration files and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentctx.errors import UsageError
from agentctx.policies.append_only import AppendOnly
from agentctx.policies.policy import Policy
from agentctx.policies.results import ClearResults, KeepLastResults
from agentctx.policies.summarize import SummarizeAt, SummarizeAtBudget
from agentctx.policies.window import SlidingWindow


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number behind the colon. ``default`` None means that it must be given."""

    name: str
    default: int | None = None


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One entry of the registry: how a policy is written, made and explained in a line."""

    name: str
    parameters: tuple[Parameter, ...]
    make: Callable[..., Policy]
    line: str

    @property
    def usage(self) -> str:
        """How it is written: ``keep-last:N`` with optional parameters in brackets."""
        text = self.name
        for index, parameter in enumerate(self.parameters):
            part = (":" if index == 0 else ",") + parameter.name.upper()
            text += part if parameter.default is None else f"[{part}]"
        return text


POLICIES = (
    PolicySpec("append-only", (), AppendOnly, "send everything; nothing is dropped"),
    PolicySpec(
        "keep-last",
        (Parameter("n"),),
        KeepLastResults,
        "keep the newest N tool results, drop older ones with their calls",
    ),
    PolicySpec(
        "clear-results",
        (Parameter("n"), Parameter("at_least", 0)),
        ClearResults,
        "keep the newest N tool results, put a placeholder in older ones, at least AT_LEAST tokens at a time",
    ),
    PolicySpec("window", (Parameter("n"),), SlidingWindow, "keep the task and the newest N turns"),
    PolicySpec(
        "summarize-at",
        (Parameter("at"), Parameter("first"), Parameter("tokens", 300)),
        SummarizeAt,
        "at turn AT, put a summary of TOKENS tokens in the place of turns 1 to FIRST",
    ),
    PolicySpec(
        "summarize-budget",
        (Parameter("budget"), Parameter("keep", -1), Parameter("tokens", 300)),
        lambda budget, keep, tokens: SummarizeAtBudget(budget, None if keep < 0 else keep, tokens),
        "above BUDGET tokens, summarize all but the task and the newest KEEP tokens (default BUDGET/4)",
    ),
)


def parse_policy(spec: str) -> Policy:
    """A new policy from its spec, such as ``append-only`` or ``summarize-at:13,12,300``.

    Parameters stand in order, or as ``name=value``. Raises ``UsageError`` naming the spec and what is allowed.
    """
    name, colon, rest = spec.strip().partition(":")
    entry = next((policy for policy in POLICIES if policy.name == name), None)
    if entry is None:
        raise UsageError(f"no policy is called {spec!r}; choose from {', '.join(p.usage for p in POLICIES)}")
    given = rest.split(",") if colon else []
    try:
        return entry.make(**_arguments(entry, given))
    except (ValueError, UsageError) as error:
        raise UsageError(f"policy {spec!r}: {error}; write it as {entry.usage}") from None


def _arguments(entry: PolicySpec, given: list[str]) -> dict[str, int]:
    values: dict[str, int] = {}
    names = [parameter.name for parameter in entry.parameters]
    for index, text in enumerate(given):
        key, equals, value = text.partition("=")
        if not equals:
            if index >= len(names):
                raise UsageError(f"{len(given)} parameters given, {len(names)} allowed")
            key, value = names[index], text
        key = key.strip()
        if key not in names:
            raise UsageError(f"there is no parameter {key!r}")
        if key in values:
            raise UsageError(f"{key} is given twice")
        values[key] = _number(key, value)
    for parameter in entry.parameters:
        if parameter.name not in values:
            if parameter.default is None:
                raise UsageError(f"{parameter.name} is missing")
            values[parameter.name] = parameter.default
    return values


def _number(key: str, text: str) -> int:
    try:
        return int(text.strip().replace("_", ""))
    except ValueError:
        raise UsageError(f"{key} must be a whole number, not {text!r}") from None


def describe_policies() -> list[tuple[str, str]]:
    """How each policy is written and what it does, for help texts."""
    return [(policy.usage, policy.line) for policy in POLICIES]
