"""``agentctx check log FILE…``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from agentctx.commands.report_options import ReportOption, wanted_reports, write_reports
from agentctx.commands.target_options import (
    CacheOption,
    RateOption,
    TargetOption,
    TokenizerOption,
    chosen_target,
)
from agentctx.commands.terminal import complain, out, show

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Logs of requests, or recorded sessions of agents, any known format, plain, gzip or zstd; folders are walked.",
    ),
]
ReworkTurn = Annotated[
    int | None,
    typer.Option(
        "--max-rework-turn",
        min=0,
        metavar="N",
        help="Budget: at most N tokens paid again (computed anew because the prefix broke) in one turn.",
    ),
]
ReworkSession = Annotated[
    int | None,
    typer.Option(
        "--max-rework-session",
        min=0,
        metavar="N",
        help="Budget: at most N tokens paid again in a conversation.",
    ),
]
HitRate = Annotated[
    str | None,
    typer.Option(
        "--min-hit-rate",
        metavar="RATE",
        help="Budget: at least this share of a conversation's prompt tokens is reused: 0.9 or 90%.",
    ),
]
Compactions = Annotated[
    str | None,
    typer.Option(
        "--max-compactions",
        metavar="N/K",
        help="Budget: at most N compactions (a summary takes the place of the history) in any K turns: 1/50.",
    ),
]
StablePrefix = Annotated[
    int | None,
    typer.Option(
        "--min-stable-prefix",
        min=1,
        metavar="N",
        help="Budget: the first N tokens of a prompt are those of the one before.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="CODE",
        help="Code or name of findings that don't fail the check, such as AC115; AC190 for budgets; give it several times.",
    ),
]
OneLog = Annotated[bool, typer.Option("--one-log", help="The files are pieces of one log, oldest first.")]
SkipOthers = Annotated[
    bool, typer.Option("--skip-others", help="Pass over records that are no request to a model.")
]
Suspicions = Annotated[
    bool,
    typer.Option(
        "--suspicions/--no-suspicions",
        help="Show what is suspected and not proven, too; it never fails the check.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def check_log(
    files: Files,
    target: TargetOption = "as-sent",
    tokenizer: TokenizerOption = None,
    cache: CacheOption = None,
    prefill_rate: RateOption = None,
    rework_turn: ReworkTurn = None,
    rework_session: ReworkSession = None,
    hit_rate: HitRate = None,
    compactions: Compactions = None,
    stable_prefix: StablePrefix = None,
    allow: Allow = None,
    one_log: OneLog = False,
    skip_others: SkipOthers = False,
    suspicions: Suspicions = True,
    as_json: AsJson = False,
    report: ReportOption = None,
) -> None:
    """Say where the requests of a log broke the prefix (stopped beginning as the request before), why, and what it cost.

    Without budgets every proven finding fails. With --max-rework-* breaks within the budget are allowed, with
    --max-compactions compactions are.

    Exit codes: 0 clean, 1 findings or a budget that isn't kept, 2 usage, 3 could not evaluate.
    """
    from agentctx.checks import log as logs
    from agentctx.checks.log_budgets import Budgets, parse_compactions, parse_rate
    from agentctx.checks.results import of_logs
    from agentctx.traces import expand

    rules = logs.LogRules(
        target=chosen_target(target, tokenizer, cache, prefill_rate),
        budgets=Budgets(
            rework_turn=rework_turn,
            rework_session=rework_session,
            hit_rate=parse_rate(hit_rate) if hit_rate is not None else None,
            compactions=parse_compactions(compactions) if compactions is not None else None,
            stable_prefix=stable_prefix,
        ),
        allow=logs.known_codes(allow or ()),
        skip_others=skip_others,
    )
    found = list(expand(files))
    reports = []
    wanted = wanted_reports(report)
    for paths in [found] if one_log else [[path] for path in found]:
        checked = logs.check_log(paths, rules)
        reports.append(checked)
        if as_json:
            continue
        if len(found) > 1 and not one_log:
            out.print(checked.file, style="bold", markup=False, highlight=False)
        show(logs.report_lines(checked, suspicions=suspicions))
        if checked.error is not None:
            complain(checked.error)
    if as_json:
        print(json.dumps(logs.reports_json(reports), ensure_ascii=False, indent=2))
    if wanted:
        write_reports(of_logs(reports), wanted)
    raise typer.Exit(logs.exit_code(reports))
