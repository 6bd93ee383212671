"""Bad input: an InputError with file, line and remedy, never a traceback, and memory that stays bounded."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentctx.errors import InputError
from agentctx.traces import expand, load, read_records
from agentctx.traces.source import VALUE_LIMIT, parse_json, read_lines


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


_numbers = count()


def claude(role: str, content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": "msg_1", "model": "claude-x"}
    return {"type": role, "uuid": f"u{next(_numbers)}", "sessionId": "s", "message": message, **more}


CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"}
HELLO = claude("user", "hello")

BAD: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 1, "empty"),
    "blank lines": (b"\n\n  \n", 1, "empty"),
    "text": (b"Dear all,\nplease find attached\n", 1, "unknown format"),
    "table": (b"file\tmessages\na.json\t3\n", 1, "unknown format"),
    "markdown": (b"# Title\n\n- item\n", 1, "unknown format"),
    "binary": (bytes(range(256)) * 8, 1, "binary"),
    "NUL bytes": (b'{"a": 1}\x00\n', 1, "binary"),
    "UTF-16": ('{"a": 1}\n'.encode("utf-16"), 1, "unknown format"),
    "latin-1": ('{"type": "user", "sessionId": "é", "uuid": "u"}\n'.encode("latin-1"), 1, "UTF-8"),
    "number": (b"17\n", 1, "unknown format"),
    "unknown object": (lines({"a": 1}), 1, "unknown format"),
    "unknown list": (b"[1, 2, 3]\n", 1, "unknown format"),
    "unknown document": (json.dumps({"a": [1, {"b": 2}]}, indent=2).encode(), 1, "unknown format"),
    "many unknown objects": (lines(*({"a": n} for n in range(100))), 1, "unknown format"),
    "truncated first line": (b'{"type": "user", "sess', 1, "broken JSON"),
    "truncated first line of several": (b'{"type": "user", "sess\n' + lines(HELLO, HELLO), 1, "broken JSON"),
    "truncated line in the middle": (lines(HELLO) + b'{"type": "user", "mess\n' + lines(HELLO), 2, "broken JSON"),
    "torn last line": (lines(HELLO, HELLO) + b'{"type": "assistant", "uu', 3, "torn"),
    "line that is no object": (lines(HELLO) + b"[1]\n", 2, "expected a JSON object"),
    "broken document": (b'{\n  "sessionId": "a",\n  "messages": [\n    {"type": "user",,\n  ]\n}\n', 4, "broken JSON"),
    "not a number": (lines(HELLO) + b'{"type": "user", "x": NaN}\n', 2, "NaN"),
    "huge number": (lines(HELLO) + b'{"x": ' + b"9" * 10_000 + b"}\n", 2, "broken JSON"),
    "deep": (b"[" * 200_000 + b"\n", 1, "nested deeper"),
    "deep object": (lines(HELLO) + b'{"a":' * 200_000 + b"\n", 2, "nested deeper"),
    "result without call": (lines(HELLO, claude("user", [RESULT])), 2, "answers the call 'toolu_1'"),
    "result before its call": (lines(claude("user", [RESULT]), claude("assistant", [CALL])), 1, "answers the call"),
    "result without id": (lines(claude("user", [{**RESULT, "tool_use_id": None}])), 1, "doesn't say which call"),
    "no messages": (lines({"type": "summary", "summary": "x", "leafUuid": "u"}), 1, "no messages"),
    "role of another world": (lines(HELLO, claude("user", "x") | {"message": {"role": "wizard"}}), 2, "unknown role"),
    "message that is text": (lines(HELLO, {"type": "user", "uuid": "u", "sessionId": "s", "message": "x"}), 2, "expected an object"),
    "content that is a number": (lines(claude("user", 5)), 1, "expected a list"),
    "gzip cut off": (gzip.compress(lines(*[HELLO] * 2000))[:-40], 1, "damaged or cut off"),
    "gzip of noise": (b"\x1f\x8b" + bytes(range(1, 200)), 1, "damaged or cut off"),
    "zstd of noise": (b"\x28\xb5\x2f\xfd" + bytes(range(1, 200)), 1, "damaged or cut off"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_file_line_and_remedy(name: str, tmp_path: Path) -> None:
    data, line, says = BAD[name]
    path = tmp_path / "input.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load(path)
    error = caught.value
    assert error.file == str(path)
    # The decompressor reads ahead: where the damage is found depends on its buffer.
    assert error.line == line or (name == "gzip cut off" and error.line is not None)
    assert says in str(error)
    assert error.remedy
    assert str(error).startswith(f"{path}:")
    assert error.exit_code == 3


def test_an_orphan_in_an_indented_document_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.traj"
    history = [
        {"role": "user", "content": "x"},
        {"role": "tool", "content": "y", "tool_call_ids": ["call_gone"]},
    ]
    text = json.dumps({"history": history}, indent=1)
    path.write_text(text)
    with pytest.raises(InputError, match="call_gone") as caught:
        load(path)
    assert caught.value.line == 1 + text[: text.index("call_gone")].count("\n")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "gone.jsonl")
    with pytest.raises(InputError, match="can't open"):
        load(tmp_path)
    with pytest.raises(InputError, match="can't open"):
        load("a\x00b")
    with pytest.raises(InputError, match="no such file or folder"):
        list(expand([tmp_path / "gone"]))
    with pytest.raises(InputError, match="no files"):
        list(expand([tmp_path]))


def test_other_files_are_still_read(tmp_path: Path) -> None:
    (tmp_path / "INDEX.tsv").write_text("file\tmessages\n")
    (tmp_path / "a.jsonl").write_bytes(lines(HELLO, claude("assistant", "hi")))
    (tmp_path / "b.jsonl").write_bytes(b"{")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.jsonl").write_bytes(lines(HELLO, claude("assistant", "hi")))
    read, refused = [], []
    for file in expand([tmp_path]):
        try:
            read += [(Path(file).name, session.message_count) for session in load(file)]
        except InputError as error:
            refused.append(Path(error.file or "").name)
    assert read == [("a.jsonl", 2), ("c.jsonl", 2)]
    assert refused == ["INDEX.tsv", "b.jsonl"]


# VmHWM is the peak of this program alone; ru_maxrss would start from the test runner that spawned it.
_MEMORY_PROBE = """
import sys
from agentctx.errors import InputError
from agentctx.traces import load, read_records
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
try:
    list({"session": load, "log": read_records}[sys.argv[1]](sys.argv[2]))
except InputError as error:
    print((peak() - before) // 1024, error, sep="\\n")
"""

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(("kind", "compressed"), [("session", False), ("log", False), ("session", True)])
def test_a_line_of_200_mb_is_refused_in_bounded_memory(tmp_path: Path, kind: str, compressed: bool) -> None:
    path = tmp_path / "long.jsonl"
    chunk = b"x" * (1 << 20)
    with gzip.open(path, "wb", compresslevel=1) if compressed else path.open("wb") as file:
        file.write(lines(HELLO if kind == "session" else BODY) + b'{"type": "user", "message": "')
        for _ in range(200):
            file.write(chunk)
        file.write(b'"}\n')
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY_PROBE, kind, str(path)], capture_output=True, text=True, check=True
    )
    grown, error = done.stdout.splitlines()
    assert error == f"{path}:2: the line is longer than 64 MiB; split the file: one record stands on one line"
    assert int(grown) > 40, "MiB: the probe sees the buffer of one line"
    assert int(grown) < 160, "MiB: a line of the limit, its buffer, and no more"


def test_a_line_at_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * 100 + b"\n" + b"b" * 5)
    assert [(line.number, len(line.data), line.ended) for line in read_lines(path, 100)] == [
        (1, 100, True),
        (2, 5, False),
    ]
    with pytest.raises(InputError, match="longer") as caught:
        list(read_lines(path, 99))
    assert caught.value.line == 1
    assert VALUE_LIMIT == 64 * 1024 * 1024


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(
        b"\xef\xbb\xbf" + lines(HELLO).replace(b"\n", b"\r\n") + b"\r\n" + lines(claude("assistant", "hi"))
    )
    (session,) = load(path)
    assert [entry.message.text for entry in session.entries] == ["hello", "hi"]
    assert [entry.line for entry in session.entries] == [1, 3]


def test_nesting_is_measured_outside_of_strings(tmp_path: Path) -> None:
    text = "[{" * 500
    assert parse_json(json.dumps({"a": text + '\\"' + text}).encode(), "f", 1) == {"a": text + '\\"' + text}
    assert parse_json(b"[" * 200 + b"]" * 200, "f", 1)
    with pytest.raises(InputError, match="nested deeper than 200 levels"):
        parse_json(b"[" * 201 + b"]" * 201, "f", 1)
    path = tmp_path / "log"
    path.write_text("[\n" + json.dumps(BODY) + ",\n" + '{"a":' * 201 + "1" + "}" * 201 + "]")
    with pytest.raises(InputError, match="nested deeper than 200 levels") as caught:
        list(read_records(path))
    assert caught.value.line == 3


def test_half_surrogate_pairs_become_the_replacement_character() -> None:
    assert parse_json(rb'{"a\udc00": ["\ud83d", "\ud83d\ude00"]}', "f", 1) == {"a\ufffd": ["\ufffd", "😀"]}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(
        [sys.executable, "-c", "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode())", str(pipe), lines(HELLO).decode()]
    )  # fmt: skip
    try:
        assert [entry.message.text for session in load(pipe) for entry in session.entries] == ["hello"]
    finally:
        writer.wait(timeout=30)


def test_records_of_a_bad_log_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(BODY, BODY) + b'{"model": \n')
    with pytest.raises(InputError, match="broken JSON") as caught:
        list(read_records(path))
    assert (caught.value.file, caught.value.line) == (str(path), 3)
