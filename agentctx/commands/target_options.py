"""The options that say for which server a command judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentctx.diagnosis import Target

TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Judge for this server: as-sent, a provider (anthropic, openai, …), or a template (chatml, a .jinja file, "
        "a GGUF, a checkpoint's folder); TEMPLATE@TOKENIZER+CACHE in one.",
    ),
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Tokenizer of the target: a tokenizer.json, a GGUF, a name."),
]
CacheOption = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="Cache of the target, such as paged:16, slot, llama-server:slots=1."),
]
RateOption = Annotated[
    float | None,
    typer.Option("--prefill-rate", min=0.001, metavar="N", help="Tokens per second, for costs in seconds."),
]


def chosen_target(name: str, tokenizer: str | None, cache: str | None, rate: float | None) -> Target:
    """The target that the options name; alone it may be one of the configuration's. Raises ``UsageError``."""
    from pathlib import Path

    from agentctx.diagnosis import parse_target

    if tokenizer is None and cache is None and rate is None and name.isidentifier():
        from agentctx.checks.config import target_by_name

        return target_by_name(name, Path.cwd())
    return parse_target(name, tokenizer=tokenizer, cache=cache, prefill_rate=rate)
