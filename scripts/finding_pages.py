"""Write ``docs/findings`` from the registry of causes."""

from __future__ import annotations

from pathlib import Path

from agentctx.diagnosis.pages import all_pages

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "findings"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in all_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
