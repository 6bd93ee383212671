"""``agentctx check …``: one command for each thing that a pipeline can check."""

from __future__ import annotations

import typer

from agentctx.commands.check_build import check_build
from agentctx.commands.check_log import check_log
from agentctx.commands.check_template import check_template

app = typer.Typer(
    name="check",
    help="Check that prompts stay cache-friendly. Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("build")(check_build)
app.command("log")(check_log)
app.command("template")(check_template)
