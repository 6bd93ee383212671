"""One change to a healthy session, of every kind that a client makes: what changed, at which turn, at which place.

A mutation rewrites the requests from turn ``t`` on, all in the same way, so that exactly one turn breaks. It knows the
place it changed; nothing here knows the diagnosis. ``None`` means that a session offers no place for the mutation.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .healthy_sessions import Session, identifier, paragraph, sentence

Body = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a diagnosis has to say: the turn, the place (None: not in the prompt), the cause or its equals."""

    turn: int
    where: str | None
    causes: frozenset[str]
    verdict: str = "broken"


Mutation = Callable[[random.Random, Session], tuple[Session, Expected] | None]


def says(turn: int, where: str | None, *causes: str, verdict: str = "broken") -> Expected:
    return Expected(turn, where, frozenset(causes), verdict)


def changed(session: Session, turn: int, change: Callable[[Body], None]) -> Session:
    """A copy whose requests from ``turn`` on went through ``change``."""
    bodies = copy.deepcopy(session.bodies)
    for body in bodies[turn:]:
        change(body)
    return Session(session.api, bodies, session.replies, session.times, session.hint)


def prepared(session: Session, change: Callable[[Body], None]) -> Session:
    """A copy in which every request went through ``change``: still healthy."""
    return changed(session, 0, change)


def known(session: Session, turn: int) -> int:
    """Items of the request of ``turn`` that the log held before it: sent, or returned as a reply."""
    return len(items(session, turn - (session.replies[turn - 1] is None)))


def any_turn(rng: random.Random, session: Session, first: int = 1) -> int:
    return rng.randrange(first, len(session.bodies))


def lcp(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def items(session: Session, turn: int) -> list[dict[str, Any]]:
    return session.bodies[turn][session.key]


def lead(session: Session) -> int:
    return 1 if session.api == "openai.chat" else 0


def texts(session: Session, turn: int, *roles: str) -> list[tuple[str, list[Any]]]:
    """Texts that the request of ``turn`` carries and the one before it carried: (path in the body, keys to it)."""
    found: list[tuple[str, list[Any]]] = []
    for index in range(lead(session), len(items(session, turn - 1))):
        item = items(session, turn)[index]
        role = item.get("role") or ("tool" if str(item.get("type", "")).endswith("_output") else "assistant")
        at, keys = f"{session.key}[{index}]", [session.key, index]
        for path, more, kind in _item_texts(item, role):
            if kind in roles:
                found.append((at + path, keys + more))
    return found


def _item_texts(item: dict[str, Any], role: str) -> Iterator[tuple[str, list[Any], str]]:
    if isinstance(item.get("output"), str):
        yield ".output", ["output"], "tool"
    content = item.get("content")
    if isinstance(content, str):
        yield ".content", ["content"], role
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if part.get("type") == "tool_result":
            yield f".content[{index}].content[0].text", ["content", index, "content", 0, "text"], "tool"
        elif "text" in part:
            yield f".content[{index}].text", ["content", index, "text"], role


def get(body: Any, keys: list[Any]) -> Any:
    for key in keys:
        body = body[key]
    return body


def put(body: Any, keys: list[Any], value: Any) -> None:
    get(body, keys[:-1])[keys[-1]] = value


def system_keys(session: Session) -> tuple[str, list[Any]]:
    if session.api == "openai.chat":
        return "messages[0].content", ["messages", 0, "content"]
    if session.api == "openai.responses":
        return "instructions", ["instructions"]
    return "system[0].text", ["system", 0, "text"]


def tool_root(session: Session, index: int) -> tuple[str, list[Any], str]:
    """Path, keys and the name of the schema of a tool."""
    if session.api == "anthropic.messages":
        return f"tools[{index}]", ["tools", index], "input_schema"
    if session.api == "openai.responses":
        return f"tools[{index}]", ["tools", index], "parameters"
    return f"tools[{index}].function", ["tools", index, "function"], "parameters"


def replaced(session: Session, turn: int, path: str, keys: list[Any], new: str) -> tuple[Session, int]:
    """The session with a text replaced from ``turn`` on, and the first character that differs."""
    old = get(session.bodies[turn], keys)
    return changed(session, turn, lambda body: put(body, keys, new)), lcp(old, new)


def two_versions(session: Session, turn: int, keys: list[Any], early: str, late: str) -> tuple[Session, int]:
    """The session with one text before ``turn`` and another from there on, and the first character that differs."""
    bodies = copy.deepcopy(session.bodies)
    for number, body in enumerate(bodies):
        try:
            put(body, keys, early if number < turn else late)
        except IndexError:
            continue  # the item isn't sent yet
    replies = copy.deepcopy(session.replies)
    if keys[0] == session.key and isinstance(keys[1], int):
        # The item may have been a reply: then it was returned as the early version says.
        for number, body in enumerate(session.bodies):
            if len(body[session.key]) <= keys[1] and replies[number] is not None:
                _put_in_reply(session, replies[number], keys[1] - len(body[session.key]), keys[2:], early)
    return Session(session.api, bodies, replies, session.times, session.hint), lcp(early, late)


def _put_in_reply(session: Session, reply: Any, offset: int, keys: list[Any], text: str) -> None:
    produced = {
        "openai.chat": lambda: [reply["choices"][0]["message"]],
        "openai.responses": lambda: reply["output"],
        "anthropic.messages": lambda: [reply],
    }[session.api]()
    if 0 <= offset < len(produced):
        put(produced[offset], keys, text)


# -- text in front of the history ---------------------------------------------------------------------------------


def _stamp(rng: random.Random) -> Callable[[float], str]:
    form = rng.choice(
        (
            "%Y-%m-%dT%H:%M:%SZ",
            "%H:%M:%S",
            "%A, %d %B %Y, %H:%M:%S",
            "%Y-%m-%d %H:%M:%S",
            "%I:%M:%S %p",
            "epoch",
        )
    )
    label = rng.choice(("Current time: ", "It is now ", "[clock] ", "time="))

    def written(at: float) -> str:
        if form == "epoch":
            return f"{label}{int(at)}"
        return label + datetime.fromtimestamp(at, UTC).strftime(form)

    return written


def _inside(rng: random.Random, text: str, piece: Callable[[int], str]) -> tuple[str, str]:
    """Two versions of a text with a piece at a random line or sentence end (or at the start)."""
    cut = rng.choice([0, *(i + 2 for i in range(len(text) - 2) if text[i : i + 2] == ". ")])
    return (text[:cut] + piece(0) + ". " + text[cut:], text[:cut] + piece(1) + ". " + text[cut:])


def volatile_system(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    path, keys = system_keys(session)
    stamp = _stamp(rng)
    times = session.times[turn - 1], session.times[turn]
    early, late = _inside(rng, get(session.bodies[0], keys), lambda i: stamp(times[i]))
    made, at = two_versions(session, turn, keys, early, late)
    return made, says(turn, f"{path}@{at}", "volatile_text")


def volatile_message(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session, 2)
    places = list(texts(session, turn - 1, "user"))
    if not places:
        return None
    path, keys = rng.choice(places)
    stamp = _stamp(rng)
    times = session.times[turn - 1], session.times[turn]
    early, late = _inside(rng, get(session.bodies[turn], keys), lambda i: stamp(times[i]))
    made, at = two_versions(session, turn, keys, early, late)
    return made, says(turn, f"{path}@{at}", "volatile_text")


def _tag(rng: random.Random) -> str:
    form = rng.choice(("hex", "uuid", "base"))
    if form == "hex":
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((8, 12, 16)))) + "e7"
    if form == "uuid":
        return "-".join("".join(rng.choice("0123456789abcdef") for _ in range(n)) for n in (8, 4, 4, 4, 12))
    return (
        "".join(rng.choice("abcdefghij0123456789") for _ in range(4))
        + "4k9"
        + identifier(rng, "")[:6]
        + "7x2"
    )


def random_value(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    path, keys = system_keys(session)
    if rng.random() < 0.3 and session.api != "llama.completion":
        index = rng.randrange(len(session.bodies[0]["tools"]))
        path, keys, _ = tool_root(session, index)
        path, keys = f"{path}.description", [*keys, "description"]
    state = rng.getstate()
    tags = _tag(rng), ""
    form_seed = rng.getrandbits(32)
    rng.setstate(state)
    pair = random.Random(form_seed)
    tags = _pair(pair)
    early, late = _inside(rng, get(session.bodies[0], keys), lambda i: f"Request tag {tags[i]}")
    made, at = two_versions(session, turn, keys, early, late)
    return made, says(turn, f"{path}@{at}", "random_value")


def _pair(rng: random.Random) -> tuple[str, str]:
    """Two random values of one form that differ in their first character."""
    seed = rng.getrandbits(32)
    while True:
        first = _tag(random.Random(seed))
        state = random.Random(seed)
        form = state.choice(("hex", "uuid", "base"))
        for _ in range(50):
            other = random.Random(rng.getrandbits(32))
            if other.choice(("hex", "uuid", "base")) == form:
                break
        else:
            continue
        probe = rng.getrandbits(32)
        while random.Random(probe).choice(("hex", "uuid", "base")) != form:
            probe = rng.getrandbits(32)
        second = _tag(random.Random(probe))
        if len(first) == len(second) and first[0] != second[0]:
            return first, second
        seed = rng.getrandbits(32)


# -- tools --------------------------------------------------------------------------------------------------------


def tool_order(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    order = list(range(len(session.bodies[0]["tools"])))
    while order == sorted(order):
        rng.shuffle(order)
    made = changed(session, turn, lambda body: body.update(tools=[body["tools"][i] for i in order]))
    return made, says(turn, "tools (order)", "tool_order")


def tool_added(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    at = rng.randrange(len(session.bodies[0]["tools"]) + 1)

    def add(body: Body) -> None:
        tool = copy.deepcopy(body["tools"][0])
        (tool.get("function") or tool)["name"] = "late_tool"
        body["tools"].insert(at, tool)

    return changed(session, turn, add), says(turn, f"tools[{at}]", "tool_added")


def tool_removed(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    at = rng.randrange(len(session.bodies[0]["tools"]))
    made = changed(session, turn, lambda body: body["tools"].pop(at))
    return made, says(turn, f"tools[{at}]", "tool_removed")


def tool_schema(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    at = rng.randrange(len(session.bodies[0]["tools"]))
    path, keys, name = tool_root(session, at)
    form = rng.choice(("enum", "type", "required", "description", "text"))
    if form == "text":
        old = get(session.bodies[turn], [*keys, "description"])
        new = f"{old} {sentence(rng)}" if rng.random() < 0.5 else sentence(rng)
        made, offset = replaced(session, turn, path, [*keys, "description"], new)
        return made, says(turn, f"{path}.description@{offset}", "tool_schema_changed")

    def change(body: Body) -> None:
        schema = get(body, [*keys, name])
        field = next(iter(schema["properties"]))
        if form == "enum":
            schema["properties"][field]["enum"] = ["one", "two"]
        elif form == "type":
            schema["properties"][field]["type"] = "boolean"
        elif form == "required":
            schema["required"] = schema["required"][:1]
        else:
            schema["properties"][field]["description"] = "Something else entirely."

    return changed(session, turn, change), says(turn, f"{path}.{name}", "tool_schema_changed")


def schema_key_order(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    at = rng.randrange(len(session.bodies[0]["tools"]))
    path, keys, name = tool_root(session, at)

    def change(body: Body) -> None:
        schema = get(body, [*keys, name])
        schema["properties"] = dict(reversed(schema["properties"].items()))

    return changed(session, turn, change), says(turn, f"{path}.{name}", "json_key_order")


# -- calls --------------------------------------------------------------------------------------------------------


def calls(session: Session, turn: int, sent: int | None = None) -> list[tuple[str, list[Any], str]]:
    """Calls that both requests carry (or of which the later is the returned reply): path, keys, name of arguments."""
    found = []
    stop = len(items(session, turn - 1)) if sent is None else sent
    for index in range(stop):
        item = items(session, turn)[index]
        at, keys = f"{session.key}[{index}]", [session.key, index]
        if item.get("type") == "function_call":
            found.append((at, keys, "arguments"))
        for number, _ in enumerate(item.get("tool_calls") or ()):
            found.append((f"{at}.tool_calls[{number}]", [*keys, "tool_calls", number], "function"))
        for number, part in enumerate(item["content"] if isinstance(item.get("content"), list) else ()):
            if part.get("type") == "tool_use":
                found.append((f"{at}.content[{number}]", [*keys, "content", number], "input"))
    return found


def argument_text(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    places = [place for place in calls(session, turn, known(session, turn)) if place[2] != "input"]
    if not places:
        return None
    path, keys, kind = rng.choice(places)
    if kind == "function":
        path, keys = f"{path}.function.arguments", [*keys, "function", "arguments"]
    else:
        path, keys = f"{path}.arguments", [*keys, "arguments"]
    old = get(session.bodies[turn], keys)
    value = json.loads(old)
    form = rng.choice(("compact", "indent", "order"))
    if form == "order":
        new, cause = json.dumps(dict(reversed(value.items()))), "json_key_order"
    else:
        new = json.dumps(value, separators=(",", ":")) if form == "compact" else json.dumps(value, indent=1)
        cause = "argument_serialisation"
    made, at = replaced(session, turn, path, keys, new)
    return made, says(turn, f"{path}@{at}", cause)


def input_key_order(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    places = [place for place in calls(session, turn, known(session, turn)) if place[2] == "input"]
    if not places:
        return None
    path, keys, _ = rng.choice(places)
    keys = [*keys, "input"]
    made = changed(session, turn, lambda body: put(body, keys, dict(reversed(get(body, keys).items()))))
    return made, says(turn, f"{path}.input", "json_key_order")


def new_ids(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    places = calls(session, turn, known(session, turn))
    if not places:
        return None
    path, _keys, _kind = places[0]
    name = "call_id" if session.api == "openai.responses" else "id"
    fresh = {get(session.bodies[turn], [*k, name]): identifier(rng, "call_") for _, k, _ in places}

    def change(body: Body) -> None:
        text = json.dumps(body)
        for old, new in fresh.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        body.clear()
        body.update(json.loads(text))

    return changed(session, turn, change), says(turn, f"{path}.{name}", "id_regenerated")


# -- messages -----------------------------------------------------------------------------------------------------


def edited(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    path, keys = rng.choice(texts(session, turn, "user", "tool", "assistant") or [("", [])])
    if not path:
        return None
    old = get(session.bodies[turn], keys)
    words = old.split(" ")
    at = rng.randrange(len(words))
    new = " ".join(
        [*words[:at], rng.choice(("another", "different", "corrected")), *words[at + rng.choice((0, 1)) :]]
    )
    if new == old:
        return None
    made, offset = replaced(session, turn, path, keys, new)
    return made, says(turn, f"{path}@{offset}", "message_edited")


def inserted(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    first = lead(session)
    at = rng.randrange(first, len(items(session, turn - 1)) + (session.replies[turn - 1] is not None))
    text = sentence(rng, 10, 20)
    note: dict[str, Any] = {"role": "user", "content": text}
    if session.api == "openai.responses":
        note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    made = changed(session, turn, lambda body: body[session.key].insert(at, copy.deepcopy(note)))
    return made, says(turn, f"{session.key}[{at}]", "message_inserted")


def removed(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """A single message that isn't an exchange: a note that was sent on its own in all earlier requests."""
    turn = any_turn(rng, session, 2)
    first = lead(session)
    length = len(items(session, turn - 1))
    at = rng.randrange(first + 1, length) if length > first + 1 else None
    if at is None:
        return None
    text = paragraph(rng, 2, 4)
    note: dict[str, Any] = {"role": "user", "content": text}
    if session.api == "openai.responses":
        note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    bodies = copy.deepcopy(session.bodies)
    for body in bodies[:turn]:
        if len(body[session.key]) >= at:
            body[session.key].insert(at, copy.deepcopy(note))
    started = next(i for i, body in enumerate(session.bodies) if len(body[session.key]) >= at)
    if len(session.bodies[started][session.key]) != at and started > 0:
        return None  # it would have been slipped in: two breaks
    if started == 0 and len(session.bodies[0][session.key]) < at:
        return None
    made = Session(session.api, bodies, session.replies, session.times, session.hint)
    return made, says(turn, f"{session.key}[{at}]", "message_removed")


def trimmed(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session, 2)
    first = lead(session)
    keep_first = rng.random() < 0.5
    start = first + 1 if keep_first else first
    stops = [
        index
        for index in range(start + 1, len(items(session, turn - 1)))
        if _is_turn_start(items(session, turn)[index])
        and any(map(_is_answer, items(session, turn)[start:index]))
    ]
    if not stops:
        return None
    stop = rng.choice(stops)

    def cut(body: Body) -> None:
        del body[session.key][start:stop]

    return changed(session, turn, cut), says(turn, f"{session.key}[{start}]", "history_trimmed")


def _is_answer(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def _is_assistant(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _is_turn_start(item: dict[str, Any]) -> bool:
    content = item.get("content")
    if isinstance(content, list) and any(part.get("type") == "tool_result" for part in content):
        return False
    return item.get("role") in ("user", "assistant") or item.get("type") == "reasoning"


def summarised(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """A summary takes the place of a run of messages behind the first one."""
    turn = any_turn(rng, session, 2)
    start = lead(session) + 1
    stops = [
        index
        for index in range(start + 2, len(items(session, turn - 1)) + 1)
        if index < len(items(session, turn)) and _is_turn_start(items(session, turn)[index])
    ]
    if not stops or not _is_assistant(items(session, turn)[start]):
        return None
    stop = rng.choice(stops)
    opening = rng.choice(
        (
            "Summary of the conversation so far: ",
            "The earlier conversation was condensed: ",
            "Progress so far: ",
        )
    )
    text = opening + paragraph(rng, 2, 4)
    note: dict[str, Any] = {"role": "user", "content": text}
    if session.api == "openai.responses":
        note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def cut(body: Body) -> None:
        body[session.key][start:stop] = [copy.deepcopy(note)]

    return changed(session, turn, cut), says(turn, f"{session.key}[{start}]", "compaction")


def cleared(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """Old tool results give way to a stub."""
    turn = any_turn(rng, session, 2)
    places = [
        place for place in texts(session, turn, "tool") if len(get(session.bodies[turn], place[1])) > 120
    ]
    if not places:
        return None
    chosen = places[: rng.randint(1, len(places))]
    stub = rng.choice(
        ("[old tool result cleared]", "(output removed)", "<truncated>", "[Content omitted to save space]")
    )
    offset = lcp(get(session.bodies[turn], chosen[0][1]), stub)

    def change(body: Body) -> None:
        for _, keys in chosen:
            put(body, keys, stub)

    return changed(session, turn, change), says(turn, f"{chosen[0][0]}@{offset}", "compaction")


def reasoning_dropped(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    sent = items(session, turn)[: known(session, turn)]
    if session.api == "openai.chat":
        with_it = [i for i, item in enumerate(sent) if item.get("reasoning_content")]
        if not with_it:
            return None
        gone = with_it[: rng.randint(1, len(with_it))]

        def change(body: Body) -> None:
            for index in gone:
                del body["messages"][index]["reasoning_content"]

        return changed(session, turn, change), says(
            turn, f"messages[{gone[0]}].reasoning_content", "reasoning_removed"
        )
    if session.api == "openai.responses":
        with_it = [i for i, item in enumerate(sent) if item.get("type") == "reasoning"]
        if not with_it:
            return None
        return (
            changed(session, turn, lambda body: [body["input"].pop(i) for i in reversed(with_it)] and None),
            says(turn, f"input[{with_it[0]}]", "reasoning_removed"),
        )
    with_it = [
        i
        for i, item in enumerate(sent)
        if item["role"] == "assistant"
        and item["content"][0]["type"] == "thinking"
        and len(item["content"]) > 1
    ]
    if not with_it:
        return None
    return (
        changed(
            session, turn, lambda body: [body["messages"][i]["content"].pop(0) for i in with_it] and None
        ),
        says(turn, f"messages[{with_it[0]}].content[0]", "reasoning_removed"),
    )


def whitespace(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    path, keys = rng.choice(texts(session, turn, "user", "tool", "assistant") or [("", [])])
    if not path:
        return None
    old = get(session.bodies[turn], keys)
    form = rng.choice(("trailing", "leading", "double", "newline"))
    spaces = [i for i, character in enumerate(old) if character == " "]
    if form in ("double", "newline") and spaces:
        at = rng.choice(spaces)
        new = old[:at] + ("  " if form == "double" else "\n") + old[at + 1 :]
    else:
        new = old + rng.choice((" ", "\n", "\n\n")) if form != "leading" else f"\n{old}"
    made, offset = replaced(session, turn, path, keys, new)
    return made, says(turn, f"{path}@{offset}", "whitespace")


def shape(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """A list of one text block becomes a plain string."""
    kind = "input_text" if session.api == "openai.responses" else "text"

    def as_list(body: Body) -> None:
        for item in body[session.key]:
            if item.get("role") == "user" and isinstance(item.get("content"), str):
                item["content"] = [{"type": kind, "text": item["content"]}]

    session = prepared(session, as_list)
    turn = any_turn(rng, session)
    places = [
        index
        for index in range(len(items(session, turn - 1)))
        if items(session, turn)[index].get("role") == "user"
        and len(items(session, turn)[index]["content"]) == 1
        and "text" in items(session, turn)[index]["content"][0]
    ]
    if not places:
        return None
    at = rng.choice(places)

    def change(body: Body) -> None:
        item = body[session.key][at]
        item["content"] = item["content"][0]["text"]

    return changed(session, turn, change), says(turn, f"{session.key}[{at}].content", "content_shape")


def image(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """An image in the first user message is encoded anew, taken away, or follows the newest message."""

    def picture(name: str) -> dict[str, Any]:
        if session.api == "anthropic.messages":
            source = {"type": "base64", "media_type": "image/png", "data": name * 20}
            return {"type": "image", "source": source}
        if session.api == "openai.responses":
            return {"type": "input_image", "image_url": f"data:image/png;base64,{name * 20}"}
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name * 20}"}}

    kind = "input_text" if session.api == "openai.responses" else "text"
    first = lead(session)

    def attach(body: Body) -> None:
        item = body[session.key][first]
        if isinstance(item["content"], str):
            item["content"] = [{"type": kind, "text": item["content"]}]
        item["content"].append(picture("iVBORw0"))

    session = prepared(session, attach)
    turn = any_turn(rng, session)
    path = f"{session.key}[{first}].content[1]"
    form = rng.choice(("other", "gone"))

    def change(body: Body) -> None:
        content = body[session.key][first]["content"]
        if form == "other":
            content[1] = picture("iVBORw1")
        else:
            content.pop(1)

    where = (
        path
        if form == "gone"
        else f"{path}.{'source' if session.api == 'anthropic.messages' else 'image_url'}"
    )
    return changed(session, turn, change), says(turn, where, "image_changed")


def system_note(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    note = sentence(rng, 12, 20)
    path, keys = system_keys(session)
    if session.api == "openai.responses":
        old = get(session.bodies[turn], keys)
        made, at = replaced(session, turn, path, keys, f"{old}\n\n{note}")
        return made, says(turn, f"{path}@{at}", "system_moved", "volatile_text")
    if session.api == "anthropic.messages":
        made = changed(session, turn, lambda body: body["system"].append({"type": "text", "text": note}))
        return made, says(turn, "system[1]", "system_moved", "volatile_text")
    made = changed(
        session, turn, lambda body: body["messages"].insert(1, {"role": "system", "content": note})
    )
    return made, says(turn, "messages[1]", "system_moved", "volatile_text", "message_inserted")


# -- parameters and markers ---------------------------------------------------------------------------------------


def parameter(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    choices: dict[str, list[tuple[str, Any, Any, str]]] = {
        "openai.chat": [
            ("reasoning_effort", "low", "high", ""),
            ("response_format", {"type": "text"}, {"type": "json_object"}, ".type"),
            ("tool_choice", "auto", "required", ""),
            (
                "chat_template_kwargs",
                {"enable_thinking": True},
                {"enable_thinking": False},
                ".enable_thinking",
            ),
        ],
        "openai.responses": [
            ("reasoning", {"effort": "medium"}, {"effort": "high"}, ".effort"),
            ("prompt_cache_key", "one", "two", ""),
        ],
        "anthropic.messages": [
            (
                "thinking",
                {"type": "enabled", "budget_tokens": 1024},
                {"type": "enabled", "budget_tokens": 4096},
                ".budget_tokens",
            ),
            ("tool_choice", {"type": "auto"}, {"type": "any"}, ".type"),
        ],
    }
    name, early, late, path = rng.choice(choices[session.api])
    session = prepared(session, lambda body: body.update({name: copy.deepcopy(early)}))
    made = changed(session, turn, lambda body: body.update({name: copy.deepcopy(late)}))
    return made, says(turn, f"params.{name}{path}", "parameter_changed")


def model(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    turn = any_turn(rng, session)
    made = changed(session, turn, lambda body: body.update(model=f"{body['model']}-mini"))
    return made, says(turn, "params.model", "model_changed")


def too_many_markers(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    mark = {"cache_control": {"type": "ephemeral"}}
    turn = any_turn(rng, session, 0)

    def change(body: Body) -> None:
        for tool in body["tools"][:4]:
            tool.update(copy.deepcopy(mark))

    return changed(session, turn, change), says(turn, "system[0].cache_control", "breakpoint_limit")


def live_marked_block(rng: random.Random, session: Session) -> tuple[Session, Expected] | None:
    """The only marker stands on a block that changes, behind static text without one."""
    turn = any_turn(rng, session)
    tickets = [rng.randrange(10, 50) for _ in range(2)]
    if tickets[0] == tickets[1]:
        return None
    handbook = paragraph(rng, 6, 9)

    def change(body: Body, count: int) -> None:
        body["system"][0].pop("cache_control", None)
        for item in body["messages"]:
            for part in item["content"]:
                part.pop("cache_control", None)
        live = f"Board: {count} tickets waiting. {sentence(random.Random(1))}"
        body["messages"][0]["content"] = [
            {"type": "text", "text": handbook},
            {"type": "text", "text": live, "cache_control": {"type": "ephemeral"}},
        ]

    made = prepared(session, lambda body: change(body, tickets[0]))
    made = changed(made, turn, lambda body: change(body, tickets[1]))
    at = lcp(f"Board: {tickets[0]}", f"Board: {tickets[1]}")
    return made, says(turn, f"messages[0].content[1].text@{at}", "breakpoint_misplaced")


CLIENT: dict[str, tuple[Mutation, tuple[str, ...]]] = {
    "volatile text in the system prompt": (
        volatile_system,
        ("openai.chat", "openai.responses", "anthropic.messages"),
    ),
    "volatile text in a message": (
        volatile_message,
        ("openai.chat", "openai.responses", "anthropic.messages"),
    ),
    "random value": (random_value, ("openai.chat", "openai.responses", "anthropic.messages")),
    "tool order": (tool_order, ("openai.chat", "openai.responses", "anthropic.messages")),
    "tool added": (tool_added, ("openai.chat", "openai.responses", "anthropic.messages")),
    "tool removed": (tool_removed, ("openai.chat", "openai.responses", "anthropic.messages")),
    "tool schema": (tool_schema, ("openai.chat", "openai.responses", "anthropic.messages")),
    "key order in a schema": (schema_key_order, ("openai.chat", "openai.responses", "anthropic.messages")),
    "key order in an input": (input_key_order, ("anthropic.messages",)),
    "arguments written anew": (argument_text, ("openai.chat", "openai.responses")),
    "new identifiers": (new_ids, ("openai.chat", "openai.responses", "anthropic.messages")),
    "message edited": (edited, ("openai.chat", "openai.responses", "anthropic.messages")),
    "message inserted": (inserted, ("openai.chat", "openai.responses", "anthropic.messages")),
    "message removed": (removed, ("openai.chat", "openai.responses", "anthropic.messages")),
    "history trimmed": (trimmed, ("openai.chat", "openai.responses", "anthropic.messages")),
    "summary": (summarised, ("openai.chat", "openai.responses", "anthropic.messages")),
    "results cleared": (cleared, ("openai.chat", "openai.responses", "anthropic.messages")),
    "reasoning removed": (reasoning_dropped, ("openai.chat", "openai.responses", "anthropic.messages")),
    "white space": (whitespace, ("openai.chat", "openai.responses", "anthropic.messages")),
    "content shape": (shape, ("openai.chat", "openai.responses", "anthropic.messages")),
    "image changed": (image, ("openai.chat", "openai.responses", "anthropic.messages")),
    "system note": (system_note, ("openai.chat", "openai.responses", "anthropic.messages")),
    "parameter": (parameter, ("openai.chat", "openai.responses", "anthropic.messages")),
    "model": (model, ("openai.chat", "openai.responses", "anthropic.messages")),
    "too many markers": (too_many_markers, ("anthropic.messages",)),
    "marker on a live block": (live_marked_block, ("anthropic.messages",)),
}
