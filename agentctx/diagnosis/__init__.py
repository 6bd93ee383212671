"""Diagnosis: consecutive requests in; where the prefix broke, why, and what it cost, out."""

from agentctx.diagnosis.exchange import APIS, Api, Exchange, detect_api, exchange_of, parse_time

__all__ = ["APIS", "Api", "Exchange", "detect_api", "exchange_of", "parse_time"]
