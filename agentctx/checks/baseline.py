"""Baselines: findings that are known and accepted, each with a reason.

A baseline is a JSON file: ``{"schema": 1, "accepted": [{"subject": …, "case": …, "cause": …, "reason": …}]}``. ``case`` and ``cause`` may be
left out: then every case, or every cause, of the subject is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctx.errors import InputError
from agentctx.reports.check_result import CheckFinding, CheckResult

_FIELDS = frozenset(("subject", "case", "cause", "reason"))


@dataclass(frozen=True, slots=True)
class Accepted:
    """One entry. ``case`` and ``cause`` are empty for all."""

    subject: str
    case: str
    cause: str
    reason: str

    def covers(self, finding: CheckFinding) -> bool:
        return (
            self.subject == finding.subject
            and self.case in ("", finding.case)
            and self.cause in ("", finding.cause)
        )


def read_baseline(path: Path) -> list[Accepted]:
    """Read a baseline. Raises ``InputError`` that names file and field: an entry without a reason is one."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read as a baseline: {error}", file=str(path)) from error
    entries = data.get("accepted") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise InputError("has no list of accepted findings", file=str(path), field="accepted")
    return [_entry(path, index, entry) for index, entry in enumerate(entries)]


def _entry(path: Path, index: int, entry: Any) -> Accepted:
    place = f"accepted[{index}]"
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise InputError("not an object of strings", file=str(path), field=place)
    unknown = sorted(entry.keys() - _FIELDS)
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}", file=str(path), field=place)
    for name in ("subject", "reason"):
        if not entry.get(name, "").strip():
            raise InputError(
                f"has no {name}",
                file=str(path),
                field=f"{place}.{name}",
                remedy="say what is accepted, and why" if name == "reason" else None,
            )
    return Accepted(entry["subject"], entry.get("case", ""), entry.get("cause", ""), entry["reason"])


def apply_baseline(result: CheckResult, accepted: Sequence[Accepted]) -> None:
    """Allow the findings that the baseline covers; entries that cover nothing any more are noted."""
    used: set[Accepted] = set()
    made = []
    for finding in result.findings:
        entry = next((each for each in accepted if each.covers(finding)), None)
        if entry is not None:
            used.add(entry)
            finding = finding.permitted(entry.reason)
        made.append(finding)
    result.findings = made
    tried = {finding.subject for finding in result.findings} | {subject for subject, _ in result.passed}
    for entry in accepted:
        if entry not in used and entry.subject in tried:
            what = " ".join(filter(None, (entry.subject, entry.case, entry.cause)))
            result.notes.append(f"the baseline accepts {what}, which was not found: take the entry out")


def baseline_text(findings: Iterable[CheckFinding], old: Sequence[Accepted], reason: str) -> str:
    """The text of a baseline that accepts these failing findings; reasons of old entries are kept. The caller writes it."""
    entries = []
    for finding in findings:
        if finding.level != "error":
            continue
        known = next((each.reason for each in old if each.covers(finding)), reason)
        entries.append(
            {"subject": finding.subject, "case": finding.case, "cause": finding.cause, "reason": known}
        )
    entries.sort(key=lambda entry: (entry["subject"], entry["case"], entry["cause"]))
    return json.dumps({"schema": 1, "accepted": entries}, ensure_ascii=False, indent=2) + "\n"
