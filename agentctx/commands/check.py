"""``agentctx check``: everything that a project has configured; ``agentctx check …``: one command for each thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctx.commands.check_build import check_build
from agentctx.commands.check_log import check_log
from agentctx.commands.check_template import check_template
from agentctx.commands.report_options import FormatOption, ReportFormat, ReportOption, tell
from agentctx.commands.terminal import err, write_whole
from agentctx.errors import UsageError

app = typer.Typer(
    name="check",
    help="Check that prompts stay cache-friendly. Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.",
    rich_markup_mode=None,
)
app.command("build")(check_build)
app.command("log")(check_log)
app.command("template")(check_template)


@app.callback(invoke_without_command=True)
def check_all(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Configuration. Default: the nearest agentctx.toml or pyproject.toml."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Accepted findings, each with a reason. Default: the configured file."
        ),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Accept what was found; needs --reason.")
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why the new findings of --update-baseline are accepted.")
    ] = "",
    base: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Fail only for what is worse than in this revision of git."),
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
    from agentctx.checks.baseline import baseline_text, read_baseline
    from agentctx.checks.config import need_config
    from agentctx.checks.configured import accept, run_project

    project = need_config(config, Path.cwd())
    file = baseline or (project.root / project.config.baseline if project.config.baseline else None)
    if update_baseline and (file is None or not reason.strip()):
        raise UsageError(
            "--update-baseline needs --reason TEXT, and a baseline file (--baseline, or configured)"
        )
    result = run_project(project)
    known = read_baseline(file) if file is not None and (file.exists() or not update_baseline) else []
    if update_baseline and file is not None:
        write_whole(file, baseline_text(result.findings, known, reason))
        known = read_baseline(file)
        err.print(f"wrote {file}", markup=False, highlight=False)
    accept(result, project.config, known)
    if base is not None:
        with checkout(project.root, base) as folder:
            worse_than(result, run_project(project, root=folder, missing_ok=True), base)
    tell(result, format, report)
    raise typer.Exit(result.exit_code)
