"""Sessions of the shared corpus: every file is read, and its figures are those of the corpus' own index."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from agentctx.history import History
from agentctx.traces import Session, expand, load
from agentctx.traces.conversation import NO_RESULT

pytestmark = pytest.mark.corpus

# Each difference from the index, by name: messages and assistant messages that the index counts on top of ours.
EXPLAINED = {
    # The file stores each of its two instructions twice: in the field `instruction` and as the first event of the
    # history. The index counts both, the second as the assistant's; the model read each once, as the user's.
    "openhands/resolver_mock_output.jsonl": (2, 2),
}


@pytest.fixture(scope="module")
def traces_dir(shared_dir: Path) -> Path:
    return shared_dir / "corpus" / "traces"


@pytest.fixture(scope="module")
def index(traces_dir: Path) -> dict[str, dict[str, str]]:
    with (traces_dir / "INDEX.tsv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


@pytest.fixture(scope="module")
def corpus(traces_dir: Path, index: dict[str, dict[str, str]]) -> dict[str, list[Session]]:
    return {name: load(traces_dir / name) for name in index}


def test_every_file_of_the_index_is_read(
    corpus: dict[str, list[Session]], index: dict[str, dict[str, str]]
) -> None:
    assert len(index) == 39
    found = {
        name: (
            sum(session.message_count for session in sessions),
            sum(session.assistant_count for session in sessions),
            sum(session.tool_call_count for session in sessions),
        )
        for name, sessions in corpus.items()
    }
    told = {}
    for name, row in index.items():
        more_messages, more_replies = EXPLAINED.get(name, (0, 0))
        told[name] = (
            int(row["messages"]) - more_messages,
            int(row["model_calls"]) - more_replies,
            int(row["tool_calls"]),
        )
    assert found == told


def test_the_explained_difference_is_what_it_says(corpus: dict[str, list[Session]]) -> None:
    sessions = corpus["openhands/resolver_mock_output.jsonl"]
    assert len(sessions) == 2
    for session in sessions:
        first, second = session.entries[:2]
        assert first.message.role == "user"
        assert first.message.text.startswith("Please fix the following issue")
        assert second.message.role == "assistant"
        assert second.message.tool_calls
        assert sum(entry.message.role == "user" for entry in session.entries) == 1


def test_user_turns_equal_the_index(
    corpus: dict[str, list[Session]], index: dict[str, dict[str, str]]
) -> None:
    for name, sessions in corpus.items():
        if sessions[0].requests:
            continue  # logs of requests have no turns of a user: the index says 0
        users = sum(entry.message.role == "user" for session in sessions for entry in session.entries)
        assert users == int(index[name]["user_turns"]), name


def test_usage_and_reasoning_are_found_where_the_index_says_so(
    corpus: dict[str, list[Session]], index: dict[str, dict[str, str]]
) -> None:
    for name, sessions in corpus.items():
        entries = [entry for session in sessions for entry in session.entries]
        if index[name]["has_usage"] == "yes":
            assert any(entry.usage is not None for entry in entries), name
        thoughts = sum(entry.message.reasoning is not None for entry in entries)
        # The index counts blocks; blocks of one reply are one message here.
        assert (thoughts > 0) == (int(index[name]["reasoning_blocks"]) > 0), name
        assert thoughts <= int(index[name]["reasoning_blocks"]), name


def test_codex_items_are_one_model_call_where_one_reply_made_them(
    corpus: dict[str, list[Session]], traces_dir: Path
) -> None:
    (session,) = corpus["codex-pomodoro/codex-pomodor-timer.jsonl"]
    assert session.assistant_count == 41
    assert sum(session.generated) == 21  # turn_context events in the file: one before each request
    usage = [usage for usage in session.conversation.usage if usage is not None]
    assert len(usage) == 21
    path = traces_dir / "codex-pomodoro/codex-pomodor-timer.jsonl"
    infos = [json.loads(line)["payload"].get("info") for line in path.read_text().splitlines()]
    total = [info["total_token_usage"] for info in infos if info][-1]
    assert sum(one.prompt or 0 for one in usage) == total["input_tokens"]
    assert sum(one.cached or 0 for one in usage) == total["cached_input_tokens"]
    assert sum(one.output or 0 for one in usage) == total["output_tokens"]


def test_claude_usage_counts_the_whole_prompt(corpus: dict[str, list[Session]]) -> None:
    (session,) = corpus["claude-code-pomodoro/claude-code-pomodoro-timer.jsonl"]
    first = next(usage for usage in session.conversation.usage if usage is not None)
    assert (first.prompt, first.cached, first.written) == (2 + 7026 + 14471, 14471, 7026)


def test_formats_are_told_by_content(
    corpus: dict[str, list[Session]], traces_dir: Path, tmp_path: Path
) -> None:
    for name, sessions in corpus.items():
        renamed = tmp_path / "input.bin"
        renamed.write_bytes((traces_dir / name).read_bytes())
        assert [session.format for session in load(renamed)] == [session.format for session in sessions], name
    formats = Counter(session.format for sessions in corpus.values() for session in sessions[:1])
    assert formats == {
        "swe-agent": 6,
        "chat-messages": 2,
        "openhands": 1,
        "claude-code": 13,
        "codex": 1,
        "gemini-cli": 1,
        "pi": 1,
        "cline": 1,
        "text-log": 8,
        "tau-bench": 4,
        "inspect": 1,
    }


def test_every_session_can_be_appended_to_a_history(corpus: dict[str, list[Session]]) -> None:
    for sessions in corpus.values():
        for session in sessions:
            history = History(system=session.system, tools=session.tools)
            for message in session.messages:
                history.append(message)
            assert tuple(history.messages[session.system is not None :]) == session.messages


def test_what_was_put_right_is_said(corpus: dict[str, list[Session]]) -> None:
    """Reused call ids, calls that were never answered and aborted replies: nothing else, and only where they are."""
    repaired = {}
    for name, sessions in corpus.items():
        kinds: Counter[str] = Counter()
        for session in sessions:
            for note in session.conversation.repairs:
                kinds[
                    "id" if "was used before" in note else "open" if "never answered" in note else "empty"
                ] += 1
            added = sum(message.content == NO_RESULT for message in session.messages)
            assert added == sum("never answered" in note for note in session.conversation.repairs)
        if kinds:
            repaired[name] = dict(kinds)
    assert repaired == {
        "swe-agent/marshmallow-1867__function_calling__install-1.traj": {"id": 5},
        "swe-agent/marshmallow-1867__function_calling_replace_from_source.traj": {"id": 4},
        "pi/large-session.jsonl": {"open": 18, "empty": 14},
        "tau-bench/gpt-4o-airline_task002_trial1.json": {"id": 5},
        "tau-bench/gpt-4o-airline_task028_trial1.json": {"id": 3},
        "tau-bench/gpt-4o-airline_task033_trial0.json": {"id": 3},
    }


def test_a_folder_is_walked_and_nothing_left_out(traces_dir: Path, index: dict[str, dict[str, str]]) -> None:
    files = list(expand([traces_dir]))
    names = {str(Path(file).relative_to(traces_dir)) for file in files}
    assert names == set(index) | {"INDEX.tsv"}
    assert files == list(expand([traces_dir, traces_dir / "INDEX.tsv"]))
