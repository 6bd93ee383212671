"""The pytest plugin, in pytest runs of its own: it is loaded by itself, costs nothing unused, and fails what breaks a prefix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MESSAGES = '''
import asyncio
import pytest

def sent(turn, system="You are a careful agent.", keep=99):
    """The messages of a turn; older ones are cut to ``keep`` characters."""
    out = [{"role": "system", "content": system}]
    for number in range(turn):
        text = f"question {number}: why does the parser drop the last line of file{number}.txt?"
        out.append({"role": "user", "content": text if number + 2 > turn else text[:keep]})
        if number + 1 < turn:
            out.append({"role": "assistant", "content": f"answer {number}"})
    return out

def clock(turn):
    return sent(turn, f"You are an agent. Time: 10:0{turn}")
'''


def run(folder: Path, test: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of pytest over one test module."""
    (folder / "test_user.py").write_text(MESSAGES + textwrap.dedent(test))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_append_only_prompts_pass_and_a_clock_fails_with_table_and_texts(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        def test_fine(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(sent(turn), tools=[{"type": "function", "function": {"name": "f"}}])

        def test_clock(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(clock(turn))
        """,
    )
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "! turn   2" in said
    assert "AC101 volatile-text  messages[0].content@" in said
    assert "was: You are an agent. Time: 10:01" in said
    assert "now: You are an agent. Time: 10:02" in said
    assert "remedy: put the volatile text in the newest message" in said
    # The traceback ends in the line that sends, not inside agentctx.
    assert re.search(r"^> +prefix_guard\.check\(clock\(turn\)\)$", said, re.MULTILINE)
    assert "def _took" not in said


def test_a_break_that_the_agent_catches_fails_all_the_same(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        def test_caught(prefix_guard):
            for turn in (1, 2, 3):
                try:
                    prefix_guard.check(clock(turn))
                except Exception:
                    pass
        """,
    )
    assert code == 1
    assert "2 of 3 turns break the prefix" in said
    assert "1 failed" in said


def test_budgets_allow_up_to_a_price(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        @pytest.mark.prefix_budget(rework=10_000)
        def test_within(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(sent(turn, keep=9))

        @pytest.mark.prefix_budget(rework_turn=2)
        def test_beyond(prefix_guard):
            for turn in (1, 2, 3, 4):
                prefix_guard.check(sent(turn, keep=9))

        @pytest.mark.prefix_budget(allow=["AC101"])
        def test_allowed(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(clock(turn))

        @pytest.mark.prefix_budget(hit_rate=0.99)
        def test_rate(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(sent(turn))
        """,
    )
    assert code == 1
    assert "2 failed, 2 passed" in said
    assert "budget rework-turn:" in said
    assert "budget hit-rate: hit rate" in said


def test_a_wrong_marker_and_a_wrong_target_are_told(tmp_path: Path) -> None:
    test = """
        @pytest.mark.prefix_budget(reworks=1)
        def test_it(prefix_guard):
            pass
        """
    code, said = run(tmp_path, test)
    assert code == 1
    assert "prefix_budget has no keyword reworks; it takes rework, rework_turn" in said
    code, said = run(tmp_path, "def test_it(prefix_guard): pass", "--agentctx-target=nothing-like-it")
    assert code == 1
    assert "unknown target 'nothing-like-it'" in said


TEMPLATE = """{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content if loop.last else message.content[:12] }}
{%- endfor -%}<|assistant|>"""


def test_a_target_s_template_breaks_what_the_client_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trims.jinja").write_text(TEMPLATE)
    test = """
        def test_it(prefix_guard):
            for turn in (1, 2, 3):
                prefix_guard.check(sent(turn))
        """
    assert run(tmp_path, test)[0] == 0
    code, said = run(tmp_path, test, "--agentctx-target=trims.jinja")
    assert code == 1
    assert "AC150" in said


def test_replies_that_are_stored_otherwise(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        def call(arguments):
            function = {"name": "read", "arguments": arguments}
            return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}

        def test_it(prefix_guard):
            prefix_guard.check(sent(1))
            prefix_guard.replied({"choices": [{"message": call('{"path":"a"}')}]})
            result = {"role": "tool", "tool_call_id": "c1", "content": "text"}
            prefix_guard.check([*sent(1), call('{"path": "a"}'), result])
        """,
    )
    assert code == 1
    assert "AC108 argument-serialisation" in said


def test_announced_compactions_are_no_break(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        def test_it(prefix_guard):
            prefix_guard.check(sent(2))
            prefix_guard.compacted()
            prefix_guard.check(sent(3, keep=5))
            prefix_guard.check([*sent(3, keep=5), {"role": "user", "content": "more"}])

        @pytest.mark.prefix_budget(compactions=(0, 50))
        def test_too_many(prefix_guard):
            prefix_guard.check(sent(2))
            prefix_guard.compacted()
            prefix_guard.check(sent(3, keep=5))
        """,
    )
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "budget compactions: 1 compactions, 0 allowed" in said


def test_assert_append_only(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        from agentctx import Message, Request
        from agentctx.checks import assert_append_only

        def test_bodies_lists_and_requests():
            assert_append_only([{"messages": sent(turn)} for turn in (1, 2, 3)])
            assert_append_only([sent(turn) for turn in (1, 2, 3)], target="chatml")
            assert_append_only([Request(messages=(Message(role="user", content="a"),))] * 2)

        def test_broken():
            assert_append_only([clock(turn) for turn in (1, 2, 3)], target="chatml")

        def test_one_list_again_and_again():
            messages = sent(1)
            assert_append_only([messages, messages])
        """,
    )
    assert code == 1
    assert "2 failed, 1 passed" in said
    assert "AC101" in said
    assert "is the very list of an earlier one; pass a copy" in said


def test_with_asyncio_and_xdist(tmp_path: Path) -> None:
    test = """
        @pytest.mark.asyncio
        @pytest.mark.parametrize("number", range(4))
        async def test_it(prefix_guard, number):
            for turn in (1, 2, 3):
                await asyncio.sleep(0)
                prefix_guard.check(sent(turn) if number else clock(turn))
        """
    code, said = run(tmp_path, test, "-n", "2")
    assert code == 1
    assert "1 failed, 3 passed" in said
    assert "AC101 volatile-text" in said


def test_a_long_conversation_is_shown_around_its_breaks(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        def test_it(prefix_guard):
            for turn in range(1, 101):
                prefix_guard.check(sent(turn, "Agent." if turn < 90 else "Agents."))
        """,
    )
    assert code == 1
    assert "  …" in said
    assert "! turn  90" in said
    assert "  turn  60" not in said


@pytest.mark.parametrize("option", ["--help", "--markers"])
def test_it_is_loaded_by_itself(tmp_path: Path, option: str) -> None:
    code, said = run(tmp_path, "", option)
    assert code == 0
    assert ("--agentctx-target" if option == "--help" else "prefix_budget(rework=N") in said


def test_unused_it_loads_nothing(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        """
        import sys

        def test_unused():
            ours = {name for name in sys.modules if name.partition(".")[0] in ("agentctx", "agentctx_engine")}
            assert ours == {"agentctx", "agentctx.errors", "agentctx.checks", "agentctx.checks.pytest_plugin"}
            assert not {"pydantic", "numpy", "jinja2", "tiktoken", "httpx", "torch"} & set(sys.modules)
        """,
        "-p",
        "no:hypothesispytest",
    )
    assert code == 0, said
