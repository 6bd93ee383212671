"""The small judges that diagnosis is made of, each against values written by hand or a plain way to say the same."""

from __future__ import annotations

from itertools import takewhile

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agentctx.common_ends import common_start
from agentctx.diagnosis.align import Move, movement
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.findings import Loss
from agentctx.diagnosis.likeness import likeness
from agentctx.diagnosis.prompts import meeting, same_words
from agentctx.diagnosis.report import loss_json, price_of
from agentctx.diagnosis.texts import (
    common_end,
    fragment_at,
    in_labelled_line,
    json_difference,
    quotes,
    retells,
    same_but_whitespace,
    shared_share,
)
from agentctx.diagnosis.times import moves_with
from agentctx.diagnosis.views import key_of

few = st.text("ab", max_size=6)
long = st.tuples(few, st.integers(0, 400), few).map(lambda piece: piece[0] + "x" * piece[1] + piece[2])


@given(long, long)
@settings(max_examples=200, deadline=None)
def test_what_two_texts_share_at_their_ends(left: str, right: str) -> None:
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    end = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left[::-1], right[::-1], strict=False))
    )
    assert common_start(left, right) == start
    assert common_end(left, right) == end
    assert common_end(left, right, 3) == min(3, end)
    share = shared_share(left, right)
    assert (share == 1.0) == (left == right)
    longer = max(len(left), len(right), 1)
    rest = min(end, min(len(left), len(right)) - start)
    assert share == pytest.approx((start + rest) / longer if left or right else 1.0)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("a b", "a  b\n", True),
        ("a b", "ab", True),
        ("a b", "a b", False),
        ("a b", "a c", False),
        ("", " ", True),
    ],
)
def test_white_space_alone(left: str, right: str, same: bool) -> None:
    assert same_but_whitespace(left, right) is same


@pytest.mark.parametrize(
    ("left", "right", "how"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}', "key_order"),
        ('{"a":1}', '{"a": 1}', "serialisation"),
        ('{"a":1}', '{"a":1.0}', "serialisation"),
        ('"{\\"a\\":1}"', '{"a":1}', "serialisation"),
        ('{"a":1}', '{"a":2}', None),
        ('{"a":1}', '{"a":true}', None),
        ('{"a":[1,2]}', '{"a":[2,1]}', None),
        ('{"a":1}', "a", None),
        ("1", "1.0", None),
        ("{" + " " * 400 + "}", "{}", None),
    ],
)
def test_json_written_another_way(left: str, right: str, how: str | None) -> None:
    assert json_difference(left, right) == how
    assert json_difference(right, left) == how


@pytest.mark.parametrize(
    ("old", "new", "kind", "was", "now"),
    [
        ("Time: 10:05.", "Time: 10:06.", "time", "10:05", "10:06"),
        ("Date: 2026-01-02", "Date: 2026-01-03", "time", "2026-01-02", "2026-01-03"),
        ("It is Monday.", "It is Friday.", "time", "Monday", "Friday"),
        ("seen 5 minutes ago", "seen 6 minutes ago", "time", "5 minutes ago", "6 minutes ago"),
        ("step 3 of 9", "step 4 of 9", "number", "step 3", "step 4"),
        ("used 12 tokens", "used 13 tokens", "number", "12 tokens", "13 tokens"),
        ("room 12", "room 13", "number", "12", "13"),
        (
            "run 0f8fad5b-d9cb-469f-a165-70867728950e",
            "run 7c9e6679-7425-40de-944b-e07fc1f90ae7",
            "random",
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        ),
        (
            "run 00000000-0000-4000-8000-000000000001",
            "run 00000000-0000-4000-8000-000000000002",
            "random",
            "00000000-0000-4000-8000-000000000001",
            "00000000-0000-4000-8000-000000000002",
        ),
        ("run 9f86d081", "run 3c4f2a9b", "random", "9f86d081", "3c4f2a9b"),
        ("seed: 482917365", "seed: 105739284", "random", "482917365", "105739284"),
        ("total 482917365", "total 105739284", "number", "482917365", "105739284"),
        ("id: 10000007", "id: 10000008", "number", "10000007", "10000008"),
        ("the cat", "the dog", "other", "cat", "dog"),
        ("parseLedger2", "parseJournal7", "other", "parseLedger2", "parseJournal7"),
    ],
)
def test_what_kind_of_thing_changed(old: str, new: str, kind: str, was: str, now: str) -> None:
    fragment = fragment_at(old, new, common_start(old, new))
    assert (fragment.kind, fragment.old, fragment.new) == (kind, was, now)


def test_a_time_of_day_is_a_clock_and_a_date_is_none() -> None:
    assert fragment_at("at 10:05", "at 10:06", 7).clock
    assert not fragment_at("on 2026-01-02", "on 2026-01-03", 12).clock


@pytest.mark.parametrize(
    ("old", "new", "elapsed", "moves"),
    [
        ("10:05", "10:06", 60, True),
        ("10:05", "10:06", 3600, False),
        ("10:06", "10:05", 60, False),
        ("23:59", "00:01", 120, True),
        ("11:58 am", "12:03 pm", 300, True),
        ("12:58 pm", "1:03 pm", 300, True),
        ("1:03 pm", "1:03 am", 12 * 3600, True),
        ("10:05:00", "10:05:20", 20, True),
        ("10:05:00", "10:05:20", 0, False),
        ("10:05:00", "10:05:05", 0, True),
        ("2026-01-02T10:05:00Z", "2026-01-03T10:05:00Z", 86_400, True),
        ("2026-01-02T10:05:00Z", "2026-01-03T10:05:00Z", 10, False),
        ("2026-01-02_10:05:00", "2026-01-02_10:06:00", 60, True),
        ("2026-01-02T10:05Z", "2026-01-02T10:06Z", 30, True),
        ("2026-01-02T10:05:00Z", "2026-01-02T10:06:00Z", 30, False),
        ("10:05", "10:06", 30, True),
        ("10:05:00", "10:06:00", 30, False),
        ("1767348300", "1767348360", 60, True),
        ("1767348300000", "1767348360000", 60, True),
        ("1767348300", "1767358300", 60, False),
        ("5 min", "6 min", 60, True),
        ("2 hours", "3 hours", 3600, True),
        ("2 hours", "9 hours", 60, False),
        ("1 day", "2 days", 86_400, True),
        ("1,5 sec", "61,5 sec", 60, True),
    ],
)
def test_a_written_time_moves_with_the_clock_or_not(old: str, new: str, elapsed: float, moves: bool) -> None:
    assert moves_with(old, new, elapsed, assume=not moves) is moves


@pytest.mark.parametrize("assume", [True, False])
def test_without_two_times_to_compare_nothing_is_claimed(assume: bool) -> None:
    assert moves_with("10:05", "10:06", None, assume=assume) is assume
    assert moves_with("soon", "10:06", 60, assume=assume) is assume
    assert moves_with("2026-01-02", "2026-01-03", 60, assume=assume) is assume, "a date tells no time"


def test_a_labelled_line() -> None:
    rest = "\nBe brief.\n"
    for old, new, inside in (
        (f"You help.\nBranch: main{rest}", f"You help.\nBranch: fix{rest}", True),
        (f"cwd=/home/a{rest}", f"cwd=/home/b{rest}", True),
        (f"You help a lot{rest}", f"You help a bit{rest}", False),
        (f"Rules. Mind these: one{rest}", f"Rules. Mind these: two{rest}", False),
        (f'{{"branch": "main"}}{rest}', f'{{"branch": "fix"}}{rest}', False),
        (f"Branch: main\ndirty{rest}", f"Branch: fix\nclean{rest}", False),
        (f"Branch: {'m' * 232}{rest}", f"Branch: {'n' * 232}{rest}", True),
        (f"Branch: {'m' * 233}{rest}", f"Branch: {'n' * 233}{rest}", False),
        (f"Branch: {'m' * 300}{rest}", f"Branch: {'n' * 300}{rest}", False),
    ):
        assert in_labelled_line(old, new, common_start(old, new)) is inside, old


WORDS = [
    "loaves",
    "rolls",
    "complaints",
    "ovens",
    "flour",
    "monday",
    "saturday",
    "branch",
    "north",
    "ledger",
    "totals",
    "receipt",
    "bakery",
    "crew",
]


def test_retelling_and_quoting() -> None:
    said = " ".join(WORDS)
    assert retells(" ".join(reversed(WORDS)), said)
    assert not retells(" ".join(WORDS[:5]), said), "too short to tell"
    assert not retells(" ".join(f"{word}ish" for word in WORDS), said)
    assert quotes(said, f"before {said} after")
    assert not quotes(" ".join(reversed(WORDS)), said)
    assert not quotes("loaves", said)
    source = prose(1, 100)
    assert quotes(source[:600] + prose(2, 100)[:300], source)
    assert not quotes(source[:300] + prose(2, 100)[:600], source), "a third of it is quoted"


# -- excerpts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at", "shown"),
    [
        ("abcdefghij", 5, "…defg…"),
        ("abcdefghij", 0, "ab…"),
        ("abcdefghij", 9, "…hij"),
        ("abcd", 2, "abcd"),
        ("ab\n\tcd", 2, "ab⏎⇥…"),
        ("a  b", 2, "a··b"),
        ("ab\u200b\u00ad", 2, "ab[ZWSP][SHY]"),
        ("ab\x07c", 2, "ab[U+0007]c"),
        ("", 0, ""),
    ],
)
def test_an_excerpt_is_a_window_with_its_cut_ends_marked(text: str, at: int, shown: str) -> None:
    assert excerpt(text, at, before=2, after=2) == shown


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_an_excerpt_shows_nothing_of_a_secret_wherever_it_is_cut(at: int) -> None:
    secret = "sk-abcdefghijklmnop"
    text = f"before it {secret} and behind it, password=hunter2hunter2 too"
    shown = excerpt(text, at, before=4, after=9)
    for start in range(len(secret) - 4):
        assert secret[start : start + 5] not in shown
    assert "hunter" not in shown
    low, high = max(0, at - 4), at + 9
    if low >= 10 and high <= 10 + len(secret):
        assert shown == "…[redacted]…"
    if high <= 10:
        assert shown.strip("…·") == text[low:high].strip()


# -- whether a prompt goes on from another -------------------------------------------------------------------------------


def prose(seed: int, words: int) -> str:
    return " ".join(f"{WORDS[(seed * 7 + n * n) % len(WORDS)]}{seed}{n}" for n in range(words))


def test_likeness_tells_the_same_conversation_from_another() -> None:
    old = prose(1, 400)
    assert likeness(old, old + prose(2, 50)) > 0.98
    assert likeness(old, old[:-200]) > 0.9, "the newest was cut off"
    trimmed = old[:600] + old[1800:] + prose(3, 20)
    assert 0.3 < likeness(old, trimmed) < likeness(old, old), "an old part was dropped"
    assert likeness(old, prose(4, 400)) == 0.0
    assert likeness(old, "Summarise this:\n" + old) == 0.0, "it is quoted"
    other, size = prose(6, 500), len(old)
    kept = [
        other[: size // 10] + old[size // 10 : end] + other[end:size]
        for end in (size * 56 // 100, size * 9 // 10)
    ]
    assert likeness(old, kept[0]) == 0.0, "another head, and less than half of the rest in its place"
    assert likeness(old, kept[1]) > 0.5
    assert likeness(old, old[:500] + prose(5, 300)) == 0.0, "only the head is shared"


def test_likeness_of_token_ids_is_that_of_their_order() -> None:
    ids = [n * n % 50_021 for n in range(2000)]
    assert likeness(ids, [*ids, 1, 2, 3]) == likeness(
        "".join(map(chr, ids)), "".join(map(chr, [*ids, 1, 2, 3]))
    )
    assert likeness(ids, [n + 1 for n in ids]) == 0.0
    assert likeness(ids, "text") == 0.0
    assert likeness([-1, 2], [-1, 2]) == 0.0, "no token ids"


def test_meeting_is_where_both_texts_go_on_alike() -> None:
    tail = prose(6, 60)
    assert meeting("gone words here " + tail, tail) == (16, 0)
    assert meeting(tail, "put words here " + tail) == (0, 15)
    assert meeting("one thing " + tail, "another thing " + tail)[0] < 10, (
        "the blank and the word before agree too"
    )
    assert meeting(tail, prose(7, 60)) == (-1, -1)
    assert meeting("short", "short") == (-1, -1), "too little to be sure"
    markup = "<|im_end|>\n<|im_start|>user\n" * 8
    assert meeting(markup, "x" + markup) == (-1, -1), "it stands between any two messages"


def test_same_words() -> None:
    assert same_words("a b c", "abc d")
    assert same_words("abc d", "a b c")
    assert not same_words("", "abc")
    assert not same_words("abd", "abc")


# -- lists of messages ----------------------------------------------------------------------------------------------------


def say(text: str, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": text}


OLD = [say(f"{text}: {prose(number, 12)}", role) for number, (text, role) in enumerate(
    [("first", "user"), ("second", "assistant"), ("third", "user"), ("fourth", "assistant"), ("fifth", "user")]
)]  # fmt: skip
NEW = say("something else that nobody said before in this place")


@pytest.mark.parametrize(
    ("after", "at", "move"),
    [
        ([*OLD[:1], NEW, *OLD[1:]], 1, Move("inserted", 1, come=1)),
        ([*OLD[:1], NEW, NEW, *OLD[1:]], 1, Move("inserted", 1, come=2)),
        ([*OLD[:1], *OLD[3:]], 1, Move("removed", 1, gone=2)),
        ([*OLD[:2], NEW, *OLD[3:]], 2, Move("edited", 2, 1, 1)),
        ([*OLD[:1], NEW, *OLD[2:]], 1, Move("replaced", 1, 1, 1)),
        ([*OLD[:1], NEW, *OLD[3:]], 1, Move("replaced", 1, 2, 1)),
        ([*OLD[:1], NEW, OLD[2]], 1, Move("replaced", 1, 1, 1)),
        (OLD[:3], 3, Move("branch", 3, gone=2)),
        ([*OLD[:2], NEW], 2, Move("branch", 2, 3, 1)),
        # The newest message of both requests, in other words: nothing that stood behind it is sent again, so it is as
        # good as another question. Volatile data belongs there, and a batch asks its questions there.
        ([*OLD[:4], say(str(OLD[4]["content"]) + " or not?")], 4, Move("branch", 4, 1, 1)),
        (
            [*OLD[:1], say("Summary of the conversation so far: nothing happened."), NEW],
            1,
            Move("replaced", 1, 4, 1),
        ),
    ],
)
def test_how_one_list_goes_on_from_the_other(after: list[dict[str, object]], at: int, move: Move) -> None:
    keys = [key_of(item) for item in OLD], [key_of(item) for item in after]
    assert movement(OLD, keys[0], after, keys[1], at, sent=5) == move


def test_a_word_that_anybody_says_is_no_common_history() -> None:
    before, after = [OLD[0], OLD[1], say("ok")], [OLD[0], NEW, say("ok")]
    keys = [key_of(item) for item in before], [key_of(item) for item in after]
    assert movement(before, keys[0], after, keys[1], 1, sent=3).kind == "branch"


# -- prices ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (Loss(lost=None, again=None), ""),
        (Loss(lost=0, again=0), ""),
        (Loss(lost=1200, again=1200, exact=True), "1,200 tokens paid again"),
        (
            Loss(lost=1500, again=1200, exact=True),
            "1,200 tokens paid again of 1,500 that could have been reused",
        ),
        (Loss(lost=None, again=1200, exact=True), "1,200 tokens paid again"),
        (Loss(lost=1200, again=1200), "about 1,200 tokens paid again (estimated)"),
        (
            Loss(lost=1200, again=1200, exact=True, seconds=1234.56, usd=0.01234),
            "1,200 tokens paid again, 1,234.6 s, $0.0123",
        ),
    ],
)
def test_a_price_says_what_is_known(loss: Loss, text: str) -> None:
    assert price_of(loss) == text


def test_a_price_as_json() -> None:
    loss = Loss(lost=3, again=2, exact=True, seconds=1.23456, usd=0.123456789)
    assert loss_json(loss) == {
        "lost_tokens": 3,
        "paid_again_tokens": 2,
        "exact": True,
        "seconds": 1.235,
        "usd": 0.123457,
    }
    unknown = loss_json(Loss())
    assert (unknown["seconds"], unknown["usd"]) == (None, None)
