"""Diagnosis: consecutive requests in; where the prefix broke, why, and what it cost, out."""

from agentctx.diagnosis.causes import BY_CODE, CAUSES, Cause, cause_of
from agentctx.diagnosis.exchange import Exchange, RecordedCall, detect_api, exchange_of
from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding, Loss
from agentctx.diagnosis.log_diagnosis import LogDiagnosis, diagnose, diagnose_log
from agentctx.diagnosis.targets import AS_SENT, Target, parse_target
from agentctx.diagnosis.turn_tokens import TurnTokens
from agentctx.interchange.body_api import APIS, Api

__all__ = [
    "APIS",
    "AS_SENT",
    "BY_CODE",
    "CAUSES",
    "Api",
    "Cause",
    "Conversation",
    "Diagnosis",
    "Exchange",
    "Finding",
    "LogDiagnosis",
    "Loss",
    "RecordedCall",
    "Target",
    "TurnTokens",
    "cause_of",
    "detect_api",
    "diagnose",
    "diagnose_log",
    "exchange_of",
    "parse_target",
]
