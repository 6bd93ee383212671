"""What one appended turn costs at 150k tokens of history, against one at 1k tokens.

A turn is what an agent loop does between two model calls: the reply with a call, its result, a note, the policy's request,
and the prompt of the built-in layout. The tokenizer's own time for the new text is measured and taken off, since it is the
same at any length. Run as a script it prints the table::

    python tests/bench/test_bench_history.py
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from agentctx.history import History
from agentctx.messages import Tool
from agentctx.policies import Policy, parse_policy
from agentctx.rendering.chatml import ChatMLRenderer
from agentctx.rendering.prompt import Prompt
from agentctx.rendering.tokenizer import embedded_tokenizer
from tests.bench.timed_tokenizer import WORDS, TimedTokenizer

SHORT, LONG = 1_000, 150_000
TURNS = 40  # measured at each length
RESULT_WORDS = 150


class Loop:
    """An agent loop that can be filled up to a length and then measured."""

    def __init__(self, policy: Policy, history: History, *, render: bool) -> None:
        self.policy, self.history, self.render = policy, history, render
        self.tokenizer = TimedTokenizer(embedded_tokenizer(), perf_counter)
        self.renderer = ChatMLRenderer(self.tokenizer)  # type: ignore[arg-type]
        self.prompt: Prompt | None = None
        self.rng = random.Random(5)
        self.tokens = 0
        history.user("Find the bug and fix it.")

    def text(self, words: int) -> str:
        return " ".join(f"{self.rng.choice(WORDS)}_{self.rng.randrange(999)}" for _ in range(words))

    def turn(self) -> float:
        """One turn; returns its seconds without the tokenizer's."""
        said, result = self.text(20), self.text(RESULT_WORDS)
        self.tokenizer.seconds = 0.0
        start = perf_counter()
        self.history.assistant(said)
        call = self.history.tool_call("read", '{"path": "src/main.py"}')
        self.history.tool_result(call, result)
        self.history.note("12 files changed", key="git")
        answer = self.policy.turn(self.history, self.renderer.count)
        if self.render:
            self.prompt = self.renderer.render(answer.request, self.prompt)
        seconds = perf_counter() - start - self.tokenizer.seconds
        self.tokens += self.renderer.count(said) + self.renderer.count(result)
        return seconds

    def cost_at(self, tokens: int) -> float:
        """Median seconds of a turn once the history holds ``tokens``."""
        while self.tokens < tokens:
            self.turn()
        return statistics.median(self.turn() for _ in range(TURNS))


def short_cost(loop: Loop) -> float:
    """Median seconds of the few turns after the first 1k tokens."""
    while loop.tokens < SHORT:
        loop.turn()
    return statistics.median(loop.turn() for _ in range(4))


def long_cost(loop: Loop) -> float:
    """Median seconds of the turns after the first 150k tokens."""
    while loop.tokens < LONG:
        loop.turn()
    return statistics.median(loop.turn() for _ in range(TURNS))


def measure(spec: str, *, render: bool, directory: Path | None = None) -> tuple[float, float]:
    """Seconds of a turn at 1k tokens (median over fresh conversations) and at 150k, in one process."""
    tools = [Tool.of("read", "Read a file."), Tool.of("edit", "Edit a file.")]
    files = 0

    def loop() -> Loop:
        nonlocal files
        files += 1
        if directory is None:
            history = History("You are an agent.", tools)
        else:
            history = History.open(directory / f"{files}.jsonl", "You are an agent.", tools)
        return Loop(parse_policy(spec), history, render=render)

    short = []
    for _ in range(TURNS // 4):
        fresh = loop()
        short.append(short_cost(fresh))
        fresh.history.close()
    whole = loop()
    seconds = long_cost(whole)
    whole.history.close()
    return statistics.median(short), seconds


@pytest.mark.bench
@pytest.mark.parametrize(
    ("spec", "render", "on_disk"),
    [("append-only", False, False), ("append-only", True, False), ("append-only", False, True)],
    ids=["history", "with-prompt", "in-a-file"],
)
def test_a_turn_costs_what_it_adds(spec: str, render: bool, on_disk: bool, tmp_path: Path) -> None:
    ratios = []
    for attempt in range(5):  # a busy machine can spoil some measurements, not all
        directory = tmp_path / str(attempt)
        directory.mkdir()
        short, long = measure(spec, render=render, directory=directory if on_disk else None)
        ratios.append(long / short)
        if ratios[-1] <= 3:
            return
    pytest.fail(
        f"a turn at {LONG:,} tokens costs {min(ratios):.1f} times one at {SHORT:,}; at most 3 are allowed"
    )


def main() -> None:
    print(f"{'one appended turn, tokenizer taken off':44}{'at 1k':>10}{'at 150k':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as directory:
        for title, spec, render, path in (
            ("History and append-only", "append-only", False, None),
            ("the same with the prompt of chatml", "append-only", True, None),
            ("History kept in a file", "append-only", False, Path(directory)),
            ("clear-results:5,4000", "clear-results:5,4000", False, None),
            ("break-even:0.1", "break-even:0.1", False, None),
        ):
            short, long = measure(spec, render=render, directory=path)
            print(f"{title:44}{short * 1e3:>7.3f} ms{long * 1e3:>7.3f} ms{long / short:>8.2f}")


if __name__ == "__main__":
    main()
