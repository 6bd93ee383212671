"""``agentctx check``: everything that a project has configured; ``agentctx check …``: one command for each thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctx.commands.baseline_options import (
    BaselineOption,
    ReasonOption,
    UpdateOption,
    allow_known,
    need_baseline,
)
from agentctx.commands.check_build import check_build
from agentctx.commands.check_log import check_log
from agentctx.commands.check_template import check_template
from agentctx.commands.report_options import FormatOption, ReportFormat, ReportOption, tell

app = typer.Typer(
    name="check",
    help="Check that prompts stay cache-friendly: each one has to begin with the one before it.\n\n"
    "Alone: all that agentctx.toml, or [tool.agentctx] in pyproject.toml, names (`agentctx init` writes a start). With a command: what "
    "the command line names.\n\n"
    "Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.",
    short_help="Check chat templates, prompt builders and request logs.",
    rich_markup_mode=None,
)
app.command("build", short_help="Run your prompt builder; are its prompts stable?")(check_build)
app.command("log", short_help="Find where a log's requests broke the prefix.")(check_log)
app.command("template", short_help="Find where a chat template rewrites history.")(check_template)


@app.callback(invoke_without_command=True)
def check_all(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration. Default: the nearest agentctx.toml or pyproject.toml, from here upwards.",
        ),
    ] = None,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    reason: ReasonOption = "",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Fail only for what is worse than in this revision of git (a commit, a branch, a tag).",
        ),
    ] = None,
    format: FormatOption = ReportFormat.text,
    report: ReportOption = None,
) -> None:
    """Check everything that is configured in agentctx.toml or pyproject.toml ([tool.agentctx]).

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
    """
    if context.invoked_subcommand is not None:
        return
    from agentctx.checks.base_revision import checkout, worse_than
    from agentctx.checks.config import need_config
    from agentctx.checks.configured import run_project, suppress

    project = need_config(config, Path.cwd())
    file = baseline or (project.root / project.config.baseline if project.config.baseline else None)
    need_baseline(file, reason, update=update_baseline)
    result = run_project(project)
    suppress(result, project.config)
    allow_known(result, file, reason, update=update_baseline, root=project.root)
    if base is not None:
        with checkout(project.root, base) as folder:
            worse_than(result, run_project(project, root=folder, missing_ok=True), base)
    tell(result, format, report)
    raise typer.Exit(result.exit_code)
