"""Live and random texts in many notations, in front of the history of random sessions: rules, not examples."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest

from agentctx.diagnosis import Api, Exchange, diagnose_log

from .healthy_sessions import WIRES, Session, make
from .mutations import get, lcp, put, system_keys, tool_root

Piece = Callable[[datetime, int, random.Random], str]
VOLATILE = frozenset({"volatile_text"})
RANDOM = frozenset({"random_value"})
EITHER = VOLATILE | RANDOM

_HEX = "0123456789abcdef"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NANO = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_GERMAN = ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober")


def _drawn(rng: random.Random, alphabet: str, length: int) -> str:
    """Random characters with at least one digit and one letter, as nearly all such values have."""
    while True:
        made = "".join(rng.choice(alphabet) for _ in range(length))
        if any(c.isdigit() for c in made) and any(c.isalpha() for c in made):
            return made


def _uuid(rng: random.Random) -> str:
    made = _drawn(rng, _HEX, 32)
    return f"{made[:8]}-{made[8:12]}-4{made[13:16]}-a{made[17:20]}-{made[20:]}"


def _ulid(now: datetime, rng: random.Random) -> str:
    stamp, head = int(now.timestamp() * 1000), ""
    for _ in range(10):
        stamp, rest = divmod(stamp, 32)
        head = _CROCKFORD[rest] + head
    return head + _drawn(rng, _CROCKFORD, 16)


PIECES: dict[str, tuple[Piece, frozenset[str]]] = {
    "RFC 2822": (lambda now, n, rng: f"Date: {format_datetime(now)}", VOLATILE),
    "HTTP date": (lambda now, n, rng: f"Last sync {now:%a, %d %b %Y %H:%M:%S} GMT", VOLATILE),
    "ISO with offset": (
        lambda now, n, rng: f"now={now.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()}",
        VOLATILE,
    ),
    "ISO with microseconds": (lambda now, n, rng: f"<clock>{now:%Y-%m-%dT%H:%M:%S.%f}Z</clock>", VOLATILE),
    "American": (lambda now, n, rng: f"Current time: {now:%m/%d/%Y %I:%M %p}", VOLATILE),
    "German": (
        lambda now, n, rng: f"Heute ist der {now.day}. {_GERMAN[now.month - 1]} {now.year}, {now:%H.%M} Uhr.",
        VOLATILE,
    ),
    "Japanese": (lambda now, n, rng: f"現在時刻は{now.year}年{now.month}月{now.day}日{now:%H時%M分}です。", VOLATILE),
    "long form": (lambda now, n, rng: f"It is {now:%A, %B %d, %Y} at {now:%I:%M:%S %p} UTC.", VOLATILE),
    "log stamp": (lambda now, n, rng: f"[{now:%Y%m%d-%H%M%S}] session state follows", VOLATILE),
    "epoch seconds": (lambda now, n, rng: f"ts: {int(now.timestamp())}", VOLATILE),
    "epoch milliseconds": (lambda now, n, rng: f'{{"now_ms": {int(now.timestamp() * 1000)}}}', VOLATILE),
    "epoch float": (lambda now, n, rng: f"started {now.timestamp():.3f}", VOLATILE),
    "time only": (lambda now, n, rng: f"({now:%H:%M})", VOLATILE),
    "uptime": (lambda now, n, rng: f"Uptime: 3 days, {4 + n} hours {7 * n % 60} minutes", VOLATILE),
    "in words": (
        lambda now, n, rng: "It is " + ("ten past nine", "half past nine", "ten to ten", "noon", "one", "two")[n % 6],
        VOLATILE,
    ),
    "ago": (lambda now, n, rng: f"Last commit {3 + n} minutes ago by the release bot.", VOLATILE),
    "token budget": (lambda now, n, rng: f"Tokens used: {11_204 + 731 * n:,} of 200,000", VOLATILE),
    "percentage": (lambda now, n, rng: f"Context {12 + 3 * n}% full", VOLATILE),
    "load": (lambda now, n, rng: f"load average: {0.4 + 0.13 * n:.2f}", VOLATILE),
    "temperature": (lambda now, n, rng: f"Outside it is {21 + n}.5 °C and dry.", VOLATILE),
    "turn counter": (lambda now, n, rng: f"This is step {n + 1} of at most 40.", VOLATILE),
    "remaining": (lambda now, n, rng: f"You have {40 - n} steps left.", VOLATILE),
    "working directory": (lambda now, n, rng: f"cwd: /home/dev/{('app', 'lib', 'web', 'doc')[n % 4]}", VOLATILE),
    "git status": (lambda now, n, rng: f"Changes: {n + 1} modified, {n} untracked", VOLATILE),
    "branch": (lambda now, n, rng: f"On branch {('main', 'fix/rounding', 'main', 'try')[n % 4]}", VOLATILE),
    "port": (lambda now, n, rng: f"The preview runs on http://127.0.0.1:{rng.randint(32_768, 60_999)}/", EITHER),
    "process": (lambda now, n, rng: f"Shell pid {rng.randint(1_000, 99_999)}", EITHER),
    "commit": (lambda now, n, rng: f"HEAD {_drawn(rng, _HEX, 12)}", EITHER),
    "temporary folder": (lambda now, n, rng: f"Scratch space: /tmp/tmp{_drawn(rng, _NANO[:36].lower(), 8)}", EITHER),
    "UUID": (lambda now, n, rng: f"Request {_uuid(rng)}", RANDOM),
    "UUID without dashes": (lambda now, n, rng: f"trace={_uuid(rng).replace('-', '')}", RANDOM),
    "ULID": (lambda now, n, rng: f"id {_ulid(now, rng)}", RANDOM),
    "nanoid": (lambda now, n, rng: f"sess_{_drawn(rng, _NANO, 21)}", RANDOM),
    "nonce": (lambda now, n, rng: f"nonce: {_drawn(rng, _NANO[:62], 16)}", RANDOM),
    "hex tag": (lambda now, n, rng: f"billing tag: {_drawn(rng, _HEX, 6)};", RANDOM),
    "base64": (lambda now, n, rng: f"<ctx v='{_drawn(rng, _NANO[:62] + '+/', 22)}=='>", RANDOM),
    "numeric id": (lambda now, n, rng: f"request_id={rng.randint(10**15, 9 * 10**15)}", RANDOM),
    "trace parent": (
        lambda now, n, rng: f"traceparent: 00-{_drawn(rng, _HEX, 32)}-{_drawn(rng, _HEX, 16)}-01",
        RANDOM,
    ),
    "seed": (lambda now, n, rng: f"Random seed = {rng.randint(10**6, 10**9)}", RANDOM),
}  # fmt: skip


def placed(session: Session, keys: list[Any], piece: Callable[[int], str], where: str) -> Session:
    """Every request with its own version of a line in a text that had been constant."""
    bodies = copy.deepcopy(session.bodies)
    for number, body in enumerate(bodies):
        text = get(body, keys)
        line = piece(number)
        middle = text.find(" ", len(text) // 2)
        put(
            body,
            keys,
            {
                "head": f"{line}\n{text}",
                "middle": f"{text[:middle]}\n{line}\n{text[middle + 1 :]}",
                "tail": f"{text}\n{line}",
            }[where],
        )
    return Session(session.api, bodies, session.replies, session.times, session.hint)


def judged(session: Session, path: str, keys: list[Any], causes: frozenset[str]) -> str:
    """What is wrong with the diagnosis of a text that changes in every request; empty when nothing is."""
    first, second = (get(body, keys) for body in session.bodies[:2])
    diagnosis = diagnose_log(session.exchanges())
    said = [(f.cause, f.turn, f.place, f.recurs, f.count) for f in diagnosis.findings]
    if len(said) != 1:
        return f"{said}"
    cause, turn, place, recurs, count = said[0]
    if (turn, place, count) != (1, f"{path}@{lcp(first, second)}", len(session.bodies) - 1):
        return f"{said}, expected {path}@{lcp(first, second)}"
    if not recurs:
        return "doesn't recur"
    return "" if cause in causes else f"{cause}: {diagnosis.findings[0].was!r} {diagnosis.findings[0].now!r}"


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("where", ["head", "middle", "tail"])
def test_in_the_system_prompt(kind: str, where: str) -> None:
    piece, causes = PIECES[kind]
    for number, api in enumerate(("openai.chat", "openai.responses", "anthropic.messages")):
        wire: Api = next(name for name in WIRES if name == api)
        session = make(400 + number, wire, replies=number != 1, turns=5)
        rng = random.Random(f"{kind} {where} {api}")
        times = [datetime.fromtimestamp(at, tz=UTC) for at in session.times]
        lines = [piece(now, index, rng) for index, now in enumerate(times)]
        if any(a == b for a, b in itertools.pairwise(lines)):
            # A clock without seconds: requests a minute apart.
            session.times = [at + 97 * index for index, at in enumerate(session.times)]
            times = [datetime.fromtimestamp(at, tz=UTC) for at in session.times]
            lines = [piece(now, index, rng) for index, now in enumerate(times)]
        path, keys = system_keys(session)
        live = placed(session, keys, lines.__getitem__, where)
        assert not judged(live, path, keys, causes), (api, lines[:2])


@pytest.mark.parametrize("kind", ["RFC 2822", "epoch seconds", "token budget", "UUID", "nonce", "numeric id"])
def test_in_the_description_of_a_tool(kind: str) -> None:
    piece, causes = PIECES[kind]
    for number, api in enumerate(("openai.chat", "openai.responses", "anthropic.messages")):
        wire: Api = next(name for name in WIRES if name == api)
        session = make(500 + number, wire, turns=4)
        rng = random.Random(f"{kind} {api}")
        root, keys, _ = tool_root(session, 2)
        times = [datetime.fromtimestamp(at, tz=UTC) for at in session.times]
        live = placed(session, [*keys, "description"], lambda n: piece(times[n], n, rng), "tail")  # noqa: B023
        assert not judged(live, f"{root}.description", [*keys, "description"], causes), api


@pytest.mark.parametrize("kind", ["RFC 2822", "log stamp", "epoch seconds", "UUID", "nonce", "hex tag"])
def test_in_the_first_question(kind: str) -> None:
    """The opening message is rendered anew for every request."""
    piece, causes = PIECES[kind]
    session = make(612, "openai.chat", turns=5, replies=False)
    rng = random.Random(kind)
    times = [datetime.fromtimestamp(at, tz=UTC) for at in session.times]
    keys = ["messages", 1, "content"]
    live = placed(session, keys, lambda n: piece(times[n], n, rng), "tail")
    assert not judged(live, "messages[1].content", keys, causes)


@pytest.mark.parametrize("kind", ["RFC 2822", "time only", "UUID", "token budget"])
def test_at_the_head_of_a_finished_prompt(kind: str) -> None:
    piece, causes = PIECES[kind]
    session = make(77, "llama.completion", turns=5)
    session.times = [at + 97 * index for index, at in enumerate(session.times)]
    rng = random.Random(kind)
    times = [datetime.fromtimestamp(at, tz=UTC) for at in session.times]
    lines = [piece(now, index, rng) for index, now in enumerate(times)]
    for body, line in zip(session.bodies, lines, strict=True):
        head, sep, rest = body["prompt"].partition("\n")
        body["prompt"] = f"{head}{sep}{line}\n{rest}"
    assert not judged(session, "prompt", ["prompt"], causes)


def test_the_same_kinds_in_new_messages_are_clean() -> None:
    """What is live belongs behind the history: the newest message may say anything."""
    session = make(31, "openai.chat", turns=8)
    rng = random.Random(5)
    pieces = list(PIECES.values())
    seen = len(session.bodies[0]["messages"])
    stamped: dict[int, str] = {}
    for number, body in enumerate(session.bodies):
        now = datetime.fromtimestamp(session.times[number], tz=UTC)
        for index in range(seen if number else 1, len(body["messages"])):
            if body["messages"][index]["role"] in ("user", "tool"):
                stamped[index] = "\n".join(piece(now, number, rng) for piece, _ in rng.sample(pieces, 6))
        seen = len(body["messages"])
        for index, text in stamped.items():
            message = body["messages"][index]
            body["messages"][index] = {**message, "content": message["content"] + text}
    log = [
        Exchange(session.api, body, reply, at)
        for body, reply, at in zip(session.bodies, session.replies, session.times, strict=True)
    ]
    diagnosis = diagnose_log(log)
    assert diagnosis.clean
    assert not diagnosis.suspicions
