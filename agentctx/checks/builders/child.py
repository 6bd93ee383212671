"""The process in which a builder runs: a job on standard input, one record a line on the file descriptor that is named.

Started by ``agentctx.checks.builders.process`` with the descriptor as its argument. The builder's own output goes where it goes; it can't get into the
records. Ends without running exit handlers, so that threads which never end can't keep it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from agentctx.checks.builders.fake_clock import FakeClock

MAX_RECORD = 32 << 20


class _Refused(Exception):
    """The builder can't be used, said in words for its author."""


def main() -> None:
    """Run the job."""
    channel = int(sys.argv[1])
    job = json.load(sys.stdin)

    def tell(**record: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # behind the last record the process may be killed at any time
        data = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        while data:
            data = data[os.write(channel, data) :]

    stage = "import"
    try:
        clock = FakeClock(job["clock"], job["step"], job["root"])
        clock.install()
        sys.path[:0] = job["path"]
        build = _builder(job["builder"])
        file, line = _place(build)
        tell(kind="loaded", file=file, line=line)
        known = set(threading.enumerate())
        caller = _caller(build, job["tools"])
        with asyncio.Runner() as runner:
            for turn, end in enumerate(job["ends"]):
                stage = f"turn {turn + 1}"
                clock.turn(turn)
                body = _body(_awaited(caller(json.loads(json.dumps(job["messages"][:end]))), runner))
                if len(json.dumps(body)) > MAX_RECORD:
                    raise _Refused(f"it returned a request of more than {MAX_RECORD >> 20} MiB")
                tell(kind="turn", body=body, reads=clock.reads)
        running = [
            thread.name for thread in threading.enumerate() if thread not in known and thread.is_alive()
        ]
        tell(kind="done", threads=running)
    except _Refused as error:
        tell(kind="failed", stage=stage, error=str(error), traceback="")
    except SystemExit as error:
        tell(
            kind="failed",
            stage=stage,
            error=f"it called exit({error.code!r})",
            traceback=traceback.format_exc(limit=-4),
        )
    except BaseException as error:
        told = f"it raised {type(error).__name__}: {error}"
        tell(kind="failed", stage=stage, error=told[:2000], traceback=traceback.format_exc(limit=-4)[-4000:])
    os._exit(0)


def _builder(spec: str) -> Callable[..., Any]:
    name, _, path = spec.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _Refused(f"there is no module {name}; name one that can be imported from here") from None
        raise
    for part in path.split("."):
        if not hasattr(found, part):
            raise _Refused(f"module {name} has no {path}")
        found = getattr(found, part)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise _Refused(f"{spec} is a {type(found).__name__}, not a callable")
    return found  # type: ignore[no-any-return]


def _place(build: Callable[..., Any]) -> tuple[str, int | None]:
    """Where the builder is defined."""
    target = build if inspect.isroutine(build) else type(build)
    try:
        return inspect.getsourcefile(inspect.unwrap(target)) or "", inspect.getsourcelines(
            inspect.unwrap(target)
        )[1]
    except (OSError, TypeError):
        return "", None


def _caller(build: Callable[..., Any], tools: list[Any]) -> Callable[[list[Any]], Any]:
    """How the builder is called: with the messages, and with the tools where it has a parameter ``tools``."""
    parameters = inspect.signature(build).parameters
    takes_tools = "tools" in parameters
    first = next((p for p in parameters.values() if p.name != "tools" and p.kind is not p.VAR_KEYWORD), None)
    if first is None:
        raise _Refused(
            "it takes no messages; give it a parameter for the messages of the conversation so far"
        )

    def call(messages: list[Any]) -> Any:
        keywords: dict[str, Any] = {"tools": json.loads(json.dumps(tools))} if takes_tools else {}
        if first.kind is first.KEYWORD_ONLY:
            return build(**{first.name: messages}, **keywords)
        return build(messages, **keywords)

    return call


def _awaited(value: Any, runner: asyncio.Runner) -> Any:
    async def wait() -> Any:
        return await value

    return runner.run(wait()) if inspect.isawaitable(value) else value


def _body(value: Any) -> dict[str, Any]:
    """The request as JSON data; a list is its messages."""
    if type(value).__module__ == "agentctx.messages" and type(value).__name__ == "Request":
        from agentctx.interchange import write_request

        value = write_request("openai.chat", value)
    if isinstance(value, list | tuple):
        value = {"messages": list(value)}
    if hasattr(value, "model_dump"):
        value = _dumped(value)
    if not isinstance(value, Mapping):
        raise _Refused(
            f"it returned a {type(value).__name__}; return the request body, or the list of its messages"
        )
    try:
        body = json.loads(json.dumps(dict(value), ensure_ascii=False, allow_nan=False, default=_dumped))
    except (TypeError, ValueError) as error:
        raise _Refused(f"it returned what is no JSON: {error}") from None
    if not any(isinstance(body.get(key), list | str) for key in ("messages", "input", "prompt")):
        raise _Refused("it returned a body without messages, input or prompt")
    return body  # type: ignore[no-any-return]


def _dumped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"{type(value).__name__} is no JSON value")
