"""``agentctx check template FILE…``"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctx.commands.baseline_options import (
    BaselineOption,
    ReasonOption,
    UpdateOption,
    allow_known,
    need_baseline,
)
from agentctx.commands.progress import JobsOption, progress
from agentctx.commands.report_options import ReportOption, wanted_reports, write_reports
from agentctx.commands.terminal import show
from agentctx.errors import UsageError

if TYPE_CHECKING:
    from agentctx.traces import Session

_KEYWORD = "A variable that your requests give to the template, such as enable_thinking=false; give it several times."
_PLACES = "Templates (.jinja), GGUFs, tokenizer_config.json, checkpoints, folders of these, URLs of files or of a llama-server."


def check_template(
    places: Annotated[list[str], typer.Argument(metavar="FILE|DIR|GGUF|URL...", help=_PLACES)],
    keyword: Annotated[
        list[str] | None, typer.Option("--keyword", "-k", metavar="NAME=VALUE", help=_KEYWORD)
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A recorded session for which costs are counted. Default: a built-in one of 20 calls.",
        ),
    ] = None,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    reason: ReasonOption = "",
    notes: Annotated[
        bool,
        typer.Option(
            "--notes", help="Show hints, too: what costs once, and what a changed request would cost."
        ),
    ] = False,
    brief: Annotated[bool, typer.Option("--brief", help="One line for each template.")] = False,
    jobs: JobsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    report: ReportOption = None,
) -> None:
    """Render growing agent conversations and say where a template rewrites what it printed before, at which line, and what that costs.

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
    """
    from agentctx.checks import templates
    from agentctx.checks.template_sources import template_sources

    need_baseline(baseline, reason, update=update_baseline)
    wanted = wanted_reports(report)
    rules = templates.TemplateRules(_keywords(keyword or ()), _session(session) if session else None)
    sources = template_sources(places)
    with progress("checking templates", len(sources)) as on_done:
        reports = templates.check_templates(sources, rules, jobs=jobs, on_done=on_done)
    result = templates.result_of(reports)
    allow_known(result, baseline, reason, update=update_baseline)
    if as_json:
        print(json.dumps(templates.reports_json(reports, result), ensure_ascii=False, indent=2))
    else:
        show(templates.report_lines(reports, result, notes=notes, brief=brief))
    write_reports(result, wanted)
    raise typer.Exit(result.exit_code)


def _keywords(given: list[str] | tuple[()]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"--keyword takes NAME=VALUE, not {each!r}")
        try:
            found[name] = json.loads(value.lower() if value in ("True", "False", "None") else value)
        except ValueError:
            found[name] = value
    return found


def _session(path: str) -> Session:
    from agentctx.traces import read_sessions

    sessions = list(read_sessions(path))
    if len(sessions) != 1:
        raise UsageError(f"{path} holds {len(sessions)} sessions; name a file with one")
    return sessions[0]
