"""A diagnosis as plain text lines and as JSON (schema: ``schema.json`` beside this module)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding, Loss

SCHEMA_VERSION = 1


@cache
def json_schema() -> dict[str, Any]:
    """The JSON schema of ``to_json``."""
    text = (files("agentctx.diagnosis") / "schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON values."""
    return {
        "schema": SCHEMA_VERSION,
        "verdict": diagnosis.verdict,
        "target": diagnosis.target,
        "requests": diagnosis.requests,
        "conversation_count": diagnosis.conversation_count,
        "findings": [_finding_json(finding) for finding in diagnosis.findings],
        "suspicions": [_finding_json(finding) for finding in diagnosis.suspicions],
        "conversations": [_conversation_json(conversation) for conversation in diagnosis.conversations],
        "notes": list(diagnosis.notes),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.info.name,
        "cause": finding.cause,
        "title": finding.info.title,
        "blame": finding.info.blame,
        "verdict": finding.verdict,
        "suspected": finding.suspected,
        "target": finding.target,
        "conversation": finding.conversation,
        "turn": finding.turn,
        "turns": finding.turns,
        "count": finding.count,
        "recurs": finding.recurs,
        "file": finding.file,
        "line": finding.line,
        "where": finding.place,
        "zone": finding.zone,
        "was": finding.was,
        "now": finding.now,
        "detail": finding.detail,
        "marker": finding.marker,
        "underlying": finding.underlying,
        "also": list(finding.also),
        "remedy": finding.remedy,
        "loss": loss_json(finding.loss),
    }


def loss_json(loss: Loss) -> dict[str, Any]:
    """A loss as JSON values."""
    return {
        "lost_tokens": loss.lost,
        "paid_again_tokens": loss.again,
        "exact": loss.exact,
        "seconds": None if loss.seconds is None else round(loss.seconds, 3),
        "usd": None if loss.usd is None else round(loss.usd, 6),
    }


def _conversation_json(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "api": conversation.api,
        "model": conversation.model,
        "requests": conversation.requests,
        "turns": conversation.turns,
        "broken": conversation.broken,
        "reported": {
            "requests": conversation.reported,
            "prompt_tokens": conversation.prompt,
            "cached_tokens": conversation.cached,
        },
        "counted": None
        if conversation.tokens is None
        else {
            "prompt_tokens": conversation.tokens,
            "reused_tokens": conversation.reused,
            "lost_tokens": conversation.lost,
        },
    }


def text_lines(diagnosis: Diagnosis, *, suspicions: bool = True) -> Iterator[str]:
    """The diagnosis as lines of plain text, for a terminal or a log."""
    for finding in diagnosis.findings:
        yield from finding_lines(finding)
    if suspicions and diagnosis.suspicions:
        yield "suspected, not proven:"
        for finding in diagnosis.suspicions:
            yield from finding_lines(finding)
    yield summary_line(diagnosis)
    for note in diagnosis.notes:
        yield f"note: {note}"


def finding_lines(finding: Finding) -> Iterator[str]:
    """One finding: a headline, the texts, the price, the remedy."""
    mark = "?" if finding.suspected else "!" if finding.verdict == "broken" else "~"
    where = f"  {finding.place}" if finding.place else ""
    yield f"{mark} {finding.code} {finding.info.name}  {_location(finding)}{where}"
    if finding.detail:
        yield f"    {finding.detail}"
    if finding.was or finding.now:
        yield f"    was: {finding.was}"
        yield f"    now: {finding.now}"
    if finding.marker and finding.marker != finding.place:
        yield f"    marker: {finding.marker}"
    if finding.also:
        yield f"    also: {', '.join(finding.also[:5])}"
    price = price_of(finding.loss)
    if price:
        yield f"    cost: {price}"
    yield f"    remedy: {finding.remedy}"


def _location(finding: Finding) -> str:
    at = f"request {finding.turn + 1}" if finding.line is None else f"line {finding.line}"
    if finding.file is not None:
        at = f"{finding.file}:{finding.line or finding.turn + 1}"
    if finding.count > 1:
        every = ", every turn since" if finding.recurs else ""
        at += f" and {finding.count - 1} more{every}"
    return f"{at}, conversation {finding.conversation}"


def price_of(loss: Loss) -> str:
    """Tokens, seconds and money of a loss, as far as they are known."""
    if loss.again is None or not (loss.again or loss.lost):
        return ""
    about = "" if loss.exact else "about "
    text = f"{about}{loss.again:,} tokens paid again"
    if loss.lost is not None and loss.lost > loss.again:
        text += f" of {loss.lost:,} that could have been reused"
    if loss.seconds is not None:
        text += f", {loss.seconds:,.1f} s"
    if loss.usd is not None:
        text += f", ${loss.usd:,.4f}"
    return text if loss.exact else f"{text} (estimated)"


def summary_line(diagnosis: Diagnosis) -> str:
    """One line for the whole log."""
    turns = sum(finding.count for finding in diagnosis.findings)
    again = sum(finding.loss.again or 0 for finding in diagnosis.findings)
    what = "no finding"
    if diagnosis.findings:
        found = _counted(len(diagnosis.findings), "finding")
        what = f"{found} in {_counted(turns, 'turn')}, {_counted(again, 'token')} paid again"
    return (
        f"{_counted(diagnosis.requests, 'request')}, "
        f"{_counted(diagnosis.conversation_count, 'conversation')}, target {diagnosis.target}: {what}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
