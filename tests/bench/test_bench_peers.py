"""Ours beside the peers: first in every column that is the same on every machine, and the page says what was measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import peers
from tests.bench.peers import TOOLS, Bench, Cost, Score
from tests.conftest import require_package

# 200 on the page. In CI a log that is short enough for kvlint.
TURNS = int(os.environ.get("AGENTCTX_BENCH_PEER_TURNS", "20"))

pytestmark = [pytest.mark.bench, pytest.mark.corpus, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def bench(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    for package in TOOLS[1:]:
        require_package(package)
    bench = Bench(shared_dir, tmp_path_factory.mktemp("peers"))
    peers.prepare(bench)
    return bench


@pytest.fixture(scope="module")
def board(bench: Bench) -> dict[str, Score]:
    return peers.scores(bench)


def test_ours_is_first_in_every_column(board: dict[str, Score]) -> None:
    ours = board["agentctx"]
    assert (ours.found, ours.named, ours.cause) == (ours.breaks, ours.logs, ours.logs)
    assert (ours.alarms, ours.refused, ours.token_error) == (0, 0, 0.0)
    for tool in TOOLS[1:]:
        theirs = board[tool]
        assert ours.found > theirs.found, tool
        assert ours.named > theirs.named, tool
        assert ours.cause > theirs.cause, tool
        assert ours.alarms <= theirs.alarms, tool
        assert ours.refused <= theirs.refused, tool
        assert ours.token_error < theirs.token_error, tool


def test_the_peers_were_really_asked(board: dict[str, Score]) -> None:
    """An adapter that asks wrongly finds nothing: each peer finds what it is known to find."""
    assert all(score.found >= 10 and score.cause >= 2 for score in board.values())
    assert all(score.token_error < 0.5 for score in board.values())


def test_the_pages_are_current(board: dict[str, Score], root_dir: Path) -> None:
    for page in peers.PAGES["scores"]:
        assert "\n".join(peers.score_lines(board)) in (root_dir / page).read_text(encoding="utf-8"), page


def test_a_long_healthy_log(bench: Bench) -> None:
    """No alarm, and cheaper than kvlint, the one peer that renders and encodes each prompt as well."""
    found = peers.costs(bench, TURNS)
    print("\n".join(peers.cost_lines(found)))
    ours, alarms = found["agentctx"]
    kvlint: Cost = found["kvlint"][0]
    assert alarms == 0
    assert ours.cpu < kvlint.cpu
    assert ours.peak < kvlint.peak
    if TURNS >= 200:  # below, what each tool needs to start is more than what it needs for the log
        assert ours.cpu < min(found[tool][0].cpu for tool in TOOLS[1:])
        assert found[peers.AS_SENT][0].cpu < ours.cpu
