"""Rows: what was measured, what it should be, and how both are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["measured", "left out", "failed"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a row has to reach: at least ``least`` of its share (0.8 is 80 %), or of its ratio."""

    least: float
    unit: Literal["share", "ratio"] = "share"

    def __str__(self) -> str:
        return f"≥ {shown(self.least, self.unit)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    figure: in ``unit``. share: of what the card can do, named by ``share_of``, or how many times ``share_of`` it is.
    why: of a row that was left out or failed.
    """

    name: str
    state: State = "measured"
    figure: float | None = None
    unit: str = ""
    share: float | None = None
    share_of: str = ""
    share_unit: Literal["share", "ratio"] = "share"
    target: Target | None = None
    why: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one, or without a figure."""
        if self.target is None or self.share is None:
            return None
        return self.share >= self.target.least

    def told(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self) | {"met": self.met}


def shown(number: float, unit: Literal["share", "ratio"]) -> str:
    return f"{number:.0%}".replace("%", " %") if unit == "share" else f"{number:,.3g} ×"


def figure_shown(row: Row) -> str:
    """Three digits that count, and the unit."""
    if row.figure is None:
        return ""
    digits = f"{row.figure:,.0f}" if abs(row.figure) >= 100 else f"{row.figure:.3g}"
    return f"{digits} {row.unit}"


def verdict(row: Row, *, means_speed: bool) -> str:
    """The last column: met, missed, or why there is no figure."""
    if row.state != "measured":
        return f"{row.state}: {row.why}"
    if row.target is None:
        return ""
    if not means_speed:
        return "not judged"
    return "met" if row.met else "missed"


def table(rows: Sequence[Row], *, means_speed: bool) -> str:
    """Markdown whose columns line up. ``means_speed``: False where the figures say nothing about speed."""
    lines = [("measured", "", "share", "of", "target", "")]
    lines += [
        (
            row.name,
            figure_shown(row),
            "" if row.share is None else shown(row.share, row.share_unit),
            row.share_of,
            "" if row.target is None else str(row.target),
            verdict(row, means_speed=means_speed),
        )
        for row in rows
    ]
    return aligned(lines, right=(1, 2, 4))


def aligned(lines: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table of a head and its lines, padded; columns in ``right`` stand right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    widths = [max(3, width) for width in widths]
    rule = [
        "-" * (width - 1) + ":" if column in right else "-" * width for column, width in enumerate(widths)
    ]

    def padded(line: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    return "\n".join([padded(lines[0]), padded(rule), *map(padded, lines[1:])])
