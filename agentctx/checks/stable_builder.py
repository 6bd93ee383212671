"""``agentctx check build`` as an assertion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentctx.checks.append_only import PrefixBroken
from agentctx.checks.builders.judging import BuildRules, allowed_words, check_builder, variations
from agentctx.checks.builders.process import Place
from agentctx.checks.builders.scenario import built_in, from_file
from agentctx.diagnosis import Target, parse_target
from agentctx.reports.check_text import check_lines


def assert_stable_builder(
    builder: str,
    *,
    root: Path | str = ".",
    scenario: Path | str | None = None,
    target: Target | str = "as-sent",
    vary: Iterable[str] | None = None,
    allow: Iterable[str] = (),
    timeout: float = 20.0,
) -> None:
    """Assert that a prompt builder's prefix is stable, from turn to turn and in fresh processes.

    ``builder``: ``MODULE:CALLABLE``, imported from ``root``; it is run in processes of its own, not in this one. ``scenario``: a file
    with a recorded session instead of the built-in one. ``vary``, ``allow``: as of ``agentctx check build``. ``timeout``: seconds for
    one process. Raises ``PrefixBroken`` (an ``AssertionError``) for findings, and when the builder can't be evaluated.
    """
    __tracebackhide__ = True
    rules = BuildRules(
        target if isinstance(target, Target) else parse_target(target), variations(vary), allowed_words(allow)
    )
    chosen = from_file(str(scenario)) if scenario is not None else built_in()
    result = check_builder(Place(builder, Path(root).resolve(), timeout), chosen, rules)
    if result.exit_code:
        raise PrefixBroken("\n".join(check_lines(result)))
