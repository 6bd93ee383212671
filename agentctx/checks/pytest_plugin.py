"""pytest plugin: the fixture ``prefix_guard`` and the marker ``prefix_budget``.

Loaded by every pytest run in an environment that has agentctx, so nothing of agentctx is imported here before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agentctx.checks.append_only import Allowed, PrefixGuard

FIXTURE = "prefix_guard"
MARKER = "prefix_budget"
_HELP = "Server for which prefix_guard judges, such as anthropic, chatml, a template file or a target of agentctx.toml."


def pytest_addoption(parser: pytest.Parser) -> None:
    """The target, for the command line and for the ini file."""
    parser.getgroup("agentctx").addoption("--agentctx-target", metavar="NAME", help=_HELP)
    parser.addini("agentctx_target", help=_HELP, default="as-sent")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(rework=N, rework_turn=N, hit_rate=R, stable_prefix=N, compactions=(N, K), allow=[CODE, ...]): "
        "what the prompts of a test with prefix_guard may cost; without it they must be append-only.",
    )


@pytest.fixture
def prefix_target(request: pytest.FixtureRequest) -> str:
    """Name of the server for which ``prefix_guard`` judges. Override it in a module or conftest to choose another."""
    option: str | None = request.config.getoption("--agentctx-target")
    chosen = option or request.config.getini("agentctx_target")
    return str(chosen)


@pytest.fixture
def prefix_guard(request: pytest.FixtureRequest, prefix_target: str) -> PrefixGuard:
    """Takes an agent's requests, one a turn, and fails the test when one doesn't extend the one before.

    ``prefix_guard.check(messages, tools, system=...)`` or ``prefix_guard.check_request(body)`` before each call;
    ``prefix_guard.replied(response)`` behind it, so that a reply stored otherwise is found, too.
    """
    from agentctx.checks.append_only import PrefixGuard
    from agentctx.checks.config import target_by_name
    from agentctx.errors import AgentctxError

    try:
        target = target_by_name(prefix_target, request.config.rootpath)
        return PrefixGuard(target, _allowed(request.node.iter_markers(MARKER)))
    except AgentctxError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge the whole conversation when the test is through: a failure of the test, not of its teardown."""
    result = yield
    guard = getattr(item, "funcargs", {}).get(FIXTURE)
    if guard is not None:
        from agentctx.checks.append_only import PrefixBroken

        failure = ""
        try:
            guard.verify()
        except PrefixBroken as broken:
            failure = str(broken)
        if failure:
            pytest.fail(failure, pytrace=False)
    return result


def _allowed(markers: Any) -> Allowed:
    """What the markers of a test allow; the nearest says what it says, farther ones add."""
    from agentctx.checks.append_only import Allowed
    from agentctx.checks.log import known_codes
    from agentctx.checks.log_budgets import Budgets
    from agentctx.errors import UsageError

    given: dict[str, Any] = {}
    for marker in markers:
        if marker.args:
            raise UsageError(f"{MARKER} takes keywords only, such as rework=2000")
        given = {**marker.kwargs, **given}
    codes = known_codes(given.pop("allow", ()))
    if "rework" in given:
        given["rework_session"] = given.pop("rework")
    try:
        return Allowed(Budgets(**given), codes)
    except TypeError:
        known = "rework, rework_turn, hit_rate, stable_prefix, compactions, allow"
        raise UsageError(f"{MARKER} has no keyword {', '.join(sorted(given))}; it takes {known}") from None
