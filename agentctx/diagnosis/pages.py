"""The page of each finding, made from the registry: what it looks like, why it costs, what to do."""

from __future__ import annotations

from agentctx.diagnosis.causes import BY_CODE, Cause

_BLAME = {
    "client": "The client changed what was sent: avoidable.",
    "template": "The chat template changed what was sent.",
    "tokenizer": "Nobody changed anything; the text was encoded into other tokens.",
    "server": "The request was in order; the server had less to reuse.",
    "time": "The request was in order; it came too late.",
    "several": "The sum of several turns; their own findings say who changed what.",
    "unknown": "Not known.",
}


def page(cause: Cause) -> str:
    """The Markdown page ``docs/findings/<code>.md``."""
    return "\n".join(
        (
            f"# {cause.code} {cause.name}",
            "",
            f"**{cause.title}.** {_BLAME[cause.blame]}",
            "",
            "## What it looks like",
            "",
            cause.looks_like,
            "",
            "## Why it costs",
            "",
            cause.why,
            "",
            "## Remedy",
            "",
            f"In one line: {cause.remedy}.",
            "",
            cause.fix,
            "",
        )
    )


def index() -> str:
    """The Markdown page that lists all findings."""
    rows = [
        f"| [{cause.code}]({cause.code}.md) | {cause.name} | {cause.title} |" for cause in BY_CODE.values()
    ]
    return "\n".join(
        (
            "# Findings",
            "",
            "Codes are stable. Each page says what a finding looks like, why it costs and what to do.",
            "",
            "| code | name | |",
            "|---|---|---|",
            *rows,
            "",
        )
    )


def all_pages() -> dict[str, str]:
    """File name to text, for the whole folder."""
    return {"README.md": index(), **{f"{cause.code}.md": page(cause) for cause in BY_CODE.values()}}
