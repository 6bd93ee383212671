"""``agentctx doctor URL``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from agentctx.backends.secrecy import KEY_VARIABLE
from agentctx.commands.server_key import server_key
from agentctx.commands.terminal import show


def doctor(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A server's address, with or without /v1: a llama-server, vLLM, SGLang, or another OpenAI-style one.",
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The model's GGUF, tokenizer.json or folder: its tokens are compared with the server's own.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model to ask. Default: the first that the server lists."),
    ] = None,
    key_variable: Annotated[
        str, typer.Option("--key-variable", metavar="NAME", help="Environment variable that holds the key.")
    ] = KEY_VARIABLE,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask/--no-ask",
            help="Ask the model one short question twice, for one token each, to see whether it reports cached tokens.",
        ),
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long the server may say nothing.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say what a server is, whether it reports how many tokens it reused, what would make it, and whether our tokens are its tokens.

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate (nobody answers, or a key is wanted).
    """
    from agentctx.backends.doctor import examine
    from agentctx.rendering.load import load_tokenizer

    found = examine(
        url,
        api_key=server_key(key_variable),
        tokenizer=load_tokenizer(tokenizer) if tokenizer else None,
        model=model,
        ask=ask,
        timeout=timeout,
    )
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False, indent=2))
    else:
        show(found.lines())
    raise typer.Exit(0 if found.clean else 1)
