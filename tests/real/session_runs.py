"""Recorded sessions sent turn by turn to a live llama-server through a Session, each turn predicted before it is sent.

For the recorded run with SmolLM2 itself: ``python -m tests.real.session_runs --shared ../shared --write docs/accuracy.md``
puts its table between that page's markers, and ends with code 1 if any turn was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.caches.model import CacheModel
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Request
from agentctx.rendering import Renderer, load_renderer
from agentctx.reports.turn import SessionReport
from agentctx.session import Session, SessionParts
from agentctx.traces import Session as Recorded
from agentctx.traces import load
from tests.model_files import NO_SMOLLM2, smollm2_file

from .llama_server import LlamaServer

ONE_SLOT = {"n_parallel": 1, "cache_ram_mib": 0}
CACHE = "llama-server:1,ram=0"
_GENERATED = 4  # tokens a turn: the recorded reply takes their place, and so breaks what was generated


def corpus_files(shared: Path) -> list[Path]:
    """The recorded sessions of the corpus, in the order of its index."""
    traces = shared / "corpus/traces"
    lines = (traces / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [traces / line.split("\t")[0] for line in lines]


def recorded_requests(recorded: Recorded) -> Iterator[Request]:
    """What was asked at each model call: the logged requests, or the conversation up to each generated reply."""
    if recorded.requests:
        yield from (logged.request for logged in recorded.requests)
        return
    history = History(system=recorded.system, tools=recorded.tools)
    for message, generated in zip(recorded.messages, recorded.generated, strict=True):
        if generated and len(history):
            yield history.request()
        history.append(message)


@dataclass
class Runner:
    """One server and the model of its cache, which follows all conversations that are sent."""

    server: LlamaServer
    renderer: Renderer
    cache: CacheModel
    context: int

    def session(self, name: str, backend: HttpBackend, history: History | None = None) -> Session:
        return Session(SessionParts(history or History(), self.renderer, self.cache, name=name), backend)

    def run(self, name: str, requests: Iterable[Request], *, seed: int = 1) -> SessionReport:
        """Send the requests one after the other, as far as they fit the context; the report of every turn."""
        with HttpBackend(LlamaCompletion(), self.server.url) as backend:
            session = self.session(name, backend)
            for number, request in enumerate(requests):
                options = Options(max_tokens=_GENERATED, temperature=1.0, seed=seed + number)
                prepared = session.check(request, options)
                if len(prepared.prompt) + _GENERATED >= self.context:
                    break
                session.observe(prepared, backend.complete(prepared.prompt, options))
            return session.report


def runner(server: LlamaServer, model: Path, context: int, cache: str = CACHE) -> Runner:
    return Runner(server, load_renderer(str(model)), parse_cache(cache), context)


RECORDED = (
    "mini-swe-agent/github_issue.traj.json",
    "swe-agent/function_calling_simple.traj",
    "lmcache-taubench/9dc9f8c9407949e5f4429c081a7a90b6.jsonl",
    "tau-bench/gpt-4o-airline_task034_trial1.json",
    "agentcmd/session-2025-10-27T19-55-981c87cb.json",
)
BEGIN, END = "<!-- sessions on SmolLM2 -->\n", "<!-- end of sessions on SmolLM2 -->"


def table(reports: Iterable[SessionReport]) -> str:
    lines = [
        "| session | turns | prompt | predicted | observed | cached | wrong turns |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {report.session} | {len(report.turns)} | {report.prompt:,} | {report.predicted:,} | {report.reused:,} "
        f"| {100 * report.hit_rate:.1f} % | {len(report.mismatches) + report.unreported} |"
        for report in reports
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    model, reports = smollm2_file(), []
    if model is None:
        raise SystemExit(f"{NO_SMOLLM2} is not here")
    with LlamaServer(model, n_ctx=8192, **ONE_SLOT) as server:
        runs = runner(server, model, 8192)
        for file in RECORDED:
            for recorded in load(options.shared / "corpus/traces" / file):
                began = time.monotonic()
                reports.append(runs.run(f"{file} {recorded.id[:12]}", recorded_requests(recorded)))
                print(
                    f"{time.monotonic() - began:6.1f} s  {table(reports[-1:]).splitlines()[-1]}", flush=True
                )
    if options.write is not None:
        head, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        options.write.write_text(f"{head}{BEGIN}\n{table(reports)}\n{END}{tail}", encoding="utf-8")
    return int(any(report.mismatches or report.unreported for report in reports))


if __name__ == "__main__":
    sys.exit(main())
