"""Draw the pictures of the documentation from the example sessions. ``--check`` only compares."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agentctx.compare import DEFAULT_POLICIES, Setting, replay
from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.rendering import common_prefix_length, load_renderer
from agentctx.traces import Session, read_sessions

ROOT = Path(__file__).resolve().parent.parent
SESSION = ROOT / "examples/sessions/find-eviction-bug.jsonl"
REUSED, AGAIN, NEW = "#2a9d8f", "#e76f51", "#e9c46a"

mpl.rcParams.update(
    {"svg.hashsalt": "agentctx", "svg.fonttype": "none", "font.size": 11, "font.family": "sans-serif"}
)


def _svg(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    return out.getvalue()


def _requests(session: Session, turn: int) -> tuple[Request, Request]:
    """The requests of a turn (from 1) and of the next one."""
    history = History(system=session.system, tools=session.tools)
    made: list[Request] = []
    for message, generated in zip(session.messages, session.generated, strict=True):
        if generated:
            made.append(history.request())
        if len(made) > turn:
            return made[turn - 1], made[turn]
        history.append(message)
    raise ValueError(f"the session has no turn {turn + 1}")


def _with_clock(request: Request, minute: int) -> Request:
    system, *rest = request.messages
    clock = Message(role="system", content=f"Time: 10:{minute:02}\n{system.text}")
    return request.model_copy(update={"messages": (clock, *rest)})


def _without_old_result(request: Request) -> Request:
    messages = list(request.messages)
    results = [index for index, message in enumerate(messages) if message.role == "tool"]
    old = messages[results[1]]
    messages[results[1]] = old.model_copy(update={"content": "[old result removed]"})
    return request.model_copy(update={"messages": tuple(messages)})


def _tools_swapped(request: Request) -> Request:
    return request.model_copy(update={"tools": (request.tools[-1], *request.tools[:-1])})


def why_prefixes_break() -> bytes:
    """One turn of a real session, five ways of writing its prompt: what the server can keep of the turn before."""
    [session] = read_sessions(SESSION)
    before, now = _requests(session, 12)
    variants: list[tuple[str, Request, Request]] = [
        ("append-only", before, now),
        ("one old result trimmed", before, _without_old_result(now)),
        ("one tool moved to the front", before, _tools_swapped(now)),
        ("a clock in the system prompt", _with_clock(before, 5), _with_clock(now, 6)),
    ]
    renderer = load_renderer("chatml")
    figure = Figure(figsize=(9, 2.6))
    axes = figure.subplots()
    length = len(renderer.render(now).token_ids)
    new = length - len(renderer.render(before).token_ids)
    for row, (name, first, second) in enumerate(variants):
        one, two = renderer.render(first).token_ids, renderer.render(second).token_ids
        kept = common_prefix_length(one, two)
        again = len(two) - kept - new
        axes.barh(row, kept, color=REUSED, edgecolor="white")
        axes.barh(row, again, left=kept, color=AGAIN, edgecolor="white", hatch="///")
        axes.barh(row, new, left=kept + again, color=NEW, edgecolor="white")
        axes.text(
            len(two) + length * 0.01,
            row,
            f"{again:,} read again" if again else "nothing read again",
            va="center",
        )
        axes.text(-length * 0.01, row, name, va="center", ha="right")
    axes.invert_yaxis()
    axes.set_axis_off()
    for label, colour, hatch in (("reused", REUSED, ""), ("read again", AGAIN, "///"), ("new", NEW, "")):
        axes.barh(0, 0, color=colour, hatch=hatch, edgecolor="white", label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.02), ncols=3, frameon=False)
    return _svg(figure)


def reprocessed_by_policy() -> bytes:
    """Tokens reprocessed so far, turn by turn, under the demo's policies."""
    [session] = read_sessions(SESSION)
    figure = Figure(figsize=(9, 4))
    axes = figure.subplots()
    ends: list[tuple[int, int, str]] = []
    for policy, line in zip(DEFAULT_POLICIES, ("-", "--", ":", "-.", (0, (1, 1))), strict=True):
        total, totals = 0, list[int]()
        for turn in replay(session, policy, Setting()).turns:
            total += turn.reprocessed
            totals.append(total)
        axes.plot(range(1, len(totals) + 1), totals, linestyle=line, label=policy)
        ends.append((total, len(totals), policy))
    lowest = float("-inf")
    for total, turns, policy in sorted(ends):
        lowest = max(
            total, lowest + max(ends)[0] * 0.055
        )  # labels of lines that meet stand one above the other
        axes.text(turns + 0.3, lowest, f"{policy}  {total:,}", va="center", fontsize=9)
    axes.set_xlabel("turn")
    axes.set_ylabel("tokens reprocessed so far")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return _svg(figure)


PICTURES: dict[str, Callable[[], bytes]] = {
    "why-prefixes-break.svg": why_prefixes_break,
    "reprocessed-by-policy.svg": reprocessed_by_policy,
}


def main() -> int:
    """Exit code 1 when ``--check`` finds a picture out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, draw in PICTURES.items():
        path = ROOT / "docs/img" / name
        picture = draw()
        if check:
            stale += [name] if not path.exists() or path.read_bytes() != picture else []
        else:
            path.write_bytes(picture)
    for name in stale:
        print(f"docs/img/{name} is out of date: run python scripts/docs_pictures.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
