"""Policies: what turns a History into the request of a turn.

``parse_policy("keep-last:5")`` makes one from its spec; ``describe_policies()`` lists them.
"""

from agentctx.policies.append_only import AppendOnly
from agentctx.policies.policy import CountTokens, Dropped, Policy, Turn
from agentctx.policies.registry import POLICIES, describe_policies, parse_policy
from agentctx.policies.results import ClearResults, KeepLastResults
from agentctx.policies.stand_in import ExtractiveStandIn
from agentctx.policies.summarize import SummarizeAt, SummarizeAtBudget
from agentctx.policies.window import SlidingWindow

__all__ = [
    "POLICIES",
    "AppendOnly",
    "ClearResults",
    "CountTokens",
    "Dropped",
    "ExtractiveStandIn",
    "KeepLastResults",
    "Policy",
    "SlidingWindow",
    "SummarizeAt",
    "SummarizeAtBudget",
    "Turn",
    "describe_policies",
    "parse_policy",
]
