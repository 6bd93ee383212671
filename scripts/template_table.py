"""Writes docs/templates.md: the core templates of the shared corpus under ``agentctx check template``.

``--check`` compares instead of writing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentctx.checks.template_report import TemplateReport
from agentctx.checks.template_sources import TemplateSource
from agentctx.checks.template_tables import template_table
from agentctx.checks.templates import check_templates

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "templates.md"
CORPUS = Path(os.environ.get("AGENTCTX_SHARED", ROOT.parent / "shared")) / "corpus" / "templates"

HEAD = """# Chat templates and the prefix cache

A server's cache reuses a prompt as far as it equals the one before. Whether an agent's next prompt extends the last one is decided by
the chat template as much as by the agent: a template may drop the reasoning of earlier turns, move the tools, or print the last message
differently from the others. `agentctx check template FILE` tries a template with growing conversations and names the line.

The table shows {count} templates of current models. *From call to call*: does every prompt of the battery's conversations (chat, tools one
after another, parallel calls, results one by one, reasoning in a tool loop and then a new user message, reasoning inside the content,
white space, arguments beyond ASCII) begin with the whole prompt of the call before? (A generation
prompt that got no reply because another result came first is no break.) *What breaks*: what the template did to text it had
printed before, with the line that is to blame, the most frequent first:

- *template made*: the generation prompt isn't what the stored reply begins with, as when it opens a thinking block that stored replies don't have;
- *reasoning removed*: reasoning of earlier turns is left out once the conversation goes on;
- *message edited*: an earlier message is printed differently once another follows;
- *system moved*: the system message or the tools stand elsewhere in the next prompt;
- *whitespace*: blanks or line ends around an earlier message change.

*Tokens paid again*: in a session of twenty model calls (five questions, each with three tool calls and an answer, reasoning before each; a
chat of twenty questions where the template takes no tool calls), tokens that stood in the prompt before and have to be computed again,
and their share of all prompt tokens. Counted with the built-in vocabulary, so these are estimates. A template that is append-only in this session
costs nothing, whatever the battery says about others. *Mended by*: a keyword of the template with which the session has no rework.

`python scripts/template_table.py` makes this page from the checks.

"""


def core_sources(corpus: Path) -> list[TemplateSource]:
    """The templates that the index calls core, with their special tokens."""
    head, *lines = (corpus / "INDEX.tsv").read_text(encoding="utf-8").split("\n")
    names = head.split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines if line]
    return [
        TemplateSource(
            row["name"],
            f"{row['name']}.jinja",
            (corpus / f"{row['name']}.jinja").read_text(encoding="utf-8"),
            {"bos_token": json.loads(row["bos"] or '""'), "eos_token": json.loads(row["eos"] or '""')},
        )
        for row in sorted(rows, key=lambda row: row["name"].lower())
        if row["core"]
    ]


def page(reports: Sequence[TemplateReport]) -> str:
    """The whole page."""
    sound = sum(report.append_only for report in reports)
    free = sum(report.cost is not None and not report.cost.rework for report in reports)
    mended = sum(report.mended_by is not None for report in reports)
    summary = (
        f"{sound} of {len(reports)} are append-only in every conversation; in the session of twenty calls {free} cost nothing and "
        f"{mended} more are mended by a keyword.\n\n"
    )
    return HEAD.format(count=len(reports)) + summary + template_table(reports)


def main() -> int:
    text = page(check_templates(core_sources(CORPUS)))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is not what the checks say", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
