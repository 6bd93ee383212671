"""What an independent renderer found out about 336 real chat templates, found again with ours.

``TRUTH.tsv`` has a row per template and case: append-only without a generation prompt, from prompt to stored reply, and from call to
call; the first failing step, its offset and the characters lost. ``PROFILE.tsv`` says what each template takes and prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctx.checks.battery import Growth, battery
from agentctx.checks.facts import Facts, read_facts
from agentctx.checks.growth import CaseResult, run_case
from agentctx.checks.subject import Subject
from tests.rendering.corpus_templates import Row, processes, rows, subjects

pytestmark = [pytest.mark.corpus, pytest.mark.slow]

DISAGREEMENTS: dict[tuple[str, str], str] = {}
"""Rows in which we differ, each with the reason for which it is not ours to mend: none."""

_LEVELS = {"stored": "nogen", "reply": "gen", "calls": "calls", "pair": "pair"}
# Of the tables' columns, those that no rendering answers: the wording of causes and notes.
_TRUTH_COLUMNS = (
    "append_only_nogen", "append_only_gen", "append_only_calls", "first_failing_step", "failing_mode", "offset",
    "prev_len", "worst_call_chars_lost", "excerpt_prev", "excerpt_next",
)  # fmt: skip


def shown(text: str, at: int) -> str:
    """An excerpt as the tables write it."""
    piece = text[at : at + 60].replace("\\", "\\\\")
    for raw, written in (("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        piece = piece.replace(raw, written)
    return piece or "<end of text>"


def truth_row(result: CaseResult) -> Row:
    found = result.first
    row = {
        "append_only_nogen": result.stored,
        "append_only_gen": result.reply,
        "append_only_calls": result.calls,
        **dict.fromkeys(_TRUTH_COLUMNS[3:], ""),
    }
    if isinstance(result.case, Growth) and not result.error:
        row["worst_call_chars_lost"] = str(result.worst_lost)
    if found is not None:
        before, after = found.before.text, found.after.text
        row |= {
            "first_failing_step": "" if found.level == "pair" else "->".join(map(str, found.step)),
            "failing_mode": _LEVELS[found.level],
            "offset": str(found.offset),
            "prev_len": str(len(before)),
            "worst_call_chars_lost": str(result.worst_lost),
            "excerpt_prev": shown(before, found.offset),
            "excerpt_next": shown(after, found.offset),
        }
    return row


def profile_row(facts: Facts) -> Row:
    prompt = facts.generation_prompt
    named = {True: "yes", False: "no", None: ""}
    keeps = [f"{name}={value} -> nogen {verdict}" for name, value, verdict in facts.keeps]
    raises = facts.calls == "raises"
    return {
        "content_form": {"string": "string", "parts": "list", "neither": "NEITHER"}[facts.content],
        "system": facts.system,
        "default_system": named[facts.default_system],
        "gen_prompt": "raises" if prompt is None else shown(prompt, 0) if prompt else "(none)",
        "tool_defs": facts.definitions,
        "tools_at": facts.tools_at,
        "tool_calls": facts.calls,
        "tool_results": facts.results,
        "args_form": {"mapping": "dict", "raw": "str", None: ""}[facts.arguments],
        "args_accepts": facts.arguments_taken,
        "empty_content": "" if raises else repr(facts.beside_calls),
        "parallel": "ok" if facts.parallel else "raises",
        "reasoning_in_tool_loop": facts.reasoning_in_loop.replace("dropped", "not kept"),
        "reasoning_after_new_user": facts.reasoning_later,
        "keep_kwarg": keeps[-1] if keeps else "",
        "thinking_switch": ",".join(facts.thinking),
        "thinking_default": facts.thinking_default.replace("neither", "?"),
        "whitespace": facts.whitespace or "",
        "unicode": facts.unicode,
        "date": facts.date,
        "prints_indent": named[facts.indented],
        "transformers_refuses": "yes" if facts.relaxed else "",
        "compile_error": "",
    }


def answers(job: tuple[str, str, dict[str, str]]) -> tuple[str, dict[str, Row], Row]:
    """Everything that the tables ask of one template."""
    name, source, tokens = job
    subject = Subject(source, name=name, variables=tokens)
    results = {case.name: run_case(subject, case) for case in battery(subject)}
    found = {case: truth_row(result) for case, result in results.items()}
    return name, found, profile_row(read_facts(subject, results))


@pytest.fixture(scope="module")
def found(shared_dir: Path) -> Iterator[dict[str, tuple[dict[str, Row], Row]]]:
    folder = shared_dir / "corpus" / "templates"
    with processes() as pool:
        found = pool.map(answers, subjects(folder), chunksize=4)
        yield {name: (truth, profile) for name, truth, profile in found}


def expected_truth(row: Row) -> Row:
    return {column: row[column] for column in _TRUTH_COLUMNS}


def expected_profile(row: Row) -> Row:
    expected = {column: value for column, value in row.items() if column != "name"}
    # What an error says is each renderer's own wording; that there is one is not.
    if expected["gen_prompt"].startswith(("rejects: ", "UndefinedError: ", "TypeError: ")):
        expected["gen_prompt"] = "raises"
    if expected["transformers_refuses"]:
        expected["transformers_refuses"] = "yes"
    return expected


def differences(expected: Row, got: Row | None) -> str:
    if got is None:
        return "missing"
    return "; ".join(
        f"{column}: {value!r} expected, {got[column]!r} found"
        for column, value in expected.items()
        if got[column] != value
    )


def test_every_row_of_the_truth(
    shared_dir: Path, found: dict[str, tuple[dict[str, Row], Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows(shared_dir / "corpus" / "templates", "TRUTH.tsv")
    wrong = {}
    for row in table:
        truth, _ = found[row["template"]]
        difference = differences(expected_truth(row), truth.get(row["case"]))
        if difference:
            wrong[row["template"], row["case"]] = difference
    assert {(row["template"], row["case"]) for row in table} == {
        (name, case) for name, (truth, _) in found.items() for case in truth
    }
    with capsys.disabled():
        print(f"\nTRUTH.tsv: {len(table) - len(wrong)} of {len(table)} rows agree, {len(wrong)} disagree")
    assert len(found) >= 336
    assert wrong.keys() == DISAGREEMENTS.keys(), wrong


def test_every_row_of_the_profile(
    shared_dir: Path, found: dict[str, tuple[dict[str, Row], Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows(shared_dir / "corpus" / "templates", "PROFILE.tsv")
    wrong = {}
    for row in table:
        difference = differences(expected_profile(row), found[row["name"]][1])
        if difference:
            wrong[row["name"], "profile"] = difference
    with capsys.disabled():
        print(f"\nPROFILE.tsv: {len(table) - len(wrong)} of {len(table)} rows agree, {len(wrong)} disagree")
    assert len(table) >= 336
    assert not wrong
