"""Baselines: findings that are known and accepted, each with a reason.

A baseline is a JSON file: ``{"schema": 1, "accepted": [{"subject": …, "case": …, "cause": …, "reason": …}]}``. ``case`` and ``cause`` may be
left out: then every case, or every cause, of the subject is accepted. The subject of a template is its path from the baseline's folder, or
its URL; its name alone does where only one of the checked templates has it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

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

    def fits(self, finding: CheckFinding) -> bool:
        """Whether it accepts such a finding of its subject."""
        return self.case in ("", finding.case) and self.cause in ("", finding.cause)


class Names:
    """How the entries of a baseline call the subjects of a result.

    ``own``: by subject, the name that no other has. ``short``: by template, its name, which others may have, too.
    """

    def __init__(self, own: Mapping[str, str], short: Mapping[str, str]) -> None:
        self.own = own
        self._short = short
        self._by_own: dict[str, list[str]] = defaultdict(list)
        self._by_short: dict[str, list[str]] = defaultdict(list)
        for subject, name in own.items():
            self._by_own[name].append(subject)
        for subject, name in short.items():
            self._by_short[name].append(subject)

    def sure(self, subject: str) -> list[str]:
        """The names that mean it and nothing else that was checked."""
        own = self.own[subject]
        names = dict.fromkeys((own, self._short.get(subject, own)))
        return [name for name in names if self.owns(name) == [own]]

    def meant(self, name: str) -> list[str]:
        """The subjects that may be meant: by their own name, else by a short one."""
        return self._by_own.get(name) or self._by_short.get(name, [])

    def owns(self, name: str) -> list[str]:
        """Their own names."""
        return list(dict.fromkeys(self.own[subject] for subject in self.meant(name)))


def names_in(result: CheckResult, baseline: Path, root: Path = Path()) -> Names:
    """The names of a result's subjects in a baseline. ``root``: the folder in which the check ran."""
    subjects = [finding.subject for finding in result.findings]
    subjects += [subject for subject, _ in result.passed] + [error.subject for error in result.errors]
    own = {subject: subject for subject in subjects}
    for subject, origin in result.origins.items():
        own[subject] = _from(baseline, root, origin.place)
    return Names(own, {subject: origin.name for subject, origin in result.origins.items()})


def _from(baseline: Path, root: Path, place: str) -> str:
    """A place as seen from the baseline's folder, so that it is the same wherever the check is started."""
    if "://" in place:
        return place
    path = root / place
    # The template itself may be a link into a store, whose name says nothing.
    there = path.parent.resolve() / path.name
    try:
        return Path(os.path.relpath(there, baseline.parent.resolve())).as_posix()
    except ValueError:  # on another drive
        return there.as_posix()


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


def apply_baseline(result: CheckResult, accepted: Sequence[Accepted], names: Names) -> None:
    """Allow the findings that the baseline covers; entries that cover nothing any more, or not for sure, are noted."""
    entries = _by_subject(accepted)
    used: set[Accepted] = set()
    made = []
    for finding in result.findings:
        known = (entry for name in names.sure(finding.subject) for entry in entries.get(name, ()))
        entry = next((entry for entry in known if entry.fits(finding)), None)
        if entry is not None:
            used.add(entry)
            if not finding.allowed:
                finding = finding.permitted(entry.reason)
        made.append(finding)
    result.findings = made
    result.notes += _notes(result, [entry for entry in accepted if entry not in used], names)


def _notes(result: CheckResult, idle: Sequence[Accepted], names: Names) -> list[str]:
    """About entries that cover nothing."""
    notes = []
    findings, evaluated = _by_subject(result.findings), result.evaluated
    unclear: dict[str, None] = {}
    for entry in idle:
        if len(names.owns(entry.subject)) > 1 and _found(findings, entry, names):
            unclear[entry.subject] = None
        elif _settled(evaluated, entry, names) and not _found(findings, entry, names):
            what = " ".join(filter(None, (entry.subject, entry.case, entry.cause)))
            notes.append(f"the baseline accepts {what}, which was not found: take the entry out")
    for name in unclear:
        own = names.owns(name)
        notes.append(
            f"the baseline accepts {name}, and {len(own)} templates are called so: write the path of the one that is meant "
            f"({', '.join(own)}), or write it anew with --update-baseline"
        )
    return notes


_Named = TypeVar("_Named", Accepted, CheckFinding)


def _by_subject(each: Iterable[_Named]) -> dict[str, list[_Named]]:
    found: dict[str, list[_Named]] = defaultdict(list)
    for one in each:
        found[one.subject].append(one)
    return found


def _found(findings: Mapping[str, list[CheckFinding]], entry: Accepted, names: Names) -> list[CheckFinding]:
    """What the entry covers or, where several templates have its name, may cover."""
    meant = names.meant(entry.subject)
    return [each for subject in meant for each in findings.get(subject, ()) if entry.fits(each)]


def _settled(evaluated: set[str], entry: Accepted, names: Names) -> bool:
    """Whether all that the entry may be about was evaluated."""
    meant = names.meant(entry.subject)
    return bool(meant) and evaluated.issuperset(meant)


def baseline_text(result: CheckResult, old: Sequence[Accepted], names: Names, reason: str) -> str:
    """The text of a baseline that accepts what fails in a result as well. The caller writes it.

    Old entries stay, with their reasons, unless all that they are about was evaluated and what they accept is gone.
    """
    findings = _by_subject(finding for finding in result.findings if finding.level == "error")
    evaluated, before = result.evaluated, _by_subject(old)
    made: dict[Accepted, None] = {}
    for entry in old:
        if not _settled(evaluated, entry, names):
            made[entry] = None
        for subject in _subjects(_found(findings, entry, names)):
            made[_renamed(entry, subject, names, reason, before)] = None
    kept = _by_subject(made)
    for finding in result.failing:
        own = names.own[finding.subject]
        if not any(entry.fits(finding) for entry in kept.get(own, ())):
            made[Accepted(own, finding.case, finding.cause, reason)] = None
    entries = sorted(made, key=lambda entry: (entry.subject, entry.case, entry.cause))
    data = {"schema": 1, "accepted": [_json(entry) for entry in entries]}
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def _subjects(findings: Sequence[CheckFinding]) -> list[str]:
    return list(dict.fromkeys(finding.subject for finding in findings))


def _renamed(
    entry: Accepted, subject: str, names: Names, reason: str, before: Mapping[str, list[Accepted]]
) -> Accepted:
    """The entry for one subject that it is about. Where others may have been meant, its reason is not the whole one."""
    exact = replace(entry, subject=names.own[subject])
    if len(names.owns(entry.subject)) == 1 or reason == entry.reason:
        return exact
    told = replace(exact, reason=f"{entry.reason}; {reason}")
    # An earlier update may have said it already.
    for each in before.get(exact.subject, ()):
        if each.reason.startswith(entry.reason) and replace(each, reason=entry.reason) == exact:
            return each
    return told


def _json(entry: Accepted) -> dict[str, str]:
    values = {"subject": entry.subject, "case": entry.case, "cause": entry.cause, "reason": entry.reason}
    return {name: value for name, value in values.items() if value}
