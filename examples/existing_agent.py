"""An agent on the OpenAI SDK that keeps its own list of messages, with one line added: ``guard.check``.

    python examples/existing_agent.py "What does half.py do?" --url http://127.0.0.1:8080/v1 --model qwen3 --root .
    python examples/existing_agent.py "What does half.py do?" --url … --clock    # the same agent with a common mistake

The guard raises before a request is sent that changes what an earlier one carried, and says where and what to do. With
``--clock`` the agent writes the time into its system prompt on every turn: the second request is stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import openai

from agentctx.guard import Guard, PrefixChanged

SYSTEM = "You answer questions about a repository. Look with the tools before you answer."


def tool(name: str, description: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = [
    tool("list_files", "List the files of a folder.", "folder"),
    tool("read_file", "Read a file.", "path"),
]


def run_tool(root: Path, name: str, arguments: str) -> str:
    """One call. What goes wrong is a result: the model reads it."""
    try:
        [given] = json.loads(arguments).values()
        place = (root / str(given)).resolve()
        if not place.is_relative_to(root.resolve()):
            return f"error: {given} is outside of the repository"
        if name == "list_files":
            return "\n".join(sorted(entry.name for entry in place.iterdir()))
        return place.read_text(encoding="utf-8")[:8000]
    except (OSError, ValueError, AttributeError) as error:
        return f"error: {error}"


def work(client: openai.OpenAI, options: argparse.Namespace) -> str:
    guard = Guard()
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": options.task},
    ]
    for turn in range(1, options.turns + 1):
        if options.clock:
            messages[0]["content"] = f"{SYSTEM} It is {time.time():.6f}."
        guard.check(messages, TOOLS)  # the added line
        answer = client.chat.completions.create(
            model=options.model,
            messages=messages,
            tools=TOOLS,  # type: ignore[arg-type]
            max_tokens=options.max_tokens,
        )
        reply, usage = answer.choices[0].message, answer.usage
        cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens if usage else None
        print(f"turn {turn}: prompt {usage.prompt_tokens if usage else '?'}, cached {cached}")
        messages.append(reply)  # as the SDK gave it: the guard takes the SDK's own objects
        if not reply.tool_calls:
            if turn == options.turns or not options.more:
                return reply.content or ""
            messages.append({"role": "user", "content": options.more.pop(0)})
        for call in reply.tool_calls or ():
            if call.type == "function":
                result = run_tool(options.root, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="A question about a repository, by an OpenAI-style server.")
    parser.add_argument("task")
    parser.add_argument("more", nargs="*", help="what to ask next, when the model has answered")
    parser.add_argument("--url", required=True, help="such as http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="any")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--clock", action="store_true", help="write the time into the system prompt")
    options = parser.parse_args()
    client = openai.OpenAI(base_url=options.url, api_key="none", max_retries=0)
    try:
        print(work(client, options))
    except PrefixChanged as changed:
        print(f"stopped before it was sent: {changed}", file=sys.stderr)
        return changed.exit_code
    except openai.OpenAIError as error:
        print(f"error: {options.url}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
