"""A conversation for the tests: what was said, and an agent's loop over it."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Use it to {name.replace('_', ' ')}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read_file", "run_command", "search")
]


def call(number, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call{number}", "type": "function", "function": function}],
    }


def result(number, content):
    return {"role": "tool", "tool_call_id": f"call{number}", "content": content}


CONVERSATION = [
    {"role": "user", "content": "The parser drops the last line. Find out why."},
    call(1, "read_file", '{"path":"src/parse.py"}'),
    result(1, "def parse(lines):\n    return lines[:-1]\n" * 4),
    call(2, "search", '{"path":"src"}'),
    result(2, "src/cli.py:12: parse(lines)\nsrc/api.py:40: parse(lines)"),
    {"role": "assistant", "content": "It slices the last line off."},
    {"role": "user", "content": "Mend it, please."},
    {"role": "assistant", "content": "Done."},
]


def agent(build, guard):
    """An agent's loop: build the request, have it checked, send it, take the reply."""
    for index, message in enumerate(CONVERSATION):
        if message["role"] != "assistant":
            continue
        guard.check_request(build([dict(each) for each in CONVERSATION[:index]], TOOLS))
        guard.replied({"choices": [{"message": message}]})
