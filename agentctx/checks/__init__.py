"""Checks for CI: chat templates, what builds their prompts, and request logs stay append-only."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctx.checks.append_only import PrefixBroken, assert_append_only
    from agentctx.checks.stable_builder import assert_stable_builder

__all__ = ["PrefixBroken", "assert_append_only", "assert_stable_builder"]

# The pytest plugin stands in this package: loading it must not load what only a check needs.
_LAZY = {
    "PrefixBroken": "agentctx.checks.append_only",
    "assert_append_only": "agentctx.checks.append_only",
    "assert_stable_builder": "agentctx.checks.stable_builder",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'agentctx.checks' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
