"""A check's result as SARIF 2.1.0, the format of code scanning.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from agentctx.diagnosis.causes import Cause
from agentctx.reports.check_result import CheckError, CheckFinding, CheckResult, fingerprint

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(result: CheckResult, *, version: str) -> dict[str, Any]:
    """The log, as JSON values. ``version``: of agentctx."""
    rules = list({finding.code: finding.info for finding in result.findings}.values())
    places = {rule.code: index for index, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "agentctx",
                        "version": version,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not result.errors,
                        "exitCode": result.exit_code,
                        "toolExecutionNotifications": [_notification(error) for error in result.errors],
                    }
                ],
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(finding, places[finding.code], result.place(finding.subject))
                    for finding in result.findings
                ],
            }
        ],
    }


def _rule(cause: Cause) -> dict[str, Any]:
    name = "".join(word.capitalize() for word in cause.word.split("_"))
    return {
        "id": cause.code,
        "name": name,
        "shortDescription": {"text": cause.title},
        "fullDescription": {"text": cause.looks_like},
        "help": {"text": f"{cause.why}\n\n{cause.fix}"},
        "properties": {"tags": ["prompt-cache", cause.blame]},
    }


def _result(finding: CheckFinding, rule: int, place: str) -> dict[str, Any]:
    text = f"{finding.subject}, {finding.case}: {finding.message}"
    if finding.was or finding.now:
        text += f"\nwas: {finding.was}\nnow: {finding.now}"
    if finding.remedy:
        text += f"\nremedy: {finding.remedy}"
    made: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.level,
        "message": {"text": text},
        "partialFingerprints": {"agentctx/v2": fingerprint(finding, place)},
        "properties": {
            "subject": finding.subject,
            "case": finding.case,
            "cause": finding.cause,
            "paidAgainTokens": finding.loss.again,
            "exact": finding.loss.exact,
        },
    }
    if finding.file:
        made["locations"] = [{"physicalLocation": _location(finding.file, finding.line)}]
    if finding.allowed:
        made["suppressions"] = [{"kind": "external", "status": "accepted", "justification": finding.allowed}]
    return made


def _location(file: str, line: int | None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(file)}
    if line is not None:
        location["region"] = {"startLine": line}
    return location


def _artifact(file: str) -> dict[str, Any]:
    if "://" in file:
        return {"uri": quote(file, safe=":/?#[]@!$&'()*+,;=%~")}
    path = PurePath(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}


def _notification(error: CheckError) -> dict[str, Any]:
    made: dict[str, Any] = {"level": "error", "message": {"text": f"{error.subject}: {error.message}"}}
    if error.file:
        made["locations"] = [{"physicalLocation": _location(error.file, None)}]
    return made
