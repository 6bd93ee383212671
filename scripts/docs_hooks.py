"""What the documentation takes from elsewhere in the repository (a hook of mkdocs)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)[^)]+\)")


def on_config(config: Any) -> Any:
    """The menu's findings are the pages that there are, one for each code."""
    pages = sorted(path.name for path in (ROOT / "docs/findings").glob("AC*.md"))
    entries = [{"All findings": "findings/README.md"}, *({name[:-3]: f"findings/{name}"} for name in pages)]
    config.nav = [{"Findings": entries} if "Findings" in entry else entry for entry in config.nav]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """``engine.md`` is the engine's own README; its links into the source become plain names."""
    if page.file.src_uri != "engine.md":
        return markdown
    readme = (ROOT / "engine/README.md").read_text(encoding="utf-8")
    return markdown + _LINK.sub(r"\1", readme.partition("\n")[2])
