"""The shared request cases: verdict, turn, place, cause and recurrence, and conversations told apart without ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctx.diagnosis import Diagnosis, Exchange, diagnose_log, exchange_of

CASES = 40


def cases(shared_dir: Path) -> list[Path]:
    return sorted(path for path in (shared_dir / "cases" / "requests").iterdir() if path.is_dir())


def calls(case: Path) -> list[Exchange]:
    with open(case / "requests.jsonl", encoding="utf-8") as lines:
        return [exchange_of(json.loads(line), line=number) for number, line in enumerate(lines, start=1)]


def said(diagnosis: Diagnosis) -> tuple[Any, ...]:
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first is None:
        return ("clean", None, None, "none", False)
    return (diagnosis.verdict, first.turn, first.place, first.cause, first.recurs)


@pytest.mark.parametrize("number", range(1, CASES + 1))
def test_case(shared_dir: Path, number: int) -> None:
    (case,) = (path for path in cases(shared_dir) if path.name.startswith(f"s{number:02}-"))
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    log = calls(case)
    diagnosis = diagnose_log(log)
    verdict, turn, place, cause, recurs = said(diagnosis)
    assert (verdict, turn, place, recurs) == (
        expected["verdict"],
        expected["turn"],
        expected["where"],
        expected["recurs"],
    )
    assert cause in (expected["cause"], *expected.get("accept", ()))
    if "marker" in expected:
        assert diagnosis.findings[0].marker in (expected["marker"], None)
    assert not diagnosis.suspicions
    # No second cause: what is folded is one finding for each conversation.
    assert {finding.cause for finding in diagnosis.findings} <= {cause}
    labels = [next(c.id for c in diagnosis.conversations if index in c.turns) for index in range(len(log))]
    pairs = set(zip(labels, expected["conversation"], strict=True))
    assert len(pairs) == len(set(labels)) == len(set(expected["conversation"]))


def test_all_cases_are_run(shared_dir: Path) -> None:
    assert len(cases(shared_dir)) == CASES


def test_nothing_depends_on_the_order_of_keys_in_a_record(shared_dir: Path) -> None:
    """The same log with every protocol object's keys reversed gives the same findings."""

    def turned(value: Any, inside: bool = False) -> Any:
        if isinstance(value, dict):
            if inside:
                return value
            return {
                key: turned(item, key in ("parameters", "input_schema", "input"))
                for key, item in reversed(value.items())
            }
        return [turned(item) for item in value] if isinstance(value, list) else value

    for case in cases(shared_dir):
        log = calls(case)
        other = [
            Exchange(c.api, turned(c.request), turned(c.response), c.at, c.endpoint_hint, c.line) for c in log
        ]
        assert said(diagnose_log(other)) == said(diagnose_log(log)), case.name
