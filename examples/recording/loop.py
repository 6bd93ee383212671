"""The loop that records a session: a plan says what the agent says and calls, the tools answer, all is written."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctx.messages import Message, ToolCall, canonical_json
from agentctx.traces import TraceWriter
from recording.tools import TOOLS, Workspace

SYSTEM = """\
You are a coding agent. You work in a repository of Python code, on your own copy of it, through the tools below.

How to work
- Look before you act: list and search first, read what you are going to change, and never guess a path or a name.
- Take small steps. Say in a sentence or two what you are about to do and why, then do it.
- Keep the style of the code around your change: type hints, docstrings that state the contract, short functions.
- Change only what the task needs. Leave formatting and unrelated code alone.
- Every change of behaviour gets a test that would fail without it. Run the tests after each change and read all of
  the output. If a test fails, explain the failure before you repair it.
- When the same repair has failed twice, stop and report what you know.
- Never weaken or remove a test to make it pass.

How to answer
- When you are done, report what you changed, file by file, which tests ran, and what you left open. Be brief.
- Say plainly what you did not check.
"""


@dataclass(frozen=True)
class User:
    """What the person writes."""

    text: str


@dataclass(frozen=True)
class Call:
    """One tool call of a turn."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One model call: what the agent says, and the tools it calls. Without calls it is an answer to the person."""

    text: str
    calls: tuple[Call, ...] = ()


Plan = Generator[User | Turn, list[str], None]
"""Yields users' messages and turns; receives the results of a turn's calls, so that what follows can build on them."""


def say(text: str, *calls: Call) -> Turn:
    """A turn, in short."""
    return Turn(text, calls)


def read(path: str, first: int | None = None, last: int | None = None) -> Call:
    """Read a file or a part of it."""
    arguments: dict[str, Any] = {"path": path}
    if first is not None:
        arguments |= {"first": first, "last": last}
    return Call("read_file", arguments)


def listing(path: str) -> Call:
    """List a folder."""
    return Call("list_files", {"path": path})


def search(pattern: str, path: str) -> Call:
    """Search a folder."""
    return Call("search", {"pattern": pattern, "path": path})


def edit(path: str, old: str, new: str) -> Call:
    """Replace text."""
    return Call("edit_file", {"path": path, "old": old, "new": new})


def write(path: str, content: str) -> Call:
    """Create a file."""
    return Call("write_file", {"path": path, "content": content})


def pytest_run(path: str, only: str = "") -> Call:
    """Run tests."""
    return Call("run_tests", {"path": path, **({"only": only} if only else {})})


class PlanError(Exception):
    """What a plan relies on is no longer so: the plan has to be brought up to date with the repository."""


def record(name: str, plan: Plan, workspace: Workspace, out: Path) -> int:
    """Run a plan against a workspace and write the session to ``out``. Returns the number of model calls.

    Calls get ids in the order in which they are made, and no time is recorded: the same repository and plan give the
    same file.
    """
    calls = turns = 0
    with TraceWriter(out) as writer:
        writer.start(name, tools=TOOLS)
        writer.append(Message(role="system", content=SYSTEM))
        results: list[str] | None = None
        while True:
            try:
                step = plan.send(results) if results is not None else next(plan)
            except StopIteration:
                return turns
            except PlanError as error:
                seen = "\n\n".join(result[-3000:] for result in results or [])
                raise PlanError(f"{error}; the last results were\n\n{seen}") from None
            results = []
            if isinstance(step, User):
                writer.append(Message(role="user", content=step.text))
                continue
            turns += 1
            made = []
            for call in step.calls:
                calls += 1
                made.append(
                    ToolCall(id=f"call_{calls:03d}", name=call.tool, arguments=canonical_json(call.arguments))
                )
            writer.append(
                Message(role="assistant", content=step.text, tool_calls=tuple(made)), call=f"turn {turns}"
            )
            for call in made:
                result = workspace.run(call.name, json.loads(call.arguments))
                results.append(result)
                writer.append(Message(role="tool", tool_call_id=call.id, content=result))


def expect(condition: bool, what: str) -> None:
    """Stop the recording when a result isn't what the plan's next words say."""
    if not condition:
        raise PlanError(what)
