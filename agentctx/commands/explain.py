"""``agentctx explain A B``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from agentctx.commands.target_options import (
    CacheOption,
    RateOption,
    TargetOption,
    TokenizerOption,
    chosen_target,
)
from agentctx.commands.terminal import show

_REQUEST = (
    "A file with one request (a body, or a record that holds one), or FILE:LINE for the request that begins on that "
    "line of a log."
)


def explain(
    previous: Annotated[str, typer.Argument(metavar="A", help=f"The earlier request. {_REQUEST}")],
    current: Annotated[str, typer.Argument(metavar="B", help="The later request, in the same way.")],
    target: TargetOption = "as-sent",
    tokenizer: TokenizerOption = None,
    cache: CacheOption = None,
    prefill_rate: RateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say where request B stops beginning as request A does, why, and what that costs.

    A server reuses what it computed for A up to the first difference; all of A behind it is computed again.

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
    """
    from agentctx.diagnosis import diagnose
    from agentctx.diagnosis.report import text_lines, to_json
    from agentctx.traces import read_call

    chosen = chosen_target(target, tokenizer, cache, prefill_rate)
    diagnosis = diagnose(read_call(previous), read_call(current), chosen)
    if as_json:
        print(json.dumps(to_json(diagnosis), ensure_ascii=False, indent=2))
    else:
        show(text_lines(diagnosis))
    raise typer.Exit(0 if diagnosis.clean else 1)
