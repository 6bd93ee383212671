"""The same four builders, mended."""

import json
from datetime import datetime

SYSTEM = "You are a careful coding agent."


class with_clock:  # noqa: N801 (named like the builder that it mends)
    """The time stands behind the message that it belongs to, and is left there."""

    def __init__(self):
        self.notes = {}

    def __call__(self, messages, tools):
        self.notes.setdefault(len(messages) - 1, f"\n\n(It is {datetime.now():%H:%M}.)")
        noted = [
            {**message, "content": message["content"] + self.notes.get(index, "")}
            for index, message in enumerate(messages)
        ]
        return {"tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *noted]}


def with_tools(messages, tools):
    """The tools keep the order in which they were declared."""
    enabled = {"search", "read_file", "run_command"}
    chosen = [tool for tool in tools if tool["function"]["name"] in enabled]
    return {"tools": chosen, "messages": [{"role": "system", "content": SYSTEM}, *messages]}


def with_calls(messages, tools):
    """Arguments are saved as the string that the model wrote."""
    loaded = json.loads(json.dumps(messages))
    return {"tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *loaded]}


def with_results(messages, tools):
    """A result is cut once, when it arrives, and never again."""
    kept = [
        {**message, "content": message["content"][:400]} if message["role"] == "tool" else message
        for message in messages
    ]
    return {"tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *kept]}
