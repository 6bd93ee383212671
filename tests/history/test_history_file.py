"""A history kept in a file: resumed exactly, torn lines cut, damage and second writers refused."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from agentctx.errors import HistoryError, InputError
from agentctx.history import History, Splice, TornLineWarning
from agentctx.history import journal as journal_module
from agentctx.messages import Message, Params, Tool

READ = Tool.of("read", "Read a file.", {"properties": {"path": {}, "lines": {}}})
GREP = Tool.of("grep", "Search.", {})


def fill(history: History) -> None:
    """A bit of everything that a record exists for."""
    history.note("10:05", key="time")
    history.user("Read both.")
    history.request()
    first = history.tool_call("read", '{"path" : "a"}')
    second = history.tool_call("read", '{"path":"b"}')
    history.tool_result(second, "beta “quoted” 🚀 \x00")
    history.tool_result(first, "alpha")
    history.params = Params(model="m-1", temperature=0.5)
    history.request()
    history.add_tool(GREP, "message")
    history.assistant("Both read.", reasoning="short")
    history.user("tpyo")
    history[-1] = Message(role="user", content="typo")
    history.attach(b"\x89PNG\r\n\x1a\n123")
    history.compact("summarized", [Splice(2, 6, (Message(role="user", content="summary"),))])
    history.request()
    history.assistant("draft")
    history.note("waits")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


@pytest.fixture
def filled(path: Path) -> Path:
    with History.open(path, "system", [READ], ["pinned"]) as history:
        fill(history)
    return path


def test_a_resumed_history_is_the_one_that_was_left(path: Path) -> None:
    with History.open(path, "system", [READ], ["pinned"]) as history:
        fill(history)
        left = history.checkpoint()
    with History.open(path) as again:
        assert again.checkpoint() == left
        again.user("go on")
        request = again.request()
    plain = History("system", [READ], ["pinned"])
    fill(plain)
    plain.user("go on")
    assert request == plain.request()
    assert request.messages[-1].notes == ("waits",)


def test_every_step_of_the_file_can_be_resumed(filled: Path, tmp_path: Path) -> None:
    """Whatever line was the last: the history of the first n records comes back and goes on."""
    lines = filled.read_bytes().splitlines(keepends=True)
    assert len(lines) > 15
    for length in range(1, len(lines) + 1):
        part = tmp_path / f"part-{length}.jsonl"
        part.write_bytes(b"".join(lines[:length]))
        with History.open(part) as history:
            for call in history.open_calls:
                history.tool_result(call, "late")
            history.user("more")
            history.request()


@pytest.mark.parametrize("cut", [1, 2, 40, 90])
def test_a_torn_last_line_is_cut_and_nothing_else(filled: Path, cut: int) -> None:
    whole = filled.read_bytes()
    lines = whole.splitlines(keepends=True)
    torn = lines[-1][: -min(cut, len(lines[-1]) - 1)]
    filled.write_bytes(b"".join(lines[:-1]) + torn)
    where = f"history.jsonl:{len(lines)}: the last line is torn \\({len(torn)} bytes"
    with pytest.warns(TornLineWarning, match=where) as caught:
        history = History.open(filled)
    assert caught[0].filename == __file__, "it points at the caller"
    assert filled.read_bytes() == b"".join(lines[:-1])
    assert history.pending_notes == ()
    history.note("waits")
    history.close()
    assert filled.read_bytes() == whole, "the same step gives the same bytes"


def test_a_torn_first_line_leaves_a_new_history(path: Path) -> None:
    path.write_bytes(b'{"chain":"00')
    with pytest.warns(TornLineWarning), History.open(path, "s") as history:
        history.user("x")
    with History.open(path) as history:
        assert [message.text for message in history] == ["s", "x"]


def changed(lines: list[bytes]) -> list[bytes]:
    lines[4] = (
        lines[4].replace(b"append", b"Append") if b"append" in lines[4] else lines[4].replace(b"c", b"d", 1)
    )
    return lines


def missing(lines: list[bytes]) -> list[bytes]:
    return lines[:4] + lines[5:]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[5], lines[4], *lines[6:]]


def garbage(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b"not json\n", *lines[4:]]


def other_frame(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[4].replace(b'{"chain":"', b'{"chaim":"'), *lines[5:]]


def other_middle(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[4].replace(b'","record":', b'","rekord":'), *lines[5:]]


@pytest.mark.parametrize("damage", [changed, missing, swapped, garbage, other_frame, other_middle])
def test_damage_is_named_by_line_and_left_alone(
    filled: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    data = b"".join(damage(filled.read_bytes().splitlines(keepends=True)))
    filled.write_bytes(data)
    with pytest.raises(InputError, match=r"history\.jsonl:5: the hash chain does not hold") as error:
        History.open(filled)
    assert error.value.line == 5
    assert filled.read_bytes() == data
    with pytest.raises(InputError):  # the lock was given back
        History.open(filled)


def rewritten(path: Path, records: list[Any]) -> None:
    """A file with a right chain over other records."""
    path.unlink()
    journal = journal_module.Journal(path)
    for record in records:
        journal.write(record)
    journal.close()


@pytest.mark.parametrize(
    ("records", "line", "problem"),
    [
        ([{"do": "append"}], 1, "first record must open"),
        ([{"do": "open", "state": {"format": 99}}], 1, "format 99"),
        ([{"do": "open", "state": {"format": 1}}], 1, "can't be restored"),
        ([None, {"do": "dance"}], 2, "unknown step 'dance'"),
        ([None, {"do": "append", "message": {"role": "tool"}}], 2, "must name the call"),
        ([None, {"do": "append", "message": {"role": "clown"}}], 2, "role"),
        ([None, {}], 2, "can't be taken"),
        ([None, {"do": "drafts", "messages": 5}], 2, "can't be taken"),
        ([None, {"do": "params", "params": []}], 2, "can't be taken"),
        (
            [None, {"do": "compact", "how": "removed", "splices": [{"start": 2}], "stand_in": False}],
            2,
            "can't be taken",
        ),
        (
            [None, {"do": "compact", "how": "removed", "splices": [], "stand_in": False}],
            2,
            "without a splice",
        ),
        ([None, []], 2, "not a record"),
        ([{"do": "open", "state": {"format": 1, "log": 5}}], 1, "can't be restored"),
        ([{"do": "open", "state": {"format": 1, "log": [5]}}], 1, "can't be restored"),
    ],
)
def test_a_file_of_wrong_records_is_refused(
    filled: Path, records: list[Any], line: int, problem: str
) -> None:
    head = json.loads(filled.read_bytes().splitlines()[0])["record"]
    rewritten(filled, [head if record is None else record for record in records])
    with pytest.raises(InputError, match=problem) as error:
        History.open(filled)
    assert (error.value.line, error.value.file) == (line, str(filled))


def test_a_second_writer_is_refused(filled: Path) -> None:
    with History.open(filled):
        with pytest.raises(HistoryError, match="another writer has this history open"):
            History.open(filled)
        code = f"from agentctx.history import History; History.open({str(filled)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another writer has this history open" in other.stderr
    History.open(filled).close()


def test_the_head_given_must_be_the_files(filled: Path) -> None:
    with History.open(filled, "system", [READ], ["pinned"]) as history:
        assert history.tools == (READ,)
    turned = Tool.of("read", "Read a file.", {"properties": {"lines": {}, "path": {}}})
    with History.open(filled, tools=[GREP, turned]) as history:
        assert history.tools == (READ,), "the first bytes are kept"
    for arguments, zone in (
        ({"system": "system 10:06"}, "system"),
        ({"system": "pinned"}, "system"),
        ({"pinned": ["other"]}, "pinned"),
        ({"tools": [READ, Tool.of("new")]}, r"tools \(new\)"),
    ):
        with pytest.raises(HistoryError, match=zone):
            History.open(filled, **arguments)  # type: ignore[arg-type]
    History.open(filled).close()


def test_the_parameters_given_hold_from_here_on(filled: Path) -> None:
    with History.open(filled) as history:
        kept, left = history.params, history.checkpoint()
    lines = filled.read_bytes()
    with History.open(filled, params=kept) as history:
        assert history.checkpoint() == left
        assert filled.read_bytes() == lines, "the same parameters are no step"
    with History.open(filled, params=Params(model="m-2")) as history:
        assert history.params == Params(model="m-2")
    with History.open(filled) as history:
        assert history.params == Params(model="m-2")
        history.user("go on")
        assert history.request().params == Params(model="m-2")


def test_nothing_is_written_twice(path: Path) -> None:
    with History.open(path, "s") as history:
        history.user("x")
        history.request()
        history.note("waits")
        lines = path.read_bytes().count(b"\n")
        history.seal()
        assert path.read_bytes().count(b"\n") == lines, "there is nothing to freeze"
        history.request()
        assert path.read_bytes().count(b"\n") == lines + 1, "a retry is a request and no more"


def test_a_tool_that_came_late_is_the_files_too(filled: Path) -> None:
    late = Tool.of("late", "Came later.")
    with History.open(filled) as history:
        history.add_tool(late, "epoch")
    with History.open(filled, tools=[READ, GREP, late]) as history:
        assert set(history.tools) == {READ, late}
        assert history.epoch == 2


def test_with_fsync_a_new_files_name_is_on_the_disk_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda file: directories.append(stat.S_ISDIR(os.fstat(file).st_mode)))
    History.open(path, "s", fsync=True).close()
    assert directories == [True, False]  # the directory, then the first record
    History.open(path, fsync=True).close()
    assert directories == [True, False], "nothing new"


def test_with_fsync_every_step_is_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with History.open(path, "s", fsync=True) as history:
        before = len(synced)
        history.user("x")
        history.request()
        assert len(synced) - before == 3  # append, seal, request
    with History.open(path.with_suffix(".2"), "s") as history:
        before = len(synced)
        history.user("x")
        assert len(synced) == before


class FullDisk:
    """A file on a disk with room for ``room`` more bytes."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: self.room]
        self.room -= len(part)
        return self.file.write(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_step_that_can_not_be_written_is_not_taken(path: Path) -> None:
    with History.open(path, "s") as history:
        history.user("kept")
        before, data = history.checkpoint(), path.read_bytes()
        journal = history._steps._journal
        assert journal is not None
        file = journal._file
        journal._file = FullDisk(file, 30)  # type: ignore[assignment]
        with pytest.raises(HistoryError, match="could not be written: No space left on device"):
            history.user("lost")
        assert (history.checkpoint(), path.read_bytes()) == (before, data)
        journal._file = file
        history.user("again")
    with History.open(path) as history:
        assert [message.text for message in history] == ["s", "kept", "again"]


def test_a_closed_history_is_read_only(path: Path) -> None:
    history = History.open(path, "s")
    history.close()
    assert history[0].text == "s"
    with pytest.raises(HistoryError, match="it was closed"):
        history.user("x")


def test_a_checkpoint_that_was_changed_is_refused(path: Path) -> None:
    history = History("s")
    history.user("hello")
    data = history.checkpoint()
    assert History.resume(data).checkpoint() == data
    with pytest.raises(InputError, match="hash does not hold"):
        History.resume(data.replace(b"hello", b"jello"))
    for bad in (b"", b"[]", b'{"sha256":"x"}', b"\xff"):
        with pytest.raises(InputError, match="not a checkpoint"):
            History.resume(bad)
