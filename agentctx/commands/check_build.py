"""``agentctx check build MODULE:CALLABLE…``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctx.commands.report_options import FormatOption, ReportFormat, ReportOption, tell
from agentctx.commands.target_options import (
    CacheOption,
    RateOption,
    TargetOption,
    TokenizerOption,
    chosen_target,
)
from agentctx.errors import UsageError

Builders = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:CALLABLE...",
        help="Functions or classes that turn the messages so far (and `tools`) into a request body.",
    ),
]
ScenarioOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A recorded session whose prompts are built. Default: a built-in one of seven calls.",
    ),
]
RootOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder from which the module is imported.")]
TimeoutOption = Annotated[
    float,
    typer.Option(min=0.1, metavar="SECONDS", help="How long one process may take; at most ten are run."),
]
VaryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="WHAT",
        help="What fresh processes differ in: hash-seed, clock, cwd, locale, timezone; give it several times. Default: all.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="WHAT",
        help="What doesn't fail: `output` (it prints), `threads` (it leaves some running), or a finding's code, such as AC101; "
        "give it several times.",
    ),
]


def check_build(
    builders: Builders,
    scenario: ScenarioOption = None,
    target: TargetOption = "as-sent",
    tokenizer: TokenizerOption = None,
    cache: CacheOption = None,
    prefill_rate: RateOption = None,
    root: RootOption = Path(),
    timeout: TimeoutOption = 20.0,
    vary: VaryOption = None,
    allow: AllowOption = None,
    format: FormatOption = ReportFormat.text,
    report: ReportOption = None,
) -> None:
    """Run prompt builders (functions of yours that make the requests) over a conversation: does each prompt begin with the one before,
    and do fresh processes, which differ in what must not matter, build equal ones?

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate (it raised, printed, ran too long, …).
    """
    from agentctx.checks.builders.judging import BuildRules, allowed_words, check_builder, variations
    from agentctx.checks.builders.process import Place
    from agentctx.checks.builders.scenario import built_in, from_file
    from agentctx.reports.check_result import CheckResult

    rules = BuildRules(
        target=chosen_target(target, tokenizer, cache, prefill_rate),
        vary=variations(vary),
        allow=allowed_words(allow or ()),
    )
    chosen = from_file(scenario) if scenario is not None else built_in()
    result = CheckResult()
    for builder in builders:
        if not all(builder.partition(":")):
            raise UsageError(f"builder {builder!r}: write MODULE:CALLABLE, such as app.prompts:build")
        result.add(check_builder(Place(builder, root.resolve(), timeout), chosen, rules))
    tell(result, format, report)
    raise typer.Exit(result.exit_code)
