"""Builders that a check is tried with: sound ones, those with a flaw, and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from datetime import date, datetime
from typing import Any

SYSTEM = "You are a careful agent."
Json = dict[str, Any]


def _with(system: str, messages: list[Json], tools: list[Json]) -> Json:
    return {"model": "m", "tools": tools, "messages": [{"role": "system", "content": system}, *messages]}


# -- sound ------------------------------------------------------------------------------------------------------


def plain(messages: list[Json], tools: list[Json]) -> Json:
    return _with(SYSTEM, messages, tools)


def only_messages(messages: list[Json]) -> list[Json]:
    return [{"role": "system", "content": SYSTEM}, *messages]


async def awaited(history: list[Json], *, tools: list[Json]) -> Json:
    await asyncio.sleep(0)
    return _with(SYSTEM, history, tools)


class Frozen:
    """Puts the time behind the newest message and leaves it there."""

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}

    def __call__(self, messages: list[Json], tools: list[Json]) -> Json:
        self.notes[len(messages) - 1] = f"\n\nIt is {datetime.now():%H:%M} in {os.getcwd()}."
        for index, note in self.notes.items():
            messages[index]["content"] += note
        return _with(SYSTEM, messages, tools)


def logs_to_stderr(messages: list[Json]) -> list[Json]:
    print("building", file=sys.stderr)
    return messages


def reads_a_file(messages: list[Json], tools: list[Json]) -> Json:
    with open("prompt.txt") as file:
        return _with(file.read(), messages, tools)


# -- flawed -----------------------------------------------------------------------------------------------------


def clock(messages: list[Json], tools: list[Json]) -> Json:
    now = datetime.now()
    return _with(f"{SYSTEM} It is {now:%Y-%m-%d %H:%M}.", messages, tools)


def day(messages: list[Json], tools: list[Json]) -> Json:
    return _with(f"{SYSTEM} Today is {date.today().isoformat()}.", messages, tools)


def formatted(messages: list[Json], tools: list[Json]) -> Json:
    return _with(f"{SYSTEM} Now: {time.strftime('%A %H:%M')}", messages, tools)


def zone(messages: list[Json], tools: list[Json]) -> Json:
    return _with(
        f"{SYSTEM} Zone {time.strftime('%Z', (2025, 1, 1, 0, 0, 0, 2, 1, 0))} {time.tzname[0]}.",
        messages,
        tools,
    )


def set_order(messages: list[Json], tools: list[Json]) -> Json:
    by_name = {tool["function"]["name"]: tool for tool in tools}
    return _with(SYSTEM, messages, [by_name[name] for name in set(by_name)])


def set_in_text(messages: list[Json], tools: list[Json]) -> Json:
    return _with(f"{SYSTEM} Languages: {', '.join({'python', 'rust', 'go'})}.", messages, tools)


def dumped_again(messages: list[Json], tools: list[Json]) -> Json:
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
    return _with(SYSTEM, messages, tools)


def trims(messages: list[Json], tools: list[Json]) -> Json:
    for message in messages[:-3]:
        if message["role"] == "tool":
            message["content"] = message["content"][:12]
    return _with(SYSTEM, messages, tools)


def folder(messages: list[Json], tools: list[Json]) -> Json:
    where = os.getcwd()
    return _with(f"{SYSTEM} You work in {where}.", messages, tools)


def drawn(messages: list[Json], tools: list[Json]) -> Json:
    return _with(f"{SYSTEM} request id {uuid.uuid4()}", messages, tools)


class DrawnOnce:
    def __init__(self) -> None:
        self.id = uuid.uuid4()

    def __call__(self, messages: list[Json], tools: list[Json]) -> Json:
        return _with(f"{SYSTEM} session id {self.id}", messages, tools)


# -- hostile ----------------------------------------------------------------------------------------------------


def endless(messages: list[Json]) -> list[Json]:
    while len(messages) > 3:
        pass
    return messages


def exits(messages: list[Json]) -> list[Json]:
    sys.exit(3)


def exits_hard(messages: list[Json]) -> list[Json]:
    print("last words", file=sys.stderr, flush=True)
    os._exit(0)


def prints(messages: list[Json]) -> list[Json]:
    print("hello")
    return messages


def floods(messages: list[Json]) -> list[Json]:
    while True:
        os.write(1, b"x" * 65536)


def spawns(messages: list[Json]) -> list[Json]:
    threading.Thread(target=threading.Event().wait, name="spinner").start()
    return messages


def closes_everything(messages: list[Json]) -> list[Json]:
    os.closerange(3, 256)
    while True:
        time.sleep(1)


def scribbles(messages: list[Json]) -> list[Json]:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"{}\n")
    return messages


def leaves_children(messages: list[Json]) -> list[Json]:
    # The folder among its arguments tells whose child it is: others may run these builders at the same time.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", os.path.dirname(__file__)])
    while True:
        time.sleep(1)


def raises(messages: list[Json]) -> list[Json]:
    return [messages[99]]


def no_json(messages: list[Json]) -> Json:
    return {"messages": {1, 2}}


def no_body(messages: list[Json]) -> int:
    return 7


def takes_nothing() -> list[Json]:
    return []


def huge(messages: list[Json]) -> list[Json]:
    return [{"role": "user", "content": "x" * (40 << 20)}]


def killed(messages: list[Json]) -> list[Json]:
    os.kill(os.getpid(), 9)
    return messages


NUMBER = 7
