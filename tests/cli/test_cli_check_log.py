"""`agentctx check log`: what it prints, its JSON, its budgets, its exit codes."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentctx.checks.log import log_schema
from agentctx.traces import LogRecord, LogWriter
from tests.diagnosis.healthy_sessions import Session, make

from .command import Command


def session(seed: int = 3, turns: int = 8) -> Session:
    return make(seed, "openai.chat", turns=turns, replies=False, reasoning=False)


def clock(made: Session) -> Session:
    """A clock at the head of the system prompt from the fourth turn on."""
    for number, body in enumerate(made.bodies[3:], start=3):
        head = body["messages"][0]
        body["messages"] = [
            {**head, "content": f"Now: 10:0{number}\n" + head["content"]},
            *body["messages"][1:],
        ]
    return made


def written(path: Path, made: Session) -> Path:
    path.write_text("".join(json.dumps(body) + "\n" for body in made.bodies))
    return path


def test_a_clean_log(tmp_path: Path, command: Command) -> None:
    ended = command("check", "log", written(tmp_path / "clean.jsonl", session()))
    assert (ended.code, ended.err) == (0, "")
    assert "8 requests, 1 conversation, target as-sent: no finding" in ended.out


def test_a_broken_log(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "broken.jsonl", clock(session()))
    ended = command("check", "log", path, "--target", "chatml", "--prefill-rate", "1000")
    assert ended.code == 1
    assert f"! AC101 volatile-text  {path}:4 and 4 more, every turn since" in ended.out
    was, now = (line.strip() for line in ended.out.splitlines() if "was:" in line or "now:" in line)
    assert not was.startswith("was: Now")
    assert now.startswith("now: Now: 10:03⏎")
    assert "tokens paid again" in ended.out
    assert re.search(r"paid again.*, \d+\.\d s", ended.out)
    assert "remedy: " in ended.out


def test_json_follows_its_schema(tmp_path: Path, command: Command) -> None:
    paths = [
        written(tmp_path / "broken.jsonl", clock(session())),
        written(tmp_path / "clean.jsonl", session()),
        tmp_path / "torn.jsonl",
    ]
    paths[2].write_text(json.dumps(session().bodies[0]) + '\n{"messages": [')
    ended = command("check", "log", *paths, "--json", "--target", "chatml+slot", "--min-hit-rate", "99%")
    found: dict[str, Any] = json.loads(ended.out)
    jsonschema.Draft202012Validator.check_schema(log_schema())
    jsonschema.validate(found, log_schema())
    assert [log["exit_code"] for log in found["logs"]] == [1, 1, 3]
    assert ended.code == found["exit_code"] == 3
    # The one call before the damage was diagnosed all the same.
    assert found["logs"][2]["diagnosis"]["requests"] == 1
    assert found["logs"][2]["error"]["line"] == 2


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 1, "AC101"),
        (("--allow", "AC103"), 1, "AC101"),
        (("--allow", "volatile-text"), 0, "allowed"),
        (("--max-rework-turn", "100000"), 0, "allowed by budgets"),
        (("--max-rework-turn", "50"), 1, "! budget rework-turn: "),
        (("--max-rework-turn", "50", "--allow", "AC190"), 0, "  budget rework-turn: "),
        (
            ("--max-rework-turn", "50", "--allow", "budget-exceeded", "--min-hit-rate", "97%"),
            3,
            "can't be evaluated",
        ),
        (("--max-rework-session", "100"), 1, "budget rework-session: "),
        (
            ("--max-rework-turn", "100000", "--min-stable-prefix", "5000"),
            1,
            "budget stable-prefix: only the first",
        ),
        (
            ("--max-rework-turn", "100000", "--min-hit-rate", "0.1", "--target", "chatml+paged:16"),
            0,
            "allowed",
        ),
        (
            ("--max-rework-turn", "100000", "--min-hit-rate", "97%", "--target", "chatml+paged:16"),
            1,
            "hit rate",
        ),
        (("--max-rework-turn", "100000", "--min-hit-rate", "97%"), 3, "can't be evaluated"),
    ],
)
def test_budgets(tmp_path: Path, command: Command, options: tuple[str, ...], code: int, says: str) -> None:
    ended = command("check", "log", written(tmp_path / "log.jsonl", clock(session())), *options)
    assert (ended.code, says in ended.out) == (code, True), ended.out


def compacted(times: int) -> Session:
    """A long conversation that is summed up again and again."""
    made = session(turns=12)
    head = made.bodies[-1]["messages"][:2]
    bodies = []
    log: list[Any] = []
    for number in range(6 * times):
        if number and number % 6 == 0:
            text = (
                f"Summary of the conversation so far: {number} weeks were asked for, all of them are settled."
            )
            log = [{"role": "user", "content": text}]
        question = f"Question {number}: what does the ledger of week {number} say?"
        log = [*log, {"role": "user", "content": question}]
        bodies.append({**made.bodies[-1], "messages": [*head, *log]})
        log = [
            *log,
            {"role": "assistant", "content": f"The ledger of week {number} says {number * 17} crates."},
        ]
    return Session(
        made.api, bodies, [None] * len(bodies), [1_700_000_000.0 + 9 * n for n in range(len(bodies))]
    )


@pytest.mark.parametrize(
    ("allowed", "code"), [("1/6", 0), ("1/7", 1), ("2/7", 0), ("3/100", 0), ("2/100", 1)]
)
def test_budget_for_compactions(tmp_path: Path, command: Command, allowed: str, code: int) -> None:
    path = written(tmp_path / "log.jsonl", compacted(4))
    assert command("check", "log", path).code == 1
    ended = command("check", "log", path, "--max-compactions", allowed)
    assert ended.code == code, ended.out


@pytest.mark.parametrize("text", ["", "7", '"text"', "[1, 2]", "[1, 2", "null", "{}", "no JSON", "\x00"])
def test_a_file_that_is_no_log_is_named(tmp_path: Path, command: Command, text: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    ended = command("check", "log", tmp_path / "log.jsonl")
    assert ended.code == 3
    assert f"{tmp_path / 'log.jsonl'}:1: " in ended.err
    assert ended.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("log.jsonl", "--target", "nothing-of-the-kind"),
        ("log.jsonl", "--max-compactions", "often"),
        ("log.jsonl", "--min-hit-rate", "120%"),
        ("log.jsonl", "--allow", "AC999"),
        ("log.jsonl", "--cache", "slot"),
        ("log.jsonl", "--no-such-option"),
        (),
    ],
)
def test_usage_errors(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    written(tmp_path / "log.jsonl", session())
    monkeypatch.chdir(tmp_path)
    ended = command("check", "log", *arguments)
    assert ended.code == 2
    assert ended.err
    assert "Traceback" not in ended.err


def test_what_can_not_be_read_names_file_and_line(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "log.jsonl", session())
    path.write_text(path.read_text() + "no JSON at all\n")
    ended = command("check", "log", path, tmp_path / "clean.jsonl")
    assert ended.code == 3  # a file that isn't there, told before anything is read
    written(tmp_path / "clean.jsonl", session())
    ended = command("check", "log", path, tmp_path / "clean.jsonl")
    assert ended.code == 3
    assert f"{path}:9: " in ended.err
    assert ended.out.count("no finding") == 2  # the other file was checked all the same
    path.write_text("no JSON at all\n")
    ended = command("check", "log", path)
    assert (ended.code, ended.out) == (3, "")


def test_logs_of_all_kinds_say_the_same(tmp_path: Path, command: Command) -> None:
    """Bodies, wrapped records, one array, a HAR, our own log, compressed: one log, one verdict."""
    made = clock(session())
    plain = written(tmp_path / "a.jsonl", made)
    (tmp_path / "b.jsonl").write_text(
        "".join(
            json.dumps({"ts": at, "request": body}) + "\n"
            for at, body in zip(made.times, made.bodies, strict=True)
        )
    )
    (tmp_path / "c.json").write_text(json.dumps(made.bodies, indent=1))
    entries = [
        {
            "request": {
                "method": "POST",
                "url": "https://x/v1/chat/completions",
                "postData": {"text": json.dumps(body)},
            }
        }
        for body in made.bodies
    ]
    (tmp_path / "d.har").write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    with LogWriter(tmp_path / "e.jsonl") as log:
        for number, body in enumerate(made.bodies):
            log.write(LogRecord("", 1, number, "openai.chat", body))
    (tmp_path / "f.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    said = set()
    for path in sorted(tmp_path.iterdir()):
        (log_report,) = json.loads(command("check", "log", path, "--json").out)["logs"]
        said.add(
            tuple((f["code"], f["turn"], f["where"], f["count"]) for f in log_report["diagnosis"]["findings"])
        )
    assert len(said) == 1
    assert next(iter(said))[-1][0] == "AC101"


def test_pieces_of_one_log(tmp_path: Path, command: Command) -> None:
    made = clock(session())
    lines = written(tmp_path / "whole.jsonl", made).read_text().splitlines(keepends=True)
    (tmp_path / "one.jsonl").write_text("".join(lines[:5]))
    (tmp_path / "two.jsonl").write_text("".join(lines[5:]))
    parts = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    whole = command("check", "log", tmp_path / "whole.jsonl").out.splitlines()[-1]
    assert command("check", "log", *parts, "--one-log").out.splitlines()[-1] == whole


def test_other_records_are_refused_or_passed_over(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "log.jsonl", session())
    path.write_text('{"level": "info", "message": "server started"}\n' + path.read_text())
    assert command("check", "log", path).code == 3
    ended = command("check", "log", path, "--skip-others")
    assert ended.code == 0
    assert f"note: {path}:1: passed over" in ended.out


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = command("check", "log", tmp_path / "pipe")
    assert ended.code == 3
    assert "save it to a file first" in ended.err
