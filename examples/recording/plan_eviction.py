"""Plan: find a bug in the memory manager from its symptom, repair it, and measure what it cost."""

from __future__ import annotations

import re
from pathlib import Path

from recording.loop import Plan, PlanError, User, edit, expect, listing, pytest_run, read, say, search, write

POOL = "engine/agentctx_engine/memory/block_pool.py"
RIGHT = "        for block in reversed(blocks):\n            if block == null:\n"
WRONG = "        for block in blocks:\n            if block == null:\n"

TEST = '''\
"""Under pressure the head of a prompt, which other prompts share, outlives its tail."""

from __future__ import annotations

from agentctx_engine.memory import KVManager

BLOCK = 4


def serve(kv: KVManager, tokens: list[int]) -> int:
    """Run one request from start to end and return how many of its tokens were found."""
    seq = kv.open(tokens)
    found = kv.match(seq).num_tokens
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    kv.free(seq)
    return found


def test_the_shared_head_outlives_the_tail() -> None:
    kv = KVManager(8, BLOCK)
    head = list(range(2 * BLOCK))
    serve(kv, [*head, *range(100, 100 + 2 * BLOCK)])
    serve(kv, list(range(500, 500 + 6 * BLOCK)))  # takes the four free blocks and two that were cached
    assert serve(kv, [*head, *range(200, 200 + BLOCK)]) == len(head)
    kv.check()
'''

MEASURE = '''\


class HeadFirst(KVManager):
    """Frees tables the wrong way round, to measure what that costs."""

    def free(self, seq: KVSequence) -> None:
        [table] = seq.tables
        table.ids.reverse()
        super().free(seq)


def found_tokens(kv: KVManager) -> int:
    """Ten requests that share a system prompt of 128 tokens, with a large stranger after each of them."""
    system = list(range(128))
    found = 0
    for turn in range(10):
        found += serve(kv, [*system, *range(1000 * turn + 10_000, 1000 * turn + 10_160)])
        serve(kv, list(range(1000 * turn + 50_000, 1000 * turn + 50_320)))
    return found


def test_what_the_order_is_worth() -> None:
    assert (found_tokens(KVManager(32, 16)), found_tokens(HeadFirst(32, 16))) == (0, 0)
'''


def prepare(root: Path) -> None:
    """Put the bug into the copy: blocks are queued for eviction head first."""
    path = root / POOL
    text = path.read_text()
    if text.count(RIGHT) != 1:
        raise PlanError(f"{POOL} no longer has the loop that this plan breaks")
    path.write_text(text.replace(RIGHT, WRONG))


def _lines_of(result: str, pattern: str) -> list[tuple[str, int]]:
    """Files and lines of a search result that match."""
    found = re.findall(r"^(\S+?):(\d+): (.*)$", result, re.MULTILINE)
    return [(file, int(line)) for file, line, text in found if re.search(pattern, text)]


def plan() -> Plan:
    """The session."""
    yield User(
        "Since a change in the memory manager last night some tests in tests/lesson fail, and on our server the share of cached "
        "tokens collapses as soon as memory gets tight. Please find out why and repair it. The tests that are there are right."
    )
    result = yield say(
        "First the symptom: I'll run the tests of the lesson's first nine examples.",
        pytest_run("tests/lesson", "lesson_0"),
    )
    expect("3 failed" in result[0] and "test_lesson_07" in result[0], "three tests fail, two of lesson 7")
    yield say(
        "Three tests fail, and all of them are about the order in which free blocks are handed out again. I'll read the module "
        "with two of them, and look at what the memory manager consists of.",
        read("tests/lesson/test_lesson_07.py"),
        listing("engine/agentctx_engine/memory"),
    )
    yield say(
        "After a request with the blocks 0, 1, 2 the free order should be 3 4 5 2 1 0: unused blocks first, then the tail before "
        "the head. We get the head before the tail. Who keeps that order is the free queue.",
        read("engine/agentctx_engine/memory/free_queue.py"),
    )
    yield say(
        "`append` keeps the order it is given, and says so. The queue is innocent; what matters is who calls it. The pool does.",
        read(POOL),
    )
    yield say(
        "Here is a contradiction. The docstring of `free` says that the tail is queued first, and that it gets the blocks in table "
        "order. The loop walks them in table order too, so the head is queued first. Before I change it I must know that the "
        "callers do pass table order, or I'd turn a correct caller wrong.",
        search(r"pool\.free\(", "engine/agentctx_engine"),
    )
    found = yield say(
        "A few callers. The manager frees whole sequences, so I'll look at it and at the table that it empties.",
        search(r"def free\b|def free\(|def truncate", "engine/agentctx_engine/memory"),
        read("engine/agentctx_engine/memory/block_table.py"),
    )
    manager = [line for file, line in _lines_of(found[0], r"def free") if file.endswith("kv_manager.py")]
    expect(len(manager) == 1, "the manager has one free()")
    yield say(
        "`truncate` gives the ids behind the kept ones in table order. Now the manager's `free`.",
        read("engine/agentctx_engine/memory/kv_manager.py", max(1, manager[0] - 60), manager[0] + 40),
    )
    windows = yield say(
        "It passes what `truncate` gives: table order. The other place is the sliding window, which frees blocks that no query "
        "sees any more.",
        search(r"skipped\[::-1\]|_free_skipped", "engine/agentctx_engine/memory/kv_manager.py"),
    )
    places = _lines_of(windows[0], r"skipped\[::-1\]")
    expect(len(places) == 1, "the window's blocks are turned round once")
    yield say(
        "There the blocks are collected from right to left.",
        read("engine/agentctx_engine/memory/kv_manager.py", places[0][1] - 20, places[0][1] + 3),
    )
    yield say(
        "It turns them round before it calls the pool, so it passes table order as well. Both callers do what the docstring asks, "
        "and the loop doesn't. Before I repair it I'd like a test that shows the harm and not only an order of numbers: a shared "
        "head has to survive a large stranger.",
        write("tests/memory/test_shared_head.py", TEST),
    )
    failed = yield say("It must fail now.", pytest_run("tests/memory/test_shared_head.py"))
    expect("1 failed" in failed[0] and "assert 0 ==" in failed[0], "the new test shows the harm")
    yield say(
        "It finds 0 of 8 tokens. The tail of the first request was still cached, and useless: without the blocks before it "
        "nothing of it can be found. That also explains the server: every eviction starts with what most prompts share. The "
        "repair is one word.",
        edit(POOL, WRONG, RIGHT),
    )
    passed = yield say(
        "The new test, and the lesson.",
        pytest_run("tests/memory/test_shared_head.py"),
        pytest_run("tests/lesson", "lesson_0"),
    )
    expect("1 passed" in passed[0] and "failed" not in passed[1], "the repair holds")
    wider = yield say(
        "Both are right again. The memory manager has machines that compare it with a naive one; they should have caught this, "
        "so I'll run them and see whether they look at the order at all.",
        pytest_run("tests/memory/test_memory_machine.py"),
        search(r"free_order|reversed|order", "tests/memory"),
    )
    expect("passed" in wider[0] and "failed" not in wider[0], "the machines pass")
    yield say(
        "They pass. I want to know whether the radix tree, the other cache, has the same kind of loop.",
        read("engine/agentctx_engine/memory/radix_eviction.py"),
    )
    yield say(
        "It evicts leaves only, so a head can't go before its tail there. Nothing to repair.\n\n"
        f"The cause: `BlockPool.free` in `{POOL}` queued the blocks of a finished request head first, while its callers and its "
        "docstring agree on tail first. Under pressure the shared beginning of all prompts was evicted first, and what was left "
        "of them couldn't be found.\n\n"
        "- The loop runs over `reversed(blocks)` again.\n"
        "- `tests/memory/test_shared_head.py` is new: a shared head survives a large stranger.\n\n"
        "The tests of the lesson, the new test and the memory machine pass. I didn't run the engine's or the server's tests, and "
        "I can't see here who changed the line."
    )
    yield User(
        "Thank you. How much did it cost? Measure it on something like our load, a system prompt that all requests share and "
        "large strangers in between. Don't guess."
    )
    yield say(
        "I'll measure with both orders in one test: ten requests that share 128 tokens, a stranger of 320 tokens after each, and "
        "memory for 512. A subclass that turns the tables round before it frees them gives the old behaviour. I have no tool that "
        "prints, so the first version compares with zeros and lets the assertion show the figures.",
        edit(
            "tests/memory/test_shared_head.py",
            "from agentctx_engine.memory import KVManager\n",
            "from agentctx_engine.memory import KVManager, KVSequence\n",
        ),
        edit(
            "tests/memory/test_shared_head.py",
            "== len(head)\n    kv.check()\n",
            "== len(head)\n    kv.check()\n" + MEASURE,
        ),
    )
    shown = yield say("Run it to see the figures.", pytest_run("tests/memory/test_shared_head.py", "worth"))
    figures = re.search(r"assert \((\d+), (\d+)\) == \(0, 0\)", shown[0])
    expect(figures is not None, "the assertion shows two figures")
    assert figures is not None
    right, wrong = int(figures[1]), int(figures[2])
    expect(right == 9 * 128 > 5 * wrong, "the right order finds all that can be found")
    total = 10 * (128 + 160)
    yield say(
        f"Tail first finds {right:,} tokens, head first {wrong:,}. The requests have {total:,} tokens together, and "
        f"{9 * 128:,} is all that can be found: nine times the system prompt, since the first request finds nothing. I'll write "
        "the figures into the test, so that it keeps them.",
        edit(
            "tests/memory/test_shared_head.py",
            "found_tokens(HeadFirst(32, 16))) == (0, 0)",
            f"found_tokens(HeadFirst(32, 16))) == ({right}, {wrong})",
        ),
    )
    passed = yield say("Once more, the whole module.", pytest_run("tests/memory/test_shared_head.py"))
    expect("2 passed" in passed[0], "the measured figures hold")
    yield say(
        "Is there a place where you'd have seen this without a test? I'll check what the reports say about eviction.",
        search(r"evict", "agentctx/caches"),
        search(r"evict|server", "agentctx/reports"),
    )
    yield say(
        "Where a report would show it: a cache model with a capacity tells evicted tokens apart from the others.",
        read("agentctx/reports/turn.py"),
    )
    yield say(
        f"Measured, on ten requests with a shared system prompt of 128 tokens, strangers of 320 tokens in between and memory for "
        f"512 tokens: {right:,} of {total:,} prompt tokens are found with the right order, {100 * right / total:.0f} %, and {wrong:,} "
        f"with the wrong one, {100 * wrong / total:.0f} %. The figures are in `tests/memory/test_shared_head.py` and will fail if "
        "the order changes again.\n\n"
        "In a report you'd have seen it as rework by the server: tokens that an unlimited cache would have found and this one has "
        "evicted. It is counted apart from rounding and from a broken prefix, so a sudden rise there points at memory and not at "
        "your prompts.\n\n"
        "It is a small model of your load. The size of the effect depends on how tight memory is; the direction doesn't."
    )
