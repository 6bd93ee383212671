"""Renders hostile templates, each in a process of its own that has little memory and time, and says what came of it.

Reads a JSON object (name to template) from standard input; writes one JSON line per template. The parent imports everything once and forks.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from datetime import datetime
from typing import Any

from agentctx.errors import AgentctxError
from agentctx.messages import Message, Request, Tool, ToolCall
from agentctx.rendering.sources import DEFAULT, ModelSource
from agentctx.rendering.template_renderer import renderer_of
from agentctx.rendering.tokenizer import embedded_tokenizer

MEMORY = 700_000_000  # bytes of address space that a template may add; what it really takes is measured
CPU_SECONDS = 20


def requests() -> tuple[Request, Request]:
    """A small conversation, and the same with one more question."""
    call = ToolCall(id="callid001", name="search", arguments='{"pattern":"parse"}')
    tool = Tool(name="search", description="Find.", parameters_json='{"type":"object","properties":{}}')
    messages = (
        Message(role="system", content="You are an agent."),
        Message(role="user", content="Find it."),
        Message(role="assistant", content="", reasoning="Search.", tool_calls=(call,)),
        Message(role="tool", tool_call_id="callid001", name="search", content="src/a.py:1"),
    )
    more = (*messages, Message(role="assistant", content="Found."), Message(role="user", content="x"))
    return Request(tools=(tool,), messages=messages), Request(tools=(tool,), messages=more)


def outcome(source: str) -> dict[str, Any]:
    """What comes of rendering with the template, then of going on from there."""
    first, second = requests()
    try:
        renderer = renderer_of(
            ModelSource("hostile", {DEFAULT: source}, {"bos_token": "<s>", "eos_token": "</s>"}),
            name="hostile",
            now=datetime(2025, 1, 15),
        )
        prompt = renderer.render(first)
        prompt = renderer.render(second, prompt)
    except AgentctxError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return {"text": prompt.text[:2000], "length": len(prompt.text)}


def limited(source: str, write: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as stream:
        size = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = outcome(source)
    except BaseException as error:
        found = {"crash": f"{type(error).__name__}: {error}"[:500]}
    os.write(write, json.dumps(found).encode())


def run(source: str) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        limited(source, write)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        data = stream.read()
    _, status, usage = os.wait4(child, 0)
    found: dict[str, Any] = json.loads(data) if data else {"crash": f"ended with status {status}"}
    return {**found, "seconds": usage.ru_utime + usage.ru_stime, "megabytes": usage.ru_maxrss / 1024}


def main() -> None:
    embedded_tokenizer().count("warm")
    outcome("{{ messages[0].content }}")  # what every rendering needs is loaded once
    for name, source in json.load(sys.stdin).items():
        print(json.dumps({"name": name, **run(source)}), flush=True)


if __name__ == "__main__":
    main()
