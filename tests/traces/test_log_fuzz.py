"""2,000 random corruptions of real logs and recordings: an answer or an InputError with file and line, in time."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentctx.checks.log import LogRules, check_log, report_lines, reports_json
from agentctx.checks.log_budgets import Budgets
from agentctx.diagnosis import parse_target
from agentctx.errors import InputError
from agentctx.traces import load, read_records, record_reply, record_request

CORRUPTIONS = 2000
RULES = LogRules(parse_target("chatml+paged:16"), Budgets(rework_turn=100, hit_rate=0.9, stable_prefix=10))
SEED = 20260301
PIECE = 24_000  # bytes of each file that are corrupted: whole lines from its head, so that many runs fit into seconds

JUNK = (b"{", b"}", b"[", b"]", b'"', b"\\", b"null", b"1e999", b"-", b"\x00", b"\xff", b"\\ud800", b"\n", b"9" * 5000, b"[" * 3000)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    5,
    -1.5,
    True,
    "",
    "x",
    [],
    {},
    [1],
    [None],
    [[]],
    {"a": 1},
    [{}],
    "\ud800",
    10**40,
)
KEYS = ("type", "role", "content", "messages", "id", "message", "arguments", "x")


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(JUNK) + data[at:]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randrange(1, 4)) + data[at + 1 :]


def delete(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(1, 300) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    end = at + rng.randrange(1, 2000)
    return data[:end] + data[at:end] + data[end:]


def swap_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def lose_field(data: bytes, rng: random.Random) -> bytes:
    return data.replace(json.dumps(rng.choice(KEYS)).encode(), b'"zz"', rng.choice((1, -1)))


def other_value(data: bytes, rng: random.Random) -> bytes:
    """Somewhere in a record, a value of another type: JSON as before, but no longer the shape."""
    lines = data.split(b"\n")
    picked = rng.randrange(len(lines))
    try:
        value = json.loads(lines[picked])
    except (ValueError, RecursionError):
        try:
            lines, picked, value = [data], 0, json.loads(data)
        except (ValueError, RecursionError):
            return data
    holder: Any = None
    key: Any = None
    item = value
    while isinstance(item, (dict, list)) and item and rng.random() < 0.85:
        holder = item
        key = rng.choice(list(item)) if isinstance(item, dict) else rng.randrange(len(item))
        item = item[key]
    if holder is None:
        return data
    if isinstance(holder, dict) and rng.random() < 0.2:
        holder[rng.choice(KEYS)] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)
    lines[picked] = json.dumps(value).encode()
    return b"\n".join(lines)


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    cut, insert, overwrite, delete, repeat, swap_lines, lose_field, other_value, other_value, other_value,
)  # fmt: skip


def piece(path: Path) -> bytes:
    """The head of a file: whole lines of it, or the whole of a document, shortened where it has long texts."""
    data = path.read_bytes()
    end = data.rfind(b"\n", 0, PIECE)
    if end > 0 and data[:1] == b"{" and data[1:2] not in (b"\n", b" "):
        return data[: end + 1]
    return re.sub(rb'"((?:[^"\\]|\\.){0,80})(?:[^"\\]|\\.){300,}"', rb'"\1"', data)


def use_sessions(path: Path) -> None:
    for session in load(path):
        assert len(session.messages) == len(session.generated)
        assert session.message_count > 0


def use_records(path: Path) -> None:
    for record in read_records(path):
        record_request(record)
        record_reply(record)


def use_diagnosis(path: Path) -> None:
    """As the command does it: every call is diagnosed, those before the damage too."""
    report = check_log(str(path), RULES)
    nothing_read = report.error is not None and not report.diagnosis.requests
    assert bool(list(report_lines(report))) != nothing_read
    json.dumps(reports_json([report]))
    if report.error is not None:
        raise report.error


def refusal(use: Callable[[Path], None], path: Path, what: str) -> InputError | None:
    """The error that a file was refused with, ``None`` when it was read. Anything else fails the test."""
    try:
        use(path)
    except InputError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return None


@pytest.mark.corpus
@pytest.mark.slow
def test_corruption_gives_an_answer_or_an_error_with_its_place(shared_dir: Path, tmp_path: Path) -> None:
    files = sorted((shared_dir / "corpus" / "traces").glob("*/*"))
    files += [
        path
        for path in sorted((shared_dir / "corpus" / "requests").glob("*.jsonl"))
        if "mooncake" not in path.name
    ]
    files += sorted((shared_dir / "cases" / "requests").glob("*/requests.jsonl"))
    pieces = [piece(path) for path in files]
    # Each piece is readable before it is corrupted, or the corruptions would find nothing.
    target = tmp_path / "input"
    for path, data in zip(files, pieces, strict=True):
        target.write_bytes(data)
        use_sessions(target) if "cases" not in path.parts else use_records(target)
    rng = random.Random(SEED)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for number in range(CORRUPTIONS):
        picked = rng.randrange(len(files))
        data = pieces[picked]
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            data = rng.choice(CHANGES)(data, rng) if data else data
        target.write_bytes(data)
        what = f"corruption {number} of {files[picked].name}, seed {SEED}"
        for use in (use_sessions, use_records, use_diagnosis):
            began = time.process_time()
            error = refusal(use, target, what)
            slowest = max(slowest, time.process_time() - began)
            outcomes[f"{use.__name__} {'refused' if error else 'read'}"] += 1
            if error is not None:
                assert error.file == str(target), what
                assert error.line is not None, what
                assert 1 <= error.line <= data.count(b"\n") + 1, what
                assert error.remedy, what
    assert slowest < 5, "seconds of CPU for one small file"
    # Both outcomes are common: the corruptions are neither harmless nor hopeless.
    assert min(outcomes.values()) > CORRUPTIONS / 20, outcomes
