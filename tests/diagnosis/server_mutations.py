"""What servers report: healthy usage for a session, and one loss of every kind that is not the client's doing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from .healthy_sessions import Session, identifier, make, paragraph, sentence
from .mutations import Expected, says

HEAD = 1_300  # tokens of the static head, so that no prompt is below a provider's minimum


def sizes(session: Session, head: int = HEAD) -> list[int]:
    """Prompt tokens of each request: a fixed head and a quarter of the characters behind it."""
    first = len(str(session.bodies[0]))
    return [head + (len(str(body)) - first) // 4 + 40 for body in session.bodies]


def outputs(session: Session) -> list[int]:
    """Generated tokens of each reply."""
    return [20 + len(str(reply)) // 8 for reply in session.replies]


def reported(session: Session, cached: list[int], total: list[int]) -> Session:
    """The session with usage in its API's form."""
    replies: list[Any] = copy.deepcopy(session.replies)
    generated = outputs(session)
    for number, reply in enumerate(replies):
        read, prompt, made = cached[number], total[number], generated[number]
        if session.api == "anthropic.messages":
            reply["usage"] = {
                "input_tokens": 4,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": prompt - read - 4,
                "output_tokens": made,
            }
        elif session.api == "openai.responses":
            details = {"cached_tokens": read}
            reply["usage"] = {"input_tokens": prompt, "input_tokens_details": details, "output_tokens": made}
        elif session.api == "openai.chat":
            details = {"cached_tokens": read}
            reply["usage"] = {
                "prompt_tokens": prompt,
                "prompt_tokens_details": details,
                "completion_tokens": made,
            }
        if session.api == "llama.completion" or "llama-server" in (session.hint or ""):
            reply["timings"] = {
                "cache_n": read,
                "prompt_n": prompt - read,
                "prompt_ms": 3.0 * (prompt - read),
                "predicted_n": made,
            }
    return Session(session.api, session.bodies, replies, session.times, session.hint)


def healthy_reads(session: Session, total: list[int]) -> list[int]:
    """Cached tokens of each request on a server that keeps everything, by the rules of its kind."""
    generated = outputs(session)
    reads = [0]
    for number in range(1, len(total)):
        earlier = total[number - 1]
        if session.api == "anthropic.messages":
            reads.append(earlier - 4)
        elif session.api == "llama.completion" or "llama-server" in (session.hint or ""):
            reads.append(earlier + generated[number - 1] - 1)
        elif "vllm" in (session.hint or ""):
            reads.append(earlier // 16 * 16)
        else:
            reads.append(earlier // 128 * 128 if earlier >= 1024 else 0)
    # What the server takes for the same text again can't be more than the prompt.
    return [min(read, prompt - 1) for read, prompt in zip(reads, total, strict=True)]


def observed(session: Session) -> Session:
    """The session with the usage that a healthy server reports."""
    total = grown(session)
    return reported(session, healthy_reads(session, total), total)


def grown(session: Session, head: int = HEAD) -> list[int]:
    """Prompt tokens that leave room for the reply between two requests."""
    total, generated = sizes(session, head), outputs(session)
    extra = 0
    made = []
    for number, size in enumerate(total):
        made.append(size + extra)
        extra += generated[number]
    return made


def lost(session: Session, turn: int, read: int) -> Session:
    """Healthy usage except that the request of ``turn`` reads only ``read`` tokens."""
    total = grown(session)
    reads = healthy_reads(session, total)
    reads[turn] = read
    return reported(session, reads, total)


def later(session: Session, turn: int, seconds: float) -> Session:
    """The session with a pause of ``seconds`` before ``turn``."""
    gap = session.times[turn] - session.times[turn - 1]
    times = [at + (seconds - gap if number >= turn else 0) for number, at in enumerate(session.times)]
    return Session(session.api, session.bodies, session.replies, times, session.hint)


def hinted(session: Session, hint: str) -> Session:
    return Session(session.api, session.bodies, session.replies, session.times, hint)


Case = tuple[list[Session], Expected]


def expired(rng: random.Random, seed: int) -> Case:
    session = make(seed, "anthropic.messages")
    turn = rng.randrange(1, len(session.bodies))
    life = rng.choice((300, 3600))
    if life == 3600:
        for body in session.bodies:
            for part in (body["system"][0], body["messages"][-1]["content"][-1]):
                part["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    session = later(session, turn, life + rng.randint(2, 4000))
    return [lost(session, turn, 0)], says(turn, None, "ttl_expired", verdict="server")


def expired_automatic(rng: random.Random, seed: int) -> Case:
    session = make(seed, rng.choice(("openai.chat", "openai.responses")))
    turn = rng.randrange(1, len(session.bodies))
    session = later(session, turn, rng.randint(900, 9000))
    return [lost(session, turn, 0)], says(turn, None, "ttl_expired", verdict="server")


def evicted(rng: random.Random, seed: int) -> Case:
    api = rng.choice(("openai.chat", "openai.responses", "anthropic.messages"))
    session = make(seed, api)
    if api == "openai.chat":
        session = hinted(session, rng.choice(("", "vllm http://127.0.0.1:8000/v1/chat/completions")))
    turn = rng.randrange(1, len(session.bodies))
    return [lost(session, turn, rng.choice((0, 0, 128)))], says(
        turn, None, "server_evicted", verdict="server"
    )


def slot_lost(rng: random.Random, seed: int) -> Case:
    """Another conversation runs on the only slot, between two turns of this one."""
    hint = "llama-server http://127.0.0.1:8080 -np 1"
    api = rng.choice(("openai.chat", "llama.completion"))
    session = hinted(make(seed, api, reasoning=False), hint)
    turn = rng.randrange(1, len(session.bodies))
    other = hinted(make(seed + 7_000, api, turns=1), hint)
    other = reported(other, [3], [900])
    return [lost(session, turn, 3), other], says(turn, None, "slot_taken", verdict="server")


def reworded_on_a_window(rng: random.Random, seed: int) -> Case:
    """The last user line is said otherwise; the server can't go back and reads everything again."""
    session = make(seed, "llama.completion", turns=rng.randint(4, 7))
    turn = rng.randrange(2, len(session.bodies))
    bodies, replies, times = session.bodies[:turn], session.replies[:turn], session.times[: turn + 1]
    last = bodies[-1]["prompt"]
    opening = "<|im_start|>assistant\n"
    old, new = sentence(rng, 12, 20), rng.choice(("Please", "Now", "Also")).upper()
    asked = f"{last}{replies[-1]['content']}<|im_end|>\n<|im_start|>user\n"
    first, second = f"{asked}{old}<|im_end|>\n{opening}", f"{asked}{old[:-6]}{new}<|im_end|>\n{opening}"
    for prompt in (first, second):
        bodies = [*bodies, {**bodies[-1], "prompt": prompt}]
        replies = [*replies, {"content": sentence(rng), "stop": True}]
    made = Session(
        "llama.completion", bodies, replies, [*times, times[-1] + 9], "llama-server -np 1 (sliding window)"
    )
    at = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    broken = len(bodies) - 1
    total = grown(made)
    total[broken] = total[broken - 1]
    reads = healthy_reads(made, total)
    reads[broken] = 0
    return [reported(made, reads, total)], says(broken, f"prompt@{at}", "sliding_window", verdict="server")


def encoded_otherwise(rng: random.Random, seed: int) -> Case:
    session = make(seed, "llama.completion")
    turn = rng.randrange(1, len(session.bodies))
    total, generated = grown(session), outputs(session)
    read = total[turn - 1] + rng.randrange(0, generated[turn - 1] - 8)
    return [lost(session, turn, read)], says(turn, None, "retokenised", verdict="server")


def too_short(rng: random.Random, seed: int) -> Case:
    """Every prompt is below the provider's minimum: nothing is ever read."""
    api = rng.choice(("openai.chat", "anthropic.messages"))
    session = make(seed, api, turns=2)
    if api == "anthropic.messages":
        for body in session.bodies:
            body["model"] = "claude-haiku-4-5"
    total = [600, 900]
    session = reported(session, [0, 0], total)
    if api == "anthropic.messages":
        for reply, prompt in zip(session.replies, total, strict=True):
            assert reply is not None
            reply["usage"].update(input_tokens=prompt, cache_creation_input_tokens=0)
    return [session], says(1, None, "below_minimum", verdict="server")


def many_blocks(rng: random.Random, seed: int) -> Case:
    """One turn adds more blocks than the provider looks back."""
    session = make(seed, "anthropic.messages", turns=2)
    count = rng.randint(11, 20)
    ids = [identifier(rng, "toolu_") for _ in range(count)]
    calls = [
        {"type": "tool_use", "id": ident, "name": "read_file", "input": {"path": ident[-4:]}} for ident in ids
    ]
    results: list[dict[str, Any]] = [
        {
            "type": "tool_result",
            "tool_use_id": ident,
            "content": [{"type": "text", "text": paragraph(rng, 1, 2)}],
        }
        for ident in ids
    ]
    results[-1]["cache_control"] = {"type": "ephemeral"}
    first = session.bodies[0]
    second = copy.deepcopy(first)
    for part in second["messages"][-1]["content"]:
        part.pop("cache_control", None)
    second["messages"] += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    replies = [{"role": "assistant", "content": calls, "stop_reason": "tool_use"}, session.replies[1]]
    made = Session("anthropic.messages", [first, second], replies, session.times)
    read = HEAD // 2
    where = f"messages[2].content[{count - 1}].cache_control"
    return [lost(made, 1, read)], says(1, where, "breakpoint_lookback", verdict="server")


SERVER: dict[str, Callable[[random.Random, int], Case]] = {
    "life of an entry": expired,
    "life of an automatic entry": expired_automatic,
    "evicted": evicted,
    "slot taken": slot_lost,
    "sliding window": reworded_on_a_window,
    "encoded otherwise": encoded_otherwise,
    "below the minimum": too_short,
    "too many blocks": many_blocks,
}
