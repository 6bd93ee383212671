"""What each policy keeps, what it drops, and what it says about it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agentctx.errors import HistoryError, UsageError
from agentctx.history import History, check_sequence
from agentctx.messages import Message, Tool, ToolCall
from agentctx.policies import (
    AppendOnly,
    BreakEven,
    DirectoryStore,
    OffloadResults,
    Policy,
    RollingSummary,
    SummarizeAtBudget,
    SummaryTask,
    Turn,
    describe_policies,
    parse_policy,
)


def words(text: str) -> int:
    return len(text.split())


def text_of(tokens: int, name: str) -> str:
    return " ".join(f"{name}{i}" for i in range(tokens))


def step(history: History, number: int, tokens: int = 100) -> None:
    """One turn's answer with two parallel calls and their results."""
    first = history.tool_call("read", f'{{"n":{number}}}', id=f"a{number}")
    second = history.tool_call("run", "{}", id=f"b{number}")
    history.tool_result(first, text_of(tokens, f"r{number}-"))
    history.tool_result(second, "ok")


def replay(policy: Policy, steps: int, tokens: int = 100) -> tuple[History, list[Turn]]:
    history = History("system prompt", [Tool.of("read"), Tool.of("run")], ["pinned"])
    history.user("the task")
    turns = [policy.turn(history, words)]
    for number in range(steps):
        step(history, number, tokens)
        turns.append(policy.turn(history, words))
    return history, turns


def answered(turn: Turn) -> list[str | None]:
    return [message.tool_call_id for message in turn.request.messages if message.role == "tool"]


SPECS = [
    "append-only",
    "keep-last:3",
    "clear-results:3",
    "clear-results:3,250",
    "mask:2",
    "mask:2,300",
    "window:3",
    "summarize-at:6,4,30",
    "summarize-budget:500,200,30",
    "summarize-budget:500,tokens=30,low=300",
    "summarize-fresh:500,200,30",
    "rolling-summary:3,30",
    "offload:50,0",
    "break-even:0.5,100,30",
    "break-even:0.5,100,30,20",
    "offload:80,1+clear-results:2,100+summarize-budget:400,100,30",
]


@pytest.mark.parametrize("spec", SPECS)
def test_every_policy_keeps_the_rules(spec: str) -> None:
    """Legal requests; the head, the task and the newest turn untouched; extension unless it says where it rewrites."""
    policy = parse_policy(spec)
    history, turns = replay(policy, 12)
    previous: tuple[Message, ...] = ()
    rewrites = 0
    for number, turn in enumerate(turns):
        messages = turn.request.messages
        check_sequence(messages)
        assert [message.text for message in messages[:3]] == ["system prompt", "pinned", "the task"]
        if number and "offload" not in spec:
            assert messages[-3:] == history.messages[3 * number : 3 * number + 3]
        if turn.rewrites_at is None:
            assert messages[: len(previous)] == previous
            assert not turn.compacted
        else:
            rewrites += 1
            assert turn.compacted
            assert messages[: turn.rewrites_at] == previous[: turn.rewrites_at]
            assert messages[turn.rewrites_at] != previous[turn.rewrites_at]
        assert [item.index for item in turn.dropped] == sorted({item.index for item in turn.dropped})
        absent = {
            index
            for index, message in enumerate(history.messages[: len(previous)])
            if message not in messages
        }
        assert absent <= {item.index for item in turn.dropped}
        previous = messages
    assert rewrites == history.epoch
    assert len(history.messages) == 3 + 12 * 3, "the log keeps everything"
    assert parse_policy(policy.name).name == policy.name
    if spec.partition(":")[0] not in ("append-only", "offload"):
        assert rewrites > 0, "the example must make the policy act"


@pytest.mark.parametrize("spec", SPECS)
def test_a_resumed_session_goes_on_alike(spec: str) -> None:
    """A new policy object over a restored history decides as the old one would have."""
    _, whole = replay(parse_policy(spec), 12)
    history, _ = replay(parse_policy(spec), 5)
    for number in range(5, 12):
        history = History.resume(history.checkpoint())
        step(history, number)
        turn = parse_policy(spec).turn(history, words)
        assert turn.request == whole[number + 1].request
        assert turn.dropped == whole[number + 1].dropped


def test_keep_last_drops_calls_with_their_results() -> None:
    _, turns = replay(parse_policy("keep-last:3"), 4)
    assert answered(turns[-1]) == ["b2", "a3", "b3"]
    calls = [call.id for message in turns[-1].request.messages for call in message.tool_calls]
    assert calls == ["b2", "a3", "b3"]
    assert {item.how for item in turns[-1].dropped} == {"removed"}


def test_keep_last_keeps_what_the_model_said() -> None:
    history = History("s")
    history.user("go")
    policy = parse_policy("keep-last:1")
    for number in range(3):
        history.assistant(f"step {number}", tool_calls=[ToolCall(id=f"c{number}", name="f", arguments="")])
        history.tool_result(f"c{number}", "x")
    texts = [message.text for message in policy.turn(history, words).request.messages]
    assert texts == ["s", "go", "step 0", "step 1", "step 2", "x"]


def test_commands_out_of_text_have_user_messages_for_results() -> None:
    """An agent without tools: its results are the user messages behind the model's answers."""

    def talk(policy: Policy) -> Turn:
        history = History("s")
        history.user("task")
        for number in range(4):
            history.assistant(f"run {number}")
            history.user(f"out {number}")
        return policy.turn(history, words)

    texts = [message.text for message in talk(parse_policy("keep-last:2")).request.messages]
    assert texts == ["s", "task", "run 2", "out 2", "run 3", "out 3"]
    history_of_long = talk(parse_policy("mask:1"))
    assert [message.text for message in history_of_long.request.messages][-1] == "out 3"


def test_clearing_waits_until_enough_can_go() -> None:
    _, often = replay(parse_policy("clear-results:2"), 9)
    _, rarely = replay(parse_policy("clear-results:2,280"), 9)
    assert sum(turn.compacted for turn in often) == 8
    assert [number for number, turn in enumerate(rarely) if turn.compacted] == [4, 7]
    cleared = [message.text for message in rarely[4].request.messages if message.role == "tool"]
    assert cleared[0] == "[result cleared to save space]"
    assert cleared[1] == "ok", "a result that is shorter than the placeholder stays"
    assert cleared[-2].startswith("r3-0")


def test_masking_leaves_first_line_and_length() -> None:
    history = History("s", [Tool.of("f")])
    history.user("task")
    policy = parse_policy("mask:1")
    for number in range(2):
        call = history.tool_call("f", id=f"c{number}")
        history.tool_result(call, f"\nheadline {number}\n" + text_of(50, "x"))
        turn = policy.turn(history, words)
    assert turn.request.messages[3].text == "headline 0 [masked: 52 tokens]"
    assert turn.request.messages[5].text.startswith("\nheadline 1")


def test_the_window_moves_by_turns() -> None:
    _, turns = replay(parse_policy("window:2"), 5)
    assert answered(turns[-1]) == ["a3", "b3", "a4", "b4"]
    assert sum(item.tokens for item in turns[-1].dropped) == 3 * 105


def test_water_marks() -> None:
    """Above the high water once, then below the low one, and quiet until the high one is passed again."""
    policy = SummarizeAtBudget(600, tokens=30, low=300)
    history, turns = replay(policy, 16)
    counts = policy._counts
    assert counts is not None
    sizes = [
        counts.tools(turn.request.tools) + sum(counts.message(message) for message in turn.request.messages)
        for turn in turns
    ]
    compacted = [number for number, turn in enumerate(turns) if turn.compacted]
    assert len(compacted) >= 2
    for number in compacted:
        assert sizes[number] <= 300
    assert max(sizes) <= 600
    assert all(later - earlier >= 3 for earlier, later in pairwise(compacted))
    summary = turns[compacted[-1]].request.messages[3]
    assert (summary.role, words(summary.text)) == ("user", 30)
    assert [message.text for message in history.visible].count(summary.text) == 1
    assert sum(1 for origin in history.origins if origin < 0) == 1, (
        "the earlier summary went into the new one"
    )


def test_a_prompt_that_can_not_be_brought_low_is_not_rewritten_every_turn() -> None:
    history = History("s", [Tool.of("f")])
    history.user(text_of(700, "task"))
    policy = SummarizeAtBudget(500, keep=100, tokens=30)
    compacted = 0
    for number in range(10):
        call = history.tool_call("f", id=f"c{number}")
        history.tool_result(call, text_of(40, f"r{number}-"))
        compacted += policy.turn(history, words).compacted
    assert compacted <= 3


def test_the_summary_request_extends_the_prompt_or_stands_alone() -> None:
    _, own = replay(parse_policy("summarize-budget:500,200,30"), 6)
    _, fresh = replay(parse_policy("summarize-fresh:500,200,30"), 6)
    at = next(number for number, turn in enumerate(own) if turn.asked)
    (asked,) = own[at].asked
    before = own[at - 1].request.messages
    assert asked.request.messages[: len(before)] == before
    assert asked.request.tools == own[at].request.tools
    assert (asked.asking, asked.stand_in, words(asked.reply.text)) == ("own-prefix", True, 30)
    (asked,) = fresh[at].asked
    assert (asked.asking, asked.request.tools, len(asked.request.messages)) == ("fresh", (), 2)
    assert "r0-99" in asked.request.messages[1].text
    assert [turn.request for turn in own] == [turn.request for turn in fresh]


def test_a_rolling_summary_rewrites_every_turn() -> None:
    _, turns = replay(RollingSummary(3, 30), 10)
    assert [number for number, turn in enumerate(turns) if turn.compacted] == list(range(4, 11))


def broken(task: SummaryTask) -> str:
    raise RuntimeError("model overloaded")


def silent(task: SummaryTask) -> str:
    return " \n"


def textless(task: SummaryTask) -> None:
    return None


def wordy(task: SummaryTask) -> str:
    return text_of(5000, "w")


@pytest.mark.parametrize(
    ("summarizer", "problem"),
    [
        (broken, "the summarizer failed: RuntimeError: model overloaded"),
        (silent, "the summarizer answered nothing"),
        (textless, "the summarizer failed: TypeError: it returned NoneType, not a text"),
        (wordy, "the summary is no shorter than the"),
    ],
)
def test_a_failed_summary_leaves_the_history_as_it_was(summarizer: object, problem: str) -> None:
    policy = SummarizeAtBudget(500, 200, 30, summarizer=summarizer)  # type: ignore[arg-type]
    history, turns = replay(policy, 6)
    plain, expected = replay(AppendOnly(), 6)
    assert [turn.request for turn in turns] == [turn.request for turn in expected]
    assert history.checkpoint() == plain.checkpoint()
    assert turns[-1].problem is not None
    assert turns[-1].problem.startswith(problem)
    assert turns[1].problem is None


async def test_summarizers_may_be_asynchronous() -> None:
    tasks: list[SummaryTask] = []

    async def summarize(task: SummaryTask) -> str:
        tasks.append(task)
        await asyncio.sleep(0)
        return "what happened so far"

    async def fail(task: SummaryTask) -> str:
        await asyncio.sleep(0)
        raise TimeoutError("no answer")

    async def forget(task: SummaryTask) -> None:
        await asyncio.sleep(0)

    history, _ = replay(AppendOnly(), 5)
    policy = SummarizeAtBudget(300, 120, 30, summarizer=summarize)
    before = history.checkpoint()
    with pytest.raises(UsageError, match=r"await policy\.aturn"):
        policy.turn(history, words)
    assert history.checkpoint() == before
    failed = await SummarizeAtBudget(300, 120, 30, summarizer=fail).aturn(history, words)
    assert failed.problem == "the summarizer failed: TimeoutError: no answer"
    for no_text in (forget, textless):
        wrong = SummarizeAtBudget(300, 120, 30, summarizer=no_text)  # type: ignore[arg-type]
        answer = await wrong.aturn(history, words)
        assert answer.problem == "the summarizer failed: TypeError: it returned NoneType, not a text"
    turn = await policy.aturn(history, words)
    assert turn.request.messages[3].text == "what happened so far"
    assert not turn.stand_in
    assert tasks[-1].messages[0].tool_calls[0].id == "a0"
    plain = await parse_policy("append-only").aturn(history, words)
    assert plain.request == turn.request


def test_offloading_keeps_large_results_out_before_they_are_sent(tmp_path: Path) -> None:
    policy = OffloadResults(50, preview=1, store=DirectoryStore(tmp_path / "results"))
    history, turns = replay(policy, 3)
    assert not any(turn.compacted for turn in turns)
    assert history.epoch == 0
    stub = turns[1].request.messages[4].text
    (item,) = turns[1].dropped
    assert (item.how, item.index, item.tokens) == ("offloaded", 4, 100)
    path = Path(stub.rpartition(" in ")[2].rstrip("]"))
    assert path.read_text() == text_of(100, "r0-") == history[4].text
    assert len(list((tmp_path / "results").iterdir())) == 3
    assert turns[1].request.messages[5].text == "ok"


def test_a_result_that_can_not_be_offloaded_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    policy = OffloadResults(50, store=DirectoryStore(tmp_path / "file"))
    _, turns = replay(policy, 2)
    assert turns[1].request.messages[4].text == text_of(100, "r0-")
    assert turns[1].problem is not None
    assert "could not be offloaded" in turns[1].problem


def test_results_that_were_sent_are_not_offloaded() -> None:
    history, _ = replay(AppendOnly(), 3)
    step(history, 3)
    turn = OffloadResults(50).turn(history, words)
    assert [item.index for item in turn.dropped] == [13]


def test_a_composition_runs_its_parts_in_order() -> None:
    policy = parse_policy("offload:80,0+clear-results:2,10+summarize-budget:60,20,10")
    assert policy.name == "offload:80,0+clear-results:2,10+summarize-budget:60,keep=20,tokens=10"
    _, turns = replay(policy, 8)
    assert {item.how for turn in turns for item in turn.dropped} == {"offloaded", "cleared", "summarized"}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "keep-lats:5",
            r"no policy is called 'keep-lats:5'; choose from append-only, keep-last:N, clear-results:N",
        ),
        ("keep-last", r"policy 'keep-last': n is missing; write it as keep-last:N"),
        ("keep-last:x", r"n must be a whole number, not 'x'"),
        ("keep-last:0", r"n must be at least 1, not 0"),
        ("keep-last:1,2", r"2 parameters given, 1 allowed"),
        ("keep-last:m=2", r"there is no parameter 'm'"),
        ("keep-last:2,n=3", r"n is given twice|2 parameters given"),
        ("clear-results:-1", r"n must be at least 0"),
        ("window:0", r"n must be at least 1"),
        ("mask:0", r"n must be at least 1"),
        ("summarize-at:5,5", r"choose 1 <= first < at"),
        ("summarize-budget:100,100", r"below the budget"),
        ("summarize-budget:0", r"below the budget"),
        ("rolling-summary:0", r"both must be at least 1"),
        ("offload:0", r"need limit >= 1"),
        ("break-even:1.5", r"need 0 < ratio <= 1"),
        ("break-even:ten", r"ratio must be a number, not 'ten'"),
        ("append-only:1", r"1 parameters given, 0 allowed"),
        ("append-only+", r"no policy is called ''"),
    ],
)
def test_wrong_specs_are_usage_errors(spec: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        parse_policy(spec)
    assert error.value.exit_code == 2


def test_every_policy_is_described() -> None:
    described = dict(describe_policies())
    assert described["keep-last:N"].startswith("keep the newest N tool results")
    assert "break-even[:RATIO][,KEEP][,TOKENS][,HORIZON]" in described


def test_policies_refuse_an_unfinished_batch() -> None:
    history = History()
    history.user("x")
    history.tool_call("f", id="c")
    with pytest.raises(HistoryError, match="tool call c has no result yet"):
        AppendOnly().turn(history, words)


def test_break_even_waits_until_a_rewrite_is_earned_and_pays() -> None:
    """By hand: c = 1/2, 105 tokens a turn, keep 105, S = 6; D = 105 (t - 1) at turn t."""
    policy = BreakEven(0.5, keep=105, tokens=6, horizon=1000)
    _, turns = replay(policy, 12)
    first = next(number for number, turn in enumerate(turns) if turn.compacted)
    paid = 0.0
    for number in range(1, 13):
        kept, prompt = 105, 4 + 1 + 2 + 2 + 105 * number
        price = 6 + 0.5 * kept + 0.5 * prompt + 6
        if paid >= price:
            break
        paid += 0.5 * max(0, 105 * (number - 1) - 6)
    assert first == number
    short = BreakEven(0.5, keep=105, tokens=6, horizon=1)
    assert not any(turn.compacted for turn in replay(short, 12)[1]), "one more turn never pays for a rewrite"


class Slot:
    """What a slot processes and reuses, message by message: the shortest faithful account of a prefix cache."""

    def __init__(self) -> None:
        self.last: list[Message] = []
        self.processed = self.reused = 0

    def serve(self, request_messages: tuple[Message, ...]) -> None:
        shared = 0
        for old, new in zip(self.last, request_messages, strict=False):
            if old != new:
                break
            shared += 1
        sizes = [
            words(message.text) + sum(words(call.arguments) for call in message.tool_calls)
            for message in request_messages
        ]
        self.reused += sum(sizes[:shared])
        self.processed += sum(sizes[shared:])
        self.last = list(request_messages)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    ratio=st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    keep=st.integers(0, 600),
    horizon=st.none() | st.integers(1, 200),
)
def test_break_even_never_costs_twice_append_only(
    sizes: list[int], ratio: float, keep: int, horizon: int | None
) -> None:
    """The bound of the derivation, for any session and any guess of the horizon, summary requests included."""
    costs = []
    for policy in (AppendOnly(), BreakEven(ratio, keep, 10, horizon)):
        history, slot = History("system prompt"), Slot()
        history.user("the task")
        for number, size in enumerate(sizes):
            call = history.tool_call("f", text_of(3, "q"), id=f"c{number}")
            history.tool_result(call, text_of(size, f"r{number}-"))
            turn = policy.turn(history, words)
            for side in turn.asked:
                asked = Slot()
                asked.last = list(slot.last)
                asked.serve(side.request.messages[:-1])  # the instruction is a constant, not the history's
                slot.processed += asked.processed
                slot.reused += asked.reused
                slot.last = asked.last
            slot.serve(turn.request.messages)
        costs.append(slot.processed + ratio * slot.reused)
    assert costs[1] < 2 * costs[0] + 20


talk = st.lists(
    st.tuples(
        st.sampled_from(["calls", "answer", "both"]),
        st.lists(st.integers(0, 60), min_size=1, max_size=3),  # tokens of the results
        st.integers(0, 2),  # user messages behind them
    ),
    max_size=14,
)


@pytest.mark.parametrize("spec", SPECS)
def test_any_conversation_keeps_the_rules(spec: str) -> None:
    """Random turns: parallel calls, answers without calls, several user messages, no task, no tools."""

    @settings(max_examples=40, deadline=None)
    @given(talk, st.booleans(), st.booleans())
    def check(steps: list[tuple[str, list[int], int]], has_task: bool, has_tools: bool) -> None:
        policy = parse_policy(spec)
        history = History("system", [Tool.of("f")] if has_tools else [])
        if has_task:
            history.user("the task")
        previous: tuple[Message, ...] = ()
        epoch = 0
        for number, (kind, sizes, users) in enumerate(steps):
            turn = policy.turn(history, words)
            messages = turn.request.messages
            check_sequence(messages)
            if history.epoch == epoch:
                assert messages[: len(previous)] == previous
                assert turn.rewritten == 0
            assert messages[0].text == "system"
            assert not has_task or messages[1].text == "the task"
            dropped = {item.index for item in turn.dropped}
            assert {
                i for i, m in enumerate(history.messages) if i not in history.origins or m not in messages
            } <= dropped
            previous, epoch = messages, history.epoch
            if kind == "answer":
                history.assistant(text_of(sizes[0], f"t{number}-"))
            else:
                calls = tuple(
                    ToolCall(id=f"{number}-{i}", name="f", arguments="{}") for i in range(len(sizes))
                )
                history.assistant("I look." if kind == "both" else "", tool_calls=calls)
                for call, size in zip(calls, sizes, strict=True):
                    history.tool_result(call.id, text_of(size, f"r{call.id}-"))
            for user in range(users):
                history.user(f"more {number} {user}")

    check()
