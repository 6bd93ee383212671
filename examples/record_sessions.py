"""Record the example sessions: real tools on a copy of this repository, driven by plans that are written down.

    python examples/record_sessions.py [name …]

Each plan in ``examples/recording`` says what the agent says and which tools it calls; the tools list, read, search,
edit and test a temporary copy of the last commit, and what they answer is what is recorded. No model is asked: the
words are the plan's. The result is ``examples/sessions/<name>.jsonl`` in agentctx's own trace format
(docs/trace-format.md). The same commit gives the same files.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from recording import plan_eviction, plan_pauses, plan_walkthrough
from recording.loop import Plan, record
from recording.tools import Workspace

from agentctx.traces import load

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SESSIONS = HERE / "sessions"

PLANS: dict[str, Callable[[], Plan]] = {
    "add-pauses": plan_pauses.plan,
    "find-eviction-bug": plan_eviction.plan,
    "write-walkthrough": plan_walkthrough.plan,
}

# What is done to the copy before a session starts: here, the bug that is to be found.
PREPARE: dict[str, Callable[[Path], None]] = {"find-eviction-bug": plan_eviction.prepare}


def copy_repository(target: Path) -> None:
    """Copy the last commit, without the examples: work in progress would make the recording depend on the day."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [member for member in archive.getmembers() if not member.name.startswith("examples/")]
        archive.extractall(target, members=members, filter="data")


def machine_names(copy: Path) -> list[str]:
    """Texts that would tell where a session was recorded."""
    return [str(ROOT), str(copy), sys.prefix, tempfile.gettempdir() + "/", str(Path.home()) + "/"]


def record_one(name: str) -> None:
    """Record one session and say how large it is. Stops when the machine shows in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "repository"
        copy.mkdir()
        copy_repository(copy)
        if name in PREPARE:
            PREPARE[name](copy)
        out = Path(folder) / f"{name}.jsonl"
        turns = record(name, PLANS[name](), Workspace(copy), out)
        text = out.read_text()
        for machine in machine_names(copy):
            if machine in text:
                raise SystemExit(f"{name}: {machine!r} is in the recording")
        SESSIONS.mkdir(exist_ok=True)
        shutil.copyfile(out, SESSIONS / out.name)
    (session,) = load(SESSIONS / f"{name}.jsonl")
    print(f"{name}: {turns} model calls, {session.tool_call_count} tool calls, {session.size:,} characters")


def main(names: list[str]) -> None:
    """Record the sessions named, or all of them."""
    for name in names or list(PLANS):
        if name not in PLANS:
            raise SystemExit(f"no plan is called {name}; there are {', '.join(PLANS)}")
        record_one(name)


if __name__ == "__main__":
    main(sys.argv[1:])
