"""The options that say how a check's result is told, and where else it is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctx import __version__
from agentctx.commands.terminal import err, show, write_whole
from agentctx.errors import UsageError

if TYPE_CHECKING:
    from agentctx.reports.check_result import CheckResult


class ReportFormat(StrEnum):
    """How a result is written."""

    text = "text"
    json = "json"
    sarif = "sarif"
    junit = "junit"
    github = "github"
    summary = "summary"


FormatOption = Annotated[
    ReportFormat,
    typer.Option(
        "--format",
        help="What is printed: text, JSON, SARIF, JUnit XML, GitHub annotations, or a Markdown summary.",
    ),
]
ReportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FORMAT=FILE",
        help="Write the result to a file, too, such as sarif=out.sarif; give it several times.",
    ),
]


def tell(result: CheckResult, form: ReportFormat, reports: Sequence[str] | None) -> None:
    """Print the result and write the files that were asked for."""
    wanted = wanted_reports(reports)
    if form is ReportFormat.text:
        from agentctx.reports.check_text import check_lines

        show(check_lines(result))
    else:
        print(written(result, form), end="")
    write_reports(result, wanted)


def wanted_reports(reports: Sequence[str] | None) -> list[tuple[ReportFormat, Path]]:
    """The files that were asked for. Raises ``UsageError``; called before anything is checked."""
    return [_wanted(report) for report in reports or ()]


def write_reports(result: CheckResult, wanted: Sequence[tuple[ReportFormat, Path]]) -> None:
    """Write the files that were asked for."""
    for kind, path in wanted:
        write_whole(path, written(result, kind))
        err.print(f"wrote {path}", markup=False, highlight=False)


def written(result: CheckResult, form: ReportFormat) -> str:
    """The result as a text of that format, with its last line ended."""
    match form:
        case ReportFormat.json:
            from agentctx.reports.check_result import result_json

            return json.dumps(result_json(result), ensure_ascii=False, indent=2) + "\n"
        case ReportFormat.sarif:
            from agentctx.reports.sarif import sarif

            return json.dumps(sarif(result, version=__version__), ensure_ascii=False, indent=2) + "\n"
        case ReportFormat.junit:
            from agentctx.reports.junit import junit

            return junit(result)
        case ReportFormat.github:
            from agentctx.reports.github import annotation_lines

            return "".join(f"{line}\n" for line in annotation_lines(result))
        case ReportFormat.summary:
            from agentctx.reports.github import job_summary

            return job_summary(result)
        case ReportFormat.text:
            from agentctx.reports.check_text import check_lines

            return "".join(f"{line}\n" for line in check_lines(result))


def _wanted(report: str) -> tuple[ReportFormat, Path]:
    kind, _, path = report.partition("=")
    if kind not in ReportFormat.__members__ or not path:
        known = ", ".join(ReportFormat.__members__)
        raise UsageError(f"report {report!r}: write FORMAT=FILE, such as sarif=out.sarif; formats: {known}")
    return ReportFormat(kind), Path(path)
