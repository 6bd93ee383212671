"""Four builders, each with a flaw that makes the server read the whole conversation again."""

import json
from datetime import datetime

SYSTEM = "You are a careful coding agent."


def with_clock(messages, tools):
    """The time stands in front of the conversation."""
    system = f"{SYSTEM} It is {datetime.now():%H:%M}."
    return {"tools": tools, "messages": [{"role": "system", "content": system}, *messages]}


def with_tools(messages, tools):
    """The tools come out of a set: in another order in every process."""
    by_name = {tool["function"]["name"]: tool for tool in tools}
    enabled = {"search", "read_file", "run_command"} & set(by_name)
    return {
        "tools": [by_name[name] for name in enabled],
        "messages": [{"role": "system", "content": SYSTEM}, *messages],
    }


def with_calls(messages, tools):
    """The history was saved as JSON with parsed arguments, and is written anew: other spaces than the model's."""
    saved = json.dumps([_parsed(message) for message in messages])
    loaded = [_written(message) for message in json.loads(saved)]
    return {"tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *loaded]}


def with_results(messages, tools):
    """Results are cut down as soon as they are not the newest: each turn rewrites the middle of the last one."""
    newest = len(messages) - 1
    kept = [
        {**message, "content": message["content"][:20] + " […]"}
        if message["role"] == "tool" and index != newest
        else message
        for index, message in enumerate(messages)
    ]
    return {"tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *kept]}


def _parsed(message):
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _written(message):
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message
