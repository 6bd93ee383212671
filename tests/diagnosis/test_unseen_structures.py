"""Changes of tools, messages, ids, images, markers and parameters that no other test makes: each written out once."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agentctx.diagnosis import Api, Exchange, diagnose_log

Body = dict[str, Any]
SYSTEM = (
    "You look after the reading room of a public library. You find books, reserve desks and answer letters.\n"
    "Be polite and brief. When you are not sure, say so and ask a colleague.\n"
)
ASK = "A reader wants the 1911 atlas of the harbour and a desk by the window on Thursday. Can we do both?"
PLAN = "I will look for the atlas in the catalogue and for a free desk at the same time."
ATLAS = (
    "Shelf mark H 1911/4, two copies, one on loan until Friday, one in the stacks (collection by cart, 40 minutes). "
    * 4
)
DESK = (
    "Desks 3, 7 and 11 stand by the window. Thursday: desk 7 is free from 10 to 14, the others are taken all day. "
    * 3
)
DONE = "Both can be done: the atlas comes from the stacks, and desk 7 is free on Thursday from 10 to 14."
MORE = "Good. Reserve desk 7 in the name of Okafor, and send the atlas there at ten, please."
KEPT = "Desk 7 is reserved for Okafor on Thursday, and the cart brings the atlas at ten."
LAST = "And write her a short letter that says so. Mention the rule about pencils."
END = "Dear Ms Okafor, desk 7 is yours on Thursday from 10 to 14; the atlas will be there. Pencils only, please."
BYE = "Thank you, that is all for today. Please close the record."
FIND = {"title": "atlas of the harbour", "year": 1911, "limits": {"lang": ["en", "de"], "max": 5}}
FREE = {"day": "Thursday", "window": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Title, or words from it."},
        "year": {"type": "integer"},
        "limits": {
            "type": "object",
            "properties": {
                "lang": {"type": "array", "items": {"type": "string", "enum": ["en", "de", "fr"]}},
                "max": {"type": "integer", "maximum": 20},
            },
        },
    },
    "required": ["title"],
}
NAMES = ("calendar_free", "catalogue_find", "desk_reserve", "letter_send", "loan_extend", "stacks_order")
PICTURE = base64.b64encode(bytes(range(256)) * 3).decode()
OTHER_PICTURE = base64.b64encode(bytes(reversed(range(256))) * 3).decode()


def schema() -> Body:
    return copy.deepcopy(SCHEMA)


# -- the base conversation in three APIs: seven items, two calls at once, an image in the first message --------------


def chat() -> tuple[Body, list[Body]]:
    head = {
        "model": "gpt-4.1",
        "tools": [
            {"type": "function", "function": {"name": n, "description": f"Use {n}.", "parameters": schema()}}
            for n in NAMES
        ],
    }
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}", "detail": "auto"}}
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, (n, a) in enumerate((("catalogue_find", FIND), ("calendar_free", FREE)))
    ]
    return head, [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "text", "text": ASK}, image]},
        {"role": "assistant", "content": PLAN, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": ATLAS},
        {"role": "tool", "tool_call_id": "call_1", "content": DESK},
        {"role": "assistant", "content": DONE},
        {"role": "user", "content": MORE},
        {"role": "assistant", "content": KEPT},
        {"role": "user", "content": LAST},
        {"role": "assistant", "content": END},
        {"role": "user", "content": BYE},
    ]


def claude() -> tuple[Body, list[Body]]:
    head = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 2048,
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": n, "description": f"Use {n}.", "input_schema": schema()} for n in NAMES],
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    text = lambda value: [{"type": "text", "text": value}]  # noqa: E731
    return head, [
        {"role": "user", "content": [*text(ASK), image]},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "thinking",
                    "thinking": "Two questions, two tools.",
                    "signature": "EroBCkgIBxABGAIi",
                },
                *text(PLAN),
                {"type": "tool_use", "id": "toolu_0", "name": "catalogue_find", "input": copy.deepcopy(FIND)},
                {"type": "tool_use", "id": "toolu_1", "name": "calendar_free", "input": dict(FREE)},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_0", "content": ATLAS},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": DESK},
            ],
        },
        {"role": "assistant", "content": text(DONE)},
        {"role": "user", "content": text(MORE)},
        {"role": "assistant", "content": text(KEPT)},
        {"role": "user", "content": text(LAST)},
        {"role": "assistant", "content": text(END)},
        {"role": "user", "content": text(BYE)},
    ]


def responses() -> tuple[Body, list[Body]]:
    head = {
        "model": "gpt-5.1",
        "instructions": SYSTEM,
        "reasoning": {"effort": "low", "summary": "auto"},
        "tools": [
            {
                "type": "function",
                "name": n,
                "description": f"Use {n}.",
                "parameters": schema(),
                "strict": False,
            }
            for n in NAMES
        ],
    }
    say = lambda role, value: {  # noqa: E731
        "type": "message",
        "role": role,
        "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": value}],
    }
    ask = say("user", ASK)
    ask["content"].append({"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"})
    return head, [
        ask,
        {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "gAAAAABn" * 8},
        {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": "catalogue_find", "arguments": json.dumps(FIND)},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "calendar_free", "arguments": json.dumps(FREE)},
        {"type": "function_call_output", "call_id": "call_0", "output": ATLAS},
        {"type": "function_call_output", "call_id": "call_1", "output": DESK},
        say("assistant", DONE),
        say("user", MORE),
        say("assistant", KEPT),
        say("user", LAST),
        say("assistant", END),
        say("user", BYE),
    ]  # fmt: skip


BASES: dict[Api, tuple[Callable[[], tuple[Body, list[Body]]], str, tuple[int, ...]]] = {
    "openai.chat": (chat, "messages", (2, 5, 7, 9, 11)),
    "anthropic.messages": (claude, "messages", (1, 3, 5, 7, 9)),
    "openai.responses": (responses, "input", (1, 6, 8, 10, 12)),
}


def log(api: Api) -> list[Body]:
    """Five requests, each with more of the same list; Anthropic's have a marker on the last block."""
    made, key, ends = BASES[api]
    bodies = []
    for end in ends:
        head, items = made()
        if api == "anthropic.messages":
            items[end - 1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        bodies.append({**head, key: items[:end]})
    return bodies


def answered(api: Api, bodies: list[Body]) -> list[Any]:
    """What the server returned for each request: the items that stand behind it in the base conversation."""
    made, _, ends = BASES[api]
    replies: list[Any] = []
    for end in ends:
        _, items = made()
        produced = []
        for item in items[end:]:
            role = item.get("role") or ("tool" if str(item["type"]).endswith("_output") else "assistant")
            if role != "assistant":
                break
            produced.append(item)
        if not produced:
            replies.append(None)
        elif api == "openai.chat":
            replies.append({"choices": [{"index": 0, "message": produced[0]}]})
        elif api == "anthropic.messages":
            replies.append({"type": "message", "content": produced[0]["content"]})
        else:
            replies.append({"object": "response", "output": produced})
    return replies


@dataclass(frozen=True)
class Case:
    """A change made to every request from ``turn`` on. ``causes`` empty: nothing may be found.

    ``suspected``: likely, not proven. ``known``: only the recorded replies show it; without them the request is one that
    goes another way from an earlier point, which is no break.
    """

    name: str
    api: Api
    change: Callable[[Body], None]
    where: str | None = None
    causes: tuple[str, ...] = ()
    turn: int = 3
    count: int = 1
    suspected: bool = False
    known: bool = False


def at(*path: Any) -> Callable[[Body], Any]:
    def find(body: Body) -> Any:
        value: Any = body
        for key in path:
            value = value[key]
        return value

    return find


def put(value: Any, *path: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        at(*path[:-1])(body)[path[-1]] = copy.deepcopy(value)

    return change


def edit(function: Callable[[Any], Any], *path: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        holder = at(*path[:-1])(body)
        holder[path[-1]] = function(holder[path[-1]])

    return change


def both(*changes: Callable[[Body], None]) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        for one in changes:
            one(body)

    return change


def take(*path: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        del at(*path[:-1])(body)[path[-1]]

    return change


def put_first(value: Any, *path: Any) -> Callable[[Body], None]:
    return lambda body: at(*path)(body).insert(0, copy.deepcopy(value))


def turn_around(body: Body) -> None:
    for key in list(body)[::-1]:
        body[key] = body.pop(key)


CHAT, CLAUDE, RESPONSES = "openai.chat", "anthropic.messages", "openai.responses"
FUNCTION = ("tools", 1, "function")


def new_tool(api: Api, name: str) -> Body:
    made = copy.deepcopy(log(api)[0]["tools"][0])
    (made.get("function") or made)["name"] = name
    return made


def insert(index: int, value: Body, key: str = "tools") -> Callable[[Body], None]:
    return lambda body: body[key].insert(index, copy.deepcopy(value))


def window(keep_head: int, drop: int, key: str = "messages") -> Callable[[Body], None]:
    def change(body: Body) -> None:
        del body[key][keep_head : keep_head + drop]

    return change


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(item) for key, item in reversed(value.items())}
    return value


def markers(*places: tuple[Any, ...]) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        for place in places:
            at(*place)(body)["cache_control"] = {"type": "ephemeral"}

    return change


CASES = [
    # tools
    Case("a set is iterated anew after a restart", CHAT, edit(lambda t: [t[i] for i in (3, 0, 5, 1, 4, 2)], "tools"), "tools (order)", ("tool_order",)),
    Case("two servers answer the other way round", RESPONSES, edit(lambda t: t[3:] + t[:3], "tools"), "tools (order)", ("tool_order",)),
    Case("a server connects late, sorted in", CLAUDE, insert(3, new_tool(CLAUDE, "dictionary_look")), "tools[3]", ("tool_added",)),
    Case("a server connects late, at the end", CHAT, insert(6, new_tool(CHAT, "zoo_hours")), "tools[6]", ("tool_added",)),
    Case("a server's three tools are gone", RESPONSES, edit(lambda t: t[:2] + t[5:], "tools"), "tools[2]", ("tool_removed",)),
    Case("all tools are withheld", CHAT, take("tools"), "tools[0]", ("tool_removed",)),
    Case("a tool under another name", CLAUDE, put("catalogue_search", "tools", 1, "name"), "tools[1]", ("tool_removed", "tool_added")),
    Case("a bound deep in a schema", CHAT, put(50, *FUNCTION, "parameters", "properties", "limits", "properties", "max", "maximum"), "tools[1].function.parameters", ("tool_schema_changed",)),
    Case("an enum deep in a schema grows", CLAUDE, edit(lambda e: [*e, "pl"], "tools", 4, "input_schema", "properties", "limits", "properties", "lang", "items", "enum"), "tools[4].input_schema", ("tool_schema_changed",)),
    Case("an enum made from a set", RESPONSES, edit(lambda e: e[::-1], "tools", 0, "parameters", "properties", "limits", "properties", "lang", "items", "enum"), "tools[0].parameters", ("tool_schema_changed", "json_key_order")),
    Case("key order deep in a schema", CLAUDE, edit(reordered, "tools", 2, "input_schema", "properties", "limits"), "tools[2].input_schema", ("json_key_order",)),
    Case("a schema serialised with sorted keys", RESPONSES, edit(lambda s: json.loads(json.dumps(s, sort_keys=True)), "tools", 1, "parameters"), "tools[1].parameters", ("json_key_order",)),
    Case("no further properties allowed", CHAT, put(False, *FUNCTION, "parameters", "additionalProperties"), "tools[1].function.parameters", ("tool_schema_changed",)),
    Case("strict mode switched on", RESPONSES, put(True, "tools", 1, "strict"), "tools[1]", ("tool_schema_changed",)),
    Case("a description reworded", CLAUDE, put("Look it up in the catalogue.", "tools", 1, "description"), "tools[1].description@0", ("tool_schema_changed",)),
    # ids and arguments
    Case("the second of two calls gets a new id", CHAT, both(put("call_9", "messages", 2, "tool_calls", 1, "id"), put("call_9", "messages", 4, "tool_call_id")), "messages[2].tool_calls[1].id", ("id_regenerated",)),
    Case("ids of both calls, Anthropic", CLAUDE, both(put("toolu_8", "messages", 1, "content", 2, "id"), put("toolu_9", "messages", 1, "content", 3, "id"), put("toolu_8", "messages", 2, "content", 0, "tool_use_id"), put("toolu_9", "messages", 2, "content", 1, "tool_use_id")), "messages[1].content[2].id", ("id_regenerated",)),
    Case("a call id of the Responses API", RESPONSES, both(put("call_7", "input", 3, "call_id"), put("call_7", "input", 5, "call_id")), "input[3].call_id", ("id_regenerated",)),
    Case("arguments without blanks", CHAT, put(json.dumps(FIND, separators=(",", ":")), "messages", 2, "tool_calls", 0, "function", "arguments"), "messages[2].tool_calls[0].function.arguments@9", ("argument_serialisation",)),
    Case("arguments with keys sorted, deep", RESPONSES, put(json.dumps({"limits": {"max": 5, "lang": ["en", "de"]}, "title": FIND["title"], "year": 1911}), "input", 2, "arguments"), "input[2].arguments@2", ("json_key_order",)),
    Case("a whole number becomes a float", CLAUDE, put(1911.0, "messages", 1, "content", 2, "input", "year"), "messages[1].content[2].input", ("argument_serialisation",)),
    Case("arguments quoted twice", CHAT, put(json.dumps(json.dumps(FREE)), "messages", 2, "tool_calls", 1, "function", "arguments"), "messages[2].tool_calls[1].function.arguments@0", ("argument_serialisation",)),
    Case("arguments as an object", CHAT, put(FREE, "messages", 2, "tool_calls", 1, "function", "arguments"), "messages[2].tool_calls[1].function.arguments", ("argument_serialisation",)),
    Case("arguments say something else", RESPONSES, put(json.dumps({**FREE, "day": "Friday"}), "input", 3, "arguments"), "input[3].arguments@9", ("message_edited",)),
    Case("a path in arguments is scrubbed", CHAT, edit(lambda a: a.replace("harbour", "[redacted]"), "messages", 2, "tool_calls", 0, "function", "arguments"), "messages[2].tool_calls[0].function.arguments@24", ("message_edited",)),
    # the system prompt on the move
    Case("system becomes developer", CHAT, put("developer", "messages", 0, "role"), "messages[0]", ("system_moved",)),
    Case("the system prompt goes into the first question", CHAT, both(take("messages", 0), put_first({"type": "text", "text": SYSTEM}, "messages", 0, "content")), "messages[0]", ("system_moved",)),
    Case("the system field goes into the first question", CLAUDE, both(take("system"), put_first({"type": "text", "text": SYSTEM}, "messages", 0, "content")), "system", ("system_moved",)),
    Case("instructions become a developer message", RESPONSES, both(take("instructions"), put_first({"type": "message", "role": "developer", "content": SYSTEM}, "input")), "instructions", ("system_moved",)),
    Case("a rule joins the system prompt", CHAT, edit(lambda s: s + "Readers under twelve need an adult with them.\n", "messages", 0, "content"), f"messages[0].content@{len(SYSTEM)}", ("system_moved",)),
    Case("a second system message in front", CHAT, insert(1, {"role": "system", "content": "The lift is out of order; offer the stairs or help."}, "messages"), "messages[1]", ("system_moved", "message_inserted")),
    Case("a word of the system prompt is mended", RESPONSES, edit(lambda s: s.replace("polite", "kind"), "instructions"), f"instructions@{SYSTEM.index('polite')}", ("message_edited",)),
    # images
    Case("an image encoded anew", CHAT, put(f"data:image/png;base64,{OTHER_PICTURE}", "messages", 1, "content", 1, "image_url", "url"), "messages[1].content[1].image_url", ("image_changed",)),
    Case("an image encoded anew, Anthropic", CLAUDE, put(OTHER_PICTURE, "messages", 0, "content", 1, "source", "data"), "messages[0].content[1].source", ("image_changed",)),
    Case("an image as JPEG", RESPONSES, put(f"data:image/jpeg;base64,{OTHER_PICTURE}", "input", 0, "content", 1, "image_url"), "input[0].content[1].image_url", ("image_changed",)),
    Case("an image in less detail", CHAT, put("low", "messages", 1, "content", 1, "image_url", "detail"), "messages[1].content[1].image_url", ("image_changed",)),
    Case("an image behind a link that is signed anew", CHAT, put("https://files.example/a.png?sig=9f8e7d", "messages", 1, "content", 1, "image_url", "url"), "messages[1].content[1].image_url", ("image_changed",)),
    Case("an old image makes room", CLAUDE, put({"type": "text", "text": "[image removed]"}, "messages", 0, "content", 1), "messages[0].content[1]", ("image_changed", "compaction")),
    Case("an image is dropped", RESPONSES, take("input", 0, "content", 1), "input[0].content[1]", ("image_changed",)),
    # history
    Case("the oldest exchange is dropped", CHAT, window(1, 5), "messages[1]", ("history_trimmed",), 4),
    Case("the window cuts a call from its result", CHAT, window(2, 1), "messages[2]", ("history_trimmed", "message_removed")),
    Case("one exchange in the middle is dropped", CLAUDE, window(3, 2), "messages[3]", ("message_removed", "history_trimmed"), known=True),
    Case("a tool result is dropped", RESPONSES, take("input", 5), "input[5]", ("message_removed",)),
    Case("a message is sent twice", CHAT, lambda b: b["messages"].insert(7, dict(b["messages"][6])), "messages[7]", ("message_inserted",), known=True),
    Case("a note slips in between", RESPONSES, insert(6, {"type": "message", "role": "user", "content": "Mind the opening hours: nine to five, closed on Mondays."}, "input"), "input[6]", ("message_inserted",)),
    Case("a result is cut short", CHAT, edit(lambda t: t[:80] + "\n… [truncated]", "messages", 3, "content"), "messages[3].content@80", ("compaction",)),
    Case("all results are cleared at once", CLAUDE, both(put("[Old tool result cleared]", "messages", 2, "content", 0, "content"), put("[Old tool result cleared]", "messages", 2, "content", 1, "content")), "messages[2].content[0].content@0", ("compaction",)),
    Case("results go to a file", RESPONSES, put("Output saved to /tmp/result-0.txt (452 characters).", "input", 4, "output"), "input[4].output@0", ("compaction",)),
    Case("a summary as a system message", CHAT, lambda b: b["messages"].__setitem__(slice(1, 7), [{"role": "system", "content": "Conversation summary: a reader wanted the 1911 atlas of the harbour and a window desk on Thursday; both were found and desk 7 is to be reserved for Okafor."}]), "messages[1]", ("compaction",)),
    Case("a summary behind the task", CLAUDE, lambda b: b["messages"].__setitem__(slice(1, 7), [{"role": "assistant", "content": [{"type": "text", "text": "Progress so far: atlas found in the stacks, desk 7 free and reserved for Okafor on Thursday, letter still to be written."}]}, *b["messages"][6:7]]), "messages[1].content[0]", ("compaction",), 4),
    Case("an old question is reworded", CHAT, edit(lambda c: [{**c[0], "text": c[0]["text"].replace("window", "stairs")}, *c[1:]], "messages", 1, "content"), f"messages[1].content[0].text@{ASK.index('window')}", ("message_edited",)),
    Case("an answer is censored afterwards", RESPONSES, edit(lambda t: t.replace("desk 7", "a desk"), "input", 6, "content", 0, "text"), f"input[6].content[0].text@{DONE.index('desk 7')}", ("message_edited",)),
    Case("a name joins a message", CHAT, put("reader_desk", "messages", 6, "name"), "messages[6].name", ("message_edited",)),
    # reasoning
    Case("thinking leaves old turns", CLAUDE, take("messages", 1, "content", 0), "messages[1].content[0]", ("reasoning_removed",)),
    Case("a reasoning item is dropped", RESPONSES, take("input", 1), "input[1]", ("reasoning_removed",)),
    # white space and shape
    Case("line ends are turned", CHAT, edit(lambda t: t.replace("\n", "\r\n"), "messages", 0, "content"), f"messages[0].content@{SYSTEM.index(chr(10))}", ("whitespace",)),
    Case("a blank is no longer a blank", RESPONSES, edit(lambda t: t.replace(" ", "\u00a0", 1), "input", 7, "content", 0, "text"), f"input[7].content[0].text@{MORE.index(' ')}", ("whitespace",)),
    Case("an unseen character slips in", CHAT, edit(lambda t: t[:20] + "\u200b" + t[20:], "messages", 6, "content"), "messages[6].content@20", ("whitespace", "message_edited")),
    Case("a string becomes a block", CLAUDE, put([{"type": "text", "text": ATLAS}], "messages", 2, "content", 0, "content"), "messages[2].content[0].content", ("content_shape",), suspected=True),
    Case("blocks become a string", RESPONSES, put(MORE, "input", 7, "content"), "input[7].content", ("content_shape",)),
    Case("one part becomes two", CHAT, edit(lambda c: [{"type": "text", "text": ASK[:40]}, {"type": "text", "text": ASK[40:]}, c[1]], "messages", 1, "content"), "messages[1].content[0].text@40", ("content_shape",), suspected=True),
    # parameters
    Case("the answer must be JSON now", CHAT, put({"type": "json_object"}, "response_format"), "params.response_format", ("parameter_changed",)),
    Case("a tool is forced", CHAT, put({"type": "function", "function": {"name": "letter_send"}}, "tool_choice"), "params.tool_choice", ("parameter_changed",)),
    Case("a tool is forced, Anthropic", CLAUDE, put({"type": "any"}, "tool_choice"), "params.tool_choice", ("parameter_changed",)),
    Case("thinking is switched on", CLAUDE, put({"type": "enabled", "budget_tokens": 4000}, "thinking"), "params.thinking", ("parameter_changed",)),
    Case("less effort", RESPONSES, put("minimal", "reasoning", "effort"), "params.reasoning.effort", ("parameter_changed",)),
    Case("more words", RESPONSES, put({"verbosity": "high"}, "text"), "params.text", ("parameter_changed",)),
    Case("a template keyword", CHAT, put({"enable_thinking": False}, "chat_template_kwargs"), "params.chat_template_kwargs", ("parameter_changed",)),
    Case("another cache key", RESPONSES, put("user-2", "prompt_cache_key"), "params.prompt_cache_key", ("parameter_changed",)),
    Case("the dated name of the model", CHAT, put("gpt-4.1-2025-04-14", "model"), "params.model", ("model_changed",)),
    # markers
    Case("markers on five blocks", CLAUDE, markers(("tools", 5), ("messages", 0, "content", 0), ("messages", 1, "content", 1), ("messages", 2, "content", 1)), "messages[2].content[1].cache_control", ("breakpoint_limit",), 3, 2),
    # no difference
    Case("markers move", CLAUDE, markers(("messages", 2, "content", 1))),
    Case("a marker asks for an hour", CLAUDE, put({"type": "ephemeral", "ttl": "1h"}, "system", 0, "cache_control")),
    Case("sampling", CHAT, both(put(0.9, "temperature"), put(7, "seed"), put(["END"], "stop"), put(True, "logprobs"), put({"a": "b"}, "metadata"), put("u-77", "user"))),
    Case("streaming and limits", RESPONSES, both(put(True, "stream"), put(99, "max_output_tokens"), put(False, "store"), put(["reasoning.encrypted_content"], "include"))),
    Case("status of items", RESPONSES, both(put("completed", "input", 6, "status"), put("completed", "input", 2, "status"))),
    Case("empty fields", CHAT, both(put(None, "messages", 5, "refusal"), put([], "messages", 5, "annotations"), put(None, "messages", 5, "tool_calls"), put(None, "messages", 5, "audio"))),
    Case("fields of the body in another order", CHAT, turn_around),
]  # fmt: skip


@pytest.mark.parametrize("replies", [True, False], ids=["replies", "requests"])
@pytest.mark.parametrize("api", BASES)
def test_the_base_is_clean(api: Api, replies: bool) -> None:
    diagnosis = diagnose_log(exchanges(api, log(api), replies))
    assert (diagnosis.clean, diagnosis.suspicions, diagnosis.conversation_count) == (True, [], 1)


def exchanges(api: Api, bodies: list[Body], replies: bool) -> list[Exchange]:
    returned = answered(api, bodies) if replies else [None] * len(bodies)
    return [
        Exchange(api, json.loads(json.dumps(body)), reply, 1_770_000_000.0 + 25 * turn, line=turn + 1)
        for turn, (body, reply) in enumerate(zip(bodies, returned, strict=True))
    ]


@pytest.mark.parametrize("replies", [True, False], ids=["replies", "requests"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_change(case: Case, replies: bool) -> None:
    bodies = log(case.api)
    for body in bodies[case.turn :]:
        case.change(body)
    diagnosis = diagnose_log(exchanges(case.api, bodies, replies))
    found = diagnosis.suspicions if case.suspected else diagnosis.findings
    said = [(f.cause, f.turn, f.place, f.count) for f in found]
    assert len(diagnosis.findings) + len(diagnosis.suspicions) == len(said)
    if not case.causes or (case.known and not replies):
        assert said == []
    else:
        assert len(said) == 1, said
        assert said[0][0] in case.causes, (said, found[0].was, found[0].now)
        assert said[0][1:] == (case.turn, case.where, case.count)
    assert diagnosis.conversation_count == 1
