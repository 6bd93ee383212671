"""A small coding agent around a History: it lists, reads, searches, edits and runs tests, and shows what each turn cost.

Against any server with OpenAI-style chat completions (llama-server, vLLM, SGLang, a provider):

    python examples/coding_agent.py "Fix the failing test." --url http://127.0.0.1:8080/v1 --model qwen3 --cache slot

Against the bundled engine, with a GGUF file or a checkpoint's folder whose chat template knows tools:

    python examples/coding_agent.py "Fix the failing test." --engine model.gguf

The history is kept in a file with ``--log``; starting again with the same file goes on where it stopped, with the same
prompts. The tools work inside ``--root`` only, but running tests runs the code that is there: use a copy that you can lose.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from recording.tools import TOOLS, Workspace
from rich.console import Console

from agentctx.backends.backend import Backend, Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.caches.registry import parse_cache
from agentctx.errors import AgentctxError
from agentctx.history import History
from agentctx.messages import Message, ToolCall
from agentctx.policies import parse_policy
from agentctx.rendering import Renderer, TokenIds, load_renderer
from agentctx.reports.tables import session_line, turn_line
from agentctx.reports.turn import TurnReport
from agentctx.session import Session, SessionParts

SYSTEM = """You are a coding agent. You work in a repository with the tools that you are given, one step at a time.
Look before you change anything, make the smallest change that does the job, and run the tests after it.
When you are done, say in one or two sentences what you did, and call no more tools."""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class Agent:
    """The loop: ask, run the tools that the model calls, ask again, until it calls none."""

    def __init__(
        self, session: Session, workspace: Workspace, show: Callable[[TurnReport, Message], None]
    ) -> None:
        self.session = session
        self.workspace = workspace
        self.show = show

    def work(self, task: str, *, turns: int, options: Options | None = None) -> str:
        """Do a task in at most ``turns`` turns and return the model's closing words ('' when it never closed)."""
        history = self.session.history
        for call in history.open_calls:  # the process was stopped between a call and its result
            history.tool_result(call, "error: interrupted before it ran")
        history.user(task)
        for left in range(turns, 0, -1):
            # What changes every turn goes to the end of the newest message, and stays there once it was sent.
            history.note(f"[{datetime.now():%H:%M}, {left} turns left]", key="state")
            answer = self.session.complete(options)
            self.show(answer.report, answer.message)
            if not answer.message.tool_calls:
                return answer.message.text
            for tool_call in answer.message.tool_calls:
                history.tool_result(tool_call.id, self._result_of(tool_call))
        return ""

    def _result_of(self, call: ToolCall) -> str:
        """Run one call. Whatever goes wrong is a result, so that the model can read it and do better."""
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError as error:
            return f"error: the arguments are no JSON: {error}"
        if not isinstance(arguments, dict):
            return "error: the arguments must be an object"
        try:
            return self.workspace.run(call.name, arguments)
        except KeyError:
            return f"error: there is no tool {call.name}"
        except (TypeError, OSError, UnicodeDecodeError) as error:
            return f"error: {error}"


def read_reply(text: str, first_call: int) -> Message:
    """A reply in the manner of Hermes and Qwen: text, then calls as JSON between ``<tool_call>`` marks."""
    calls: list[ToolCall] = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        calls.append(ToolCall(id=f"call_{first_call + len(calls)}", name=str(name), arguments=arguments))
    return Message(role="assistant", content=_CALL.sub("", text).strip(), tool_calls=tuple(calls))


@contextmanager
def engine_backend(
    path: str, blocks: int, number_of_messages: Callable[[], int]
) -> Iterator[tuple[Backend, Renderer]]:
    """The bundled engine with a model and its own chat template and tokenizer."""
    from agentctx.backends.engine import EngineBackend
    from agentctx_engine.models import load_model
    from agentctx_engine.runtime import Engine

    renderer = load_renderer(path)
    model = load_model(Path(path))
    ends = frozenset(model.config.eos_token_ids)

    def read(ids: TokenIds) -> Message:
        text = renderer.tokenizer.decode(ids[:-1] if len(ids) and int(ids[-1]) in ends else ids)
        return read_reply(text, number_of_messages())

    with Engine(model, num_blocks=blocks) as engine:
        yield EngineBackend(engine, read, tuple(ends)), renderer


@contextmanager
def backend_of(arguments: argparse.Namespace, history: History) -> Iterator[tuple[Backend, Renderer]]:
    """The backend that the command line names, and the renderer whose counts go with it."""
    if arguments.engine:
        with engine_backend(arguments.engine, arguments.blocks, lambda: len(history)) as both:
            yield both
        return
    key = os.environ.get(arguments.key_from)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with HttpBackend(OpenAIChat(arguments.model), arguments.url, headers=headers) as http:
        yield http, load_renderer(arguments.layout)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("task", help="what the agent is to do")
    where = result.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="base URL of an OpenAI-style server, with /v1")
    where.add_argument(
        "--engine", metavar="MODEL", help="run this model (GGUF or folder) in the bundled engine"
    )
    result.add_argument("--model", help="name of the model at the URL")
    result.add_argument(
        "--key-from", default="OPENAI_API_KEY", metavar="NAME", help="environment variable of the key"
    )
    result.add_argument("--root", default=".", help="repository to work in (default: here)")
    result.add_argument("--log", help="keep the history in this file")
    result.add_argument(
        "--policy", default="append-only", help="history policy (see agentctx compare --list)"
    )
    result.add_argument("--cache", default="paged:16", help="how the server caches: paged:16, radix, slot")
    result.add_argument("--layout", default="chatml", help="layout or chat template for the URL's prompts")
    result.add_argument("--turns", type=int, default=40, help="give up after so many turns (40)")
    result.add_argument("--max-tokens", type=int, default=2048, help="longest reply (2048)")
    result.add_argument("--blocks", type=int, default=2048, help="KV blocks of the bundled engine (2048)")
    return result


def run(arguments: argparse.Namespace) -> int:
    """Run the agent once; 0 when it closed the task itself."""
    console = Console(highlight=False, soft_wrap=True)
    workspace = Workspace(Path(arguments.root))
    history = History.open(arguments.log, SYSTEM, TOOLS) if arguments.log else History(SYSTEM, TOOLS)

    def show(report: TurnReport, message: Message) -> None:
        for call in message.tool_calls:
            console.print(f"  {call.name} {call.arguments[:100]}", style="dim", markup=False)
        console.print(turn_line(report))

    with history, backend_of(arguments, history) as (backend, renderer):
        parts = SessionParts(
            history,
            renderer,
            parse_cache(arguments.cache),
            parse_policy(arguments.policy),
            name="coding agent",
        )
        session = Session(parts, backend)
        closing = Agent(session, workspace, show).work(
            arguments.task,
            turns=arguments.turns,
            options=Options(max_tokens=arguments.max_tokens, temperature=0.0),
        )
    console.print(session_line(session.report), markup=False)
    console.print(closing or "no closing words: the turns are used up", markup=False)
    return 0 if closing else 1


def main() -> int:
    try:
        return run(parser().parse_args())
    except AgentctxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
