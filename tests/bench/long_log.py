"""Makes the log of one long agent session: request bodies of OpenAI chat, one a line, each with the whole history.

    python tests/bench/long_log.py TURNS FILE [REPEAT]

200 turns end at a prompt of about 143,000 tokens and make 63 MB of JSONL. ``REPEAT`` sessions with different texts stand
one behind the other: 32 of them make 2 GB. The texts are drawn from a seeded generator: the same arguments give the
same bytes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TURNS = 200
_VERBS = (
    "parse",
    "load",
    "merge",
    "split",
    "write",
    "check",
    "render",
    "reduce",
    "sort",
    "fetch",
    "trim",
    "scan",
)
_NOUNS = (
    "ledger",
    "invoice",
    "token",
    "branch",
    "cursor",
    "shard",
    "replica",
    "schema",
    "header",
    "bucket",
    "route",
)
_TYPES = ("int", "str", "float", "bytes", "bool")


def _code(rng: random.Random, lines: int) -> str:
    """Lines as a tool shows them of a source file."""
    made = []
    for number in range(1, lines + 1):
        name = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"
        other = rng.choice(_NOUNS)
        made.append(
            f"{number:>6}{' ' * 4 * rng.randint(3, 16)}def {name}({other}: {rng.choice(_TYPES)}, limit: int = {rng.randint(1, 900)}) -> None:  "
            f"# {rng.choice(_VERBS)} each {other} once"
        )
    return "\n".join(made)


def _tools() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": f"{verb}_file",
                "description": f"Use this to {verb} a file of the repository, by its path from the root.",
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}, "start": {"type": "integer"}},
                    "required": ["path"],
                },
            },
        }
        for verb in _VERBS
    ]


def bodies(turns: int = TURNS, seed: int = 1) -> Iterator[dict[str, Any]]:
    """The requests of one session, in order. They share their message list: use each before taking the next."""
    rng = random.Random(seed)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful coding agent.\n" + _code(rng, 60)},
        {
            "role": "user",
            "content": f"Task {seed}: find out why {rng.choice(_NOUNS)}s are lost, and mend it.",
        },
    ]
    tools = _tools()
    for turn in range(turns):
        yield {"model": "local", "messages": messages, "tools": tools, "max_tokens": 1024}
        ident = f"call_{seed}_{turn:04}"
        path = f"src/{rng.choice(_NOUNS)}/{rng.choice(_VERBS)}.py"
        arguments = json.dumps({"path": path, "start": rng.randint(1, 400)})
        function = {"name": f"{rng.choice(_VERBS)}_file", "arguments": arguments}
        messages.append(
            {
                "role": "assistant",
                "content": f"Step {turn}: the {rng.choice(_NOUNS)} may be lost in {path}, so I look there.",
                "tool_calls": [{"id": ident, "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": ident, "content": _code(rng, rng.randint(15, 27))})


def write_log(path: Path, turns: int = TURNS, repeat: int = 1) -> int:
    """Write the log; returns its bytes."""
    with path.open("w", encoding="utf-8") as file:
        for seed in range(1, repeat + 1):
            for body in bodies(turns, seed):
                file.write(json.dumps(body) + "\n")
    return path.stat().st_size


if __name__ == "__main__":
    turns, target = int(sys.argv[1]), Path(sys.argv[2])
    print(write_log(target, turns, int(sys.argv[3]) if len(sys.argv) > 3 else 1), "bytes")
