"""Merges are read piece by piece, whatever the file looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx.errors import InputError
from agentctx.rendering import tokenizer_file
from agentctx.rendering.tokenizer_file import MergesNotLast, read_tokenizer_file

ODD = ['"', "\\", "],\n", '",\n', "]", "[", "},", '"merges": [', "Ġ", "漢", "🙂", "\\n", "\x00", "a b"]
texts = st.lists(st.sampled_from(ODD) | st.text(max_size=4), min_size=1, max_size=3).map("".join)
pairs = st.lists(st.lists(texts, min_size=2, max_size=2), max_size=40)
words = st.lists(texts, max_size=40)


def parsed(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The file as it is read, in one go where it has to be."""
    file = read_tokenizer_file(path)
    try:
        return file.data, list(file.merges)
    except MergesNotLast:
        file = read_tokenizer_file(path, whole=True)
        return file.data, list(file.merges)


def expected(data: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    merges = data["model"].get("merges") or []
    return {**data, "model": {key: value for key, value in data["model"].items() if key != "merges"}}, merges


FORMS: dict[str, Callable[[Any], str]] = {
    "pretty": lambda data: json.dumps(data, indent=2, ensure_ascii=False),
    "escaped": lambda data: json.dumps(data, indent=1),
    "compact": lambda data: json.dumps(data, separators=(",", ":"), ensure_ascii=False),
    "with other line ends": lambda data: json.dumps(data, indent=2).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(merges=pairs | words, behind=st.sampled_from(["", "model", "file", "list", "other"]))
def test_pieces_give_what_the_whole_file_gives(
    form: str, merges: list[Any], behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_file, "_PIECE", 16)
    data: dict[str, Any] = {"added_tokens": [{"content": '"merges": ['}], "model": {"vocab": {"merges": 1}}}
    if behind == "other":
        data["normalizer"] = {"merges": merges}
    else:
        data["model"]["merges"] = merges
    if behind in ("model", "list"):
        data["model"]["more"] = ["]", {"merge": ["}"]}] if behind == "list" else "]}}"
    if behind == "file":
        data["more"] = {"last": {}}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(FORMS[form](data).encode())
    assert parsed(path) == expected(data)


def test_merges_are_read_when_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece: what is broken further on isn't met before."""
    monkeypatch.setattr(tokenizer_file, "_PIECE", 100)
    merges = [[str(number), "x"] for number in range(100)]
    text = json.dumps({"model": {"vocab": {}, "merges": merges}}, indent=2)
    path = tmp_path / "tokenizer.json"
    path.write_text(text.replace('"90"', '"90'))
    taken = iter(read_tokenizer_file(path).merges)
    assert [next(taken) for _ in range(50)] == merges[:50]
    with pytest.raises(InputError, match="can't be read as JSON"):
        list(taken)


@pytest.mark.parametrize("cut", [1, 3, 40, 200])
def test_a_torn_file_is_named(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"model": {"vocab": {}, "merges": [["a", "b"]] * 100}}, indent=2)
    path = tmp_path / "tokenizer.json"
    path.write_text(text[:-cut])
    with pytest.raises(InputError, match="can't be read as JSON") as caught:
        parsed(path)
    assert "tokenizer.json" in str(caught.value)
