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
        help="The server to judge for: as-sent (the strictest: request bodies as they are); a provider by its published rules "
        "(anthropic, openai, …); a model's chat template, which counts tokens, too (chatml is built in; else a .jinja file, a GGUF, a "
        "model's folder); or a target of agentctx.toml.",
    ),
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Tokenizer of the target's template: a tokenizer.json, a GGUF, an encoding of tiktoken. Default: the template's own, "
        "else a built-in one, which estimates.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="How the cache of the target works, such as paged:16, slot, llama-server:slots=1; `agentctx compare --list` describes "
        "all. Default: all that two prompts have in common is reused.",
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--prefill-rate",
        min=0.001,
        metavar="N",
        help="Prompt tokens that the server computes in a second. Default: costs are told in tokens only.",
    ),
]


def chosen_target(name: str, tokenizer: str | None, cache: str | None, rate: float | None) -> Target:
    """The target that the options name; alone it may be one of the configuration's. Raises ``UsageError``."""
    from pathlib import Path

    from agentctx.diagnosis import parse_target

    if tokenizer is None and cache is None and rate is None and name.isidentifier():
        from agentctx.checks.config import target_by_name

        return target_by_name(name, Path.cwd())
    return parse_target(name, tokenizer=tokenizer, cache=cache, prefill_rate=rate)
