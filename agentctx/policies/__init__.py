"""Policies: what turns a History into the request of a turn.

``parse_policy("keep-last:5")`` makes one from its spec; ``describe_policies()`` lists them. One instance serves one
conversation.
"""

from agentctx.policies.append_only import AppendOnly
from agentctx.policies.base import EditingPolicy, SummaryPlan
from agentctx.policies.break_even import BreakEven
from agentctx.policies.compose import Composition
from agentctx.policies.offload import DirectoryStore, OffloadResults, Store, name_only
from agentctx.policies.policy import CountTokens, Dropped, Policy, SideRequest, Turn
from agentctx.policies.registry import POLICIES, describe_policies, parse_policy
from agentctx.policies.results import ClearResults, KeepLastResults, MaskObservations
from agentctx.policies.summaries import ExtractiveStandIn, Summarizer, SummaryTask
from agentctx.policies.summarize import RollingSummary, SummarizeAt, SummarizeAtBudget
from agentctx.policies.tokens import TokenCounts
from agentctx.policies.window import SlidingWindow

__all__ = [
    "POLICIES",
    "AppendOnly",
    "BreakEven",
    "ClearResults",
    "Composition",
    "CountTokens",
    "DirectoryStore",
    "Dropped",
    "EditingPolicy",
    "ExtractiveStandIn",
    "KeepLastResults",
    "MaskObservations",
    "OffloadResults",
    "Policy",
    "RollingSummary",
    "SideRequest",
    "SlidingWindow",
    "Store",
    "SummarizeAt",
    "SummarizeAtBudget",
    "Summarizer",
    "SummaryPlan",
    "SummaryTask",
    "TokenCounts",
    "Turn",
    "describe_policies",
    "name_only",
    "parse_policy",
]
