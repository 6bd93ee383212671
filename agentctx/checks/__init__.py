"""Checks for CI: chat templates, what builds their prompts, and request logs stay append-only."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctx.checks.append_only import assert_append_only

__all__ = ["assert_append_only"]


def __getattr__(name: str) -> Any:
    # The pytest plugin stands in this package: loading it must not load what only a check needs.
    if name != "assert_append_only":
        raise AttributeError(f"module 'agentctx.checks' has no attribute {name!r}")
    from agentctx.checks.append_only import assert_append_only

    return assert_append_only
