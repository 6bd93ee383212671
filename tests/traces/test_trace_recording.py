"""Our own trace format: written and read without loss, append-only, and a killed writer costs one line at most."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.errors import InputError, UsageError
from agentctx.messages import MediaPart, Message, Request, TextPart, Tool, ToolCall
from agentctx.traces import Entry, LoggedRequest, Session, TraceWriter, expand, load
from agentctx.usage import Usage

# Text without half surrogate pairs: no UTF-8 file can hold those.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.text("abcxyz_", min_size=1, max_size=8)
json_texts = st.one_of(st.none(), st.dictionaries(names, texts, min_size=1, max_size=2).map(json.dumps))
parts = st.one_of(
    st.builds(TextPart, text=texts, extra_json=json_texts),
    st.builds(
        MediaPart,
        type=st.sampled_from(["image", "file", "audio"]),
        sha256=texts,
        media_type=st.one_of(st.none(), texts),
        source_json=texts,
    ),
)
contents = st.one_of(texts, st.lists(parts, max_size=3).map(tuple))
calls = st.lists(
    st.builds(ToolCall, id=names, name=names, arguments=texts, extra_json=json_texts), max_size=2
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "developer", "user", "assistant"]),
    content=contents,
    reasoning=st.one_of(st.none(), texts),
    tool_calls=calls.map(tuple),
    name=st.one_of(st.none(), names),
    notes=st.lists(texts, max_size=2).map(tuple),
    extra_json=json_texts,
)
counts = st.one_of(st.none(), st.integers(0, 10**9))
usages = st.one_of(
    st.none(), st.builds(Usage, prompt=counts, cached=counts, written=counts, output=counts, reasoning=counts)
)
times = st.one_of(st.none(), st.floats(0, 4e9, allow_nan=False))
entries = st.builds(
    Entry,
    message=messages,
    call=st.one_of(st.none(), names),
    at=times,
    usage=usages,
    line=st.none(),
    extra_json=json_texts,
)
tools = st.builds(
    Tool,
    name=names,
    description=texts,
    parameters_json=st.just('{"type":"object"}'),
    source=st.sampled_from(["builtin", "mcp"]),
    server=names,
    extra_json=json_texts,
)
logged = st.builds(
    LoggedRequest,
    request=st.builds(Request, messages=st.lists(messages, max_size=2).map(tuple)),
    reply=st.one_of(st.none(), messages),
    at=times,
    usage=usages,
    line=st.none(),
)
sessions = st.builds(
    Session,
    id=texts,
    file=st.just(""),
    format=st.sampled_from(["agentctx", "claude-code"]),
    tools=st.lists(tools, max_size=2).map(tuple),
    entries=st.lists(entries, min_size=1, max_size=4).map(tuple),
    requests=st.lists(logged, max_size=2).map(tuple),
    model=st.one_of(st.none(), texts),
)


def without_place(session: Session) -> Session:
    """The session without file and line numbers, which are the copy's own."""
    return dataclasses.replace(
        session,
        file="",
        entries=tuple(dataclasses.replace(entry, line=None) for entry in session.entries),
        requests=tuple(dataclasses.replace(one, line=None) for one in session.requests),
    )


@given(st.lists(sessions, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[Session]) -> None:
    path = tmp_path_factory.mktemp("trace") / "a.jsonl"
    with TraceWriter(path) as writer:
        for session in written:
            writer.write(session)
    assert [without_place(session) for session in load(path)] == written


@pytest.mark.corpus
def test_corpus_sessions_survive_the_format(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "corpus" / "traces"
    for file in expand([folder]):
        if file.endswith("INDEX.tsv"):
            continue
        original = load(file)
        path = tmp_path / "copy.jsonl"
        path.unlink(missing_ok=True)
        with TraceWriter(path) as writer:
            for session in original:
                writer.write(session)
        copy = load(path)
        assert [without_place(session) for session in copy] == [
            without_place(session) for session in original
        ]
        for one, other in zip(copy, original, strict=True):
            assert one.messages == other.messages
            assert one.generated == other.generated
            assert one.conversation.repairs == other.conversation.repairs


def hello(writer: TraceWriter, session_id: str = "one") -> None:
    writer.start(session_id)
    writer.append(Message(role="user", content="hello"))
    writer.append(Message(role="assistant", content="hi"), call="1", usage=Usage(prompt=3, output=1))


def test_lines_stand_alone_and_only_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with TraceWriter(path) as writer:
        hello(writer)
    before = path.read_bytes()
    with TraceWriter(path) as writer:
        assert writer.cut_bytes == 0
        hello(writer, "two")
    assert path.read_bytes().startswith(before)
    assert [session.id for session in load(path)] == ["one", "two"]
    assert [json.loads(line) for line in before.splitlines()] == [
        {"agentctx": "session", "version": 1, "id": "one"},
        {"message": {"role": "user", "content": "hello"}},
        {"message": {"role": "assistant", "content": "hi"}, "call": "1", "usage": {"prompt": 3, "output": 1}},
    ]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_line_is_reported_and_cut(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    with TraceWriter(path) as writer:
        hello(writer)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    if cut > 1:  # without its line end alone, the last line is still whole
        with pytest.raises(InputError, match="torn") as caught:
            load(path)
        assert caught.value.line == 3
    with TraceWriter(path) as writer:
        # A line without its end is cut even if it is whole JSON: the writer can't know that nothing is missing.
        last = whole.splitlines(keepends=True)[-1]
        assert writer.cut_bytes == len(last) - cut
        hello(writer, "two")
    first, second = load(path)
    assert [entry.message.text for entry in first.entries] == ["hello"]
    assert second.message_count == 2


_ENDLESS = """
import sys
from agentctx.messages import Message
from agentctx.traces import TraceWriter
writer = TraceWriter(sys.argv[1])
writer.start("endless")
print("go", flush=True)
number = 0
while True:
    writer.append(Message(role="user", content=f"{number} " + "x" * (number % 5000)))
    number += 1
"""


def test_a_killed_writer_loses_no_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    child = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    while path.stat().st_size < 300_000:
        assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with TraceWriter(path) as writer:
        assert writer.cut_bytes < 6000
    (session,) = load(path)
    numbers = [int(entry.message.text.split()[0]) for entry in session.entries]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 50


def test_misuse_is_told(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a.jsonl") as writer, pytest.raises(UsageError, match="start"):
        writer.append(Message(role="user", content="x"))
    other = tmp_path / "notes.txt"
    other.write_text("my notes")
    with pytest.raises(InputError, match="something else"):
        TraceWriter(other)
    assert other.read_text() == "my notes"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"agentctx": "session", "version": 2, "id": "x"}', "version 2"),
        ('{"agentctx": "session", "version": 1}', "expected a string"),
        ('{"message": {"role": "user"}, "at": "noon"}', "number of seconds"),
        ('{"message": {"role": "user"}, "usage": {"prompt": -1}}', "number of tokens"),
        ('{"message": {"role": "wizard"}}', r"field message\.role"),
        ('{"message": {"role": "user", "colour": "red"}}', r"field message\.colour"),
        ('{"note": 1}', "neither a session, a message nor a request"),
    ],
)
def test_wrong_records_name_line_and_field(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    with TraceWriter(path) as writer:
        hello(writer)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=says) as caught:
        load(path)
    assert caught.value.line == 4


def test_a_message_before_any_session_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"message": {"role": "user", "content": "x"}}\n')
    with pytest.raises(InputError, match="unknown format"):
        load(path)
