"""Sessions on a live llama-server with one slot and no RAM cache: every turn's ``cache_n`` is the predicted one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.rendering import Renderer, load_renderer
from agentctx.reports.turn import SessionReport
from agentctx.session import Answer, Session, SessionParts
from agentctx.traces import load

from .llama_server import LlamaServer
from .session_runs import CACHE, ONE_SLOT, Runner, corpus_files, recorded_requests
from .tiny_gguf import write_full_attention

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("session-llama-server")]

CONTEXT = 16384
SESSIONS = 15
TURNS = 500


@pytest.fixture(scope="module")
def tiny_smollm2(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with SmolLM2's vocabulary and chat template."""
    path = tmp_path_factory.mktemp("tiny-smollm2") / "tiny-smollm2.gguf"
    return write_full_attention(path, n_ctx=CONTEXT, vocabulary=smollm2_gguf)


@pytest.fixture(scope="module")
def renderer(tiny_smollm2: Path) -> Renderer:
    return load_renderer(str(tiny_smollm2))


@pytest.fixture(scope="module")
def server(tiny_smollm2: Path) -> Iterator[LlamaServer]:
    with LlamaServer(tiny_smollm2, n_ctx=CONTEXT, **ONE_SLOT) as running:
        yield running


@pytest.fixture(scope="module")
def runs(server: LlamaServer, renderer: Renderer) -> Runner:
    """One cache model for the whole module: it follows the slot from test to test."""
    return Runner(server, renderer, parse_cache(CACHE), CONTEXT)


def assert_predicted(report: SessionReport) -> None:
    wrong = [(turn.turn, turn.predicted, turn.cached, turn.mismatch) for turn in report.mismatches]
    assert not wrong, (report.session, wrong)
    assert report.unreported == 0
    for turn in report.turns:
        assert turn.prompt == turn.reused + turn.reprocessed
        assert turn.mismatch is None


@pytest.mark.corpus
@pytest.mark.slow
def test_corpus_sessions(runs: Runner, shared_dir: Path) -> None:
    """Sessions of the corpus, cut to the context, on one slot one after the other."""
    found = [
        recorded
        for file in corpus_files(shared_dir)
        for recorded in load(file)
        if sum(recorded.generated) > 4
    ]
    found.sort(
        key=lambda recorded: recorded.size / sum(recorded.generated)
    )  # many turns for little text first
    turns = sessions = cached = prompt = 0
    for recorded in found:
        report = runs.run(f"{recorded.file} {recorded.id}", recorded_requests(recorded), seed=turns)
        assert_predicted(report)
        turns += len(report.turns)
        sessions += len(report.turns) > 4
        cached += report.reused
        prompt += report.prompt
        if sessions >= SESSIONS and turns >= TURNS:
            break
    assert sessions >= SESSIONS
    assert turns >= TURNS
    assert cached > prompt // 2, "hardly anything was reused: this run shows nothing"


@pytest.mark.parametrize(
    "name", ["a", "b", "c", "d", "d2", "e", "f", "g", "h", "h0", "i", "j", "k", "kimg", "l"]
)
def test_scenarios(name: str, runs: Runner, shared_dir: Path) -> None:
    """Requests that differ from a clean conversation in one thing; in ``i`` two conversations take turns on the slot."""
    logged = [
        one
        for found in load(shared_dir / "cases/scenarios/openai" / f"{name}.jsonl")
        for one in found.requests
    ]
    logged.sort(key=lambda one: one.line or 0)
    report = runs.run(name, (one.request for one in logged))
    assert len(report.turns) == (20 if name == "i" else 10)
    assert_predicted(report)


def test_example_10_append_only(runs: Runner) -> None:
    """Each turn's cache_n is the prompt before with its reply, less the last token, which was never computed."""
    with HttpBackend(LlamaCompletion(), runs.server.url) as backend:
        session = runs.session("example 10", backend, History(system="You are a helpful assistant."))
        heard = []
        for turn in range(5):
            session.history.user(f"Question number {turn}: what is next?")
            answer = session.complete(Options(max_tokens=24, temperature=1.0, seed=turn))
            assert answer.completion.reply_ids is not None
            heard.append((answer.report.prompt, len(answer.completion.reply_ids)))
        assert_predicted(session.report)
        observed = [turn.cached for turn in session.report.turns]
        assert observed[1:] == [prompt + reply - 1 for prompt, reply in heard[:-1]]
        assert session.report.broken_turns == 0
        assert [turn.rounding for turn in session.report.turns[1:]] == [1] * 4


def test_example_10_with_a_clock_in_the_system_prompt(runs: Runner) -> None:
    """The minute stands in the first line: what is reused ends before it, on every turn."""
    with HttpBackend(LlamaCompletion(), runs.server.url) as backend:
        session = runs.session("example 10, clock", backend)
        spoken = History()
        for turn in range(5):
            spoken.user(f"Question number {turn}: what is next?")
            said = spoken.request()
            clocked = History(system=f"The time is 10:0{turn}. You are a helpful assistant.")
            clocked.extend(said.messages)
            options = Options(max_tokens=24, temperature=1.0, seed=turn)
            prepared = session.check(clocked.request(), options)
            completion = backend.complete(prepared.prompt, options)
            session.observe(prepared, completion)
            spoken.append(completion.message)
        assert_predicted(session.report)
        kept = {turn.cached for turn in session.report.turns[1:]}
        assert len(kept) == 1
        assert 0 < kept.pop() < 15
        assert session.report.broken_turns == 4
        assert all(str(turn.divergence).startswith("system messages[0]") for turn in session.report.turns[1:])


def test_streamed_replies_of_signs_that_are_several_tokens(smollm2_gguf: Path) -> None:
    """llama-server streams no event for a token that ends inside a character: the ids of such a reply are told from its text."""
    asked = {
        "😀😁😂🤣😃": "[^\\x00-\\xFF]{4,6}",
        "日本語のテスト。": "[^\\x00-\\xFF]{4,6}",
        "What is 2 + 2?": '"It is four."',
        "👨‍👩‍👧 한국어": "[^\\x00-\\xFF]{2,6}",
        "Thank you.": '"Goodbye."',
    }
    with (
        LlamaServer(smollm2_gguf, n_ctx=2048, **ONE_SLOT) as server,
        HttpBackend(LlamaCompletion(), server.url) as backend,
    ):
        history = History(system="Repeat what the user says.")
        parts = SessionParts(history, load_renderer(str(smollm2_gguf)), parse_cache(CACHE), strict=True)
        session = Session(parts, backend)
        heard = []
        for text, grammar in asked.items():
            history.user(text)
            options = Options(max_tokens=40, temperature=0.0, extra={"grammar": f"root ::= {grammar}"})
            *_, answer = session.stream(options)
            assert isinstance(answer, Answer)
            ids, output = answer.completion.reply_ids, answer.completion.usage.output
            assert ids is None or len(ids) == output
            heard.append(ids is not None)
        assert_predicted(session.report)
        assert session.report.broken_turns == 0
        assert heard == [text.isascii() for text in asked]


def test_a_server_that_somebody_else_uses_is_found_out(runs: Runner) -> None:
    """Somebody's request takes the slot between two turns: the prediction is wrong, and the report says so."""
    with HttpBackend(LlamaCompletion(), runs.server.url) as backend:
        session = runs.session("shared", backend, History(system="You are a helpful assistant."))
        session.history.user("Hello " * 50)
        session.complete(Options(max_tokens=4))
        runs.server.post("/completion", {"prompt": list(range(100, 300)), "n_predict": 1})
        session.history.user("And now?")
        report = session.complete(Options(max_tokens=4)).report
        assert (report.cached, report.mismatch, report.matches_prediction) == (0, "unexplained", False)
        assert report.server == report.predicted > 50
        assert session.report.mismatches == (report,)
