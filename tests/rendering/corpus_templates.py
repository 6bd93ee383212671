"""The shared chat templates and the tables of what is known about them."""

from __future__ import annotations

import gc
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

Row = dict[str, str]


def rows(folder: Path, name: str) -> list[Row]:
    """A table: raw tab-separated text, without quoting."""
    head, *lines = (folder / name).read_text(encoding="utf-8").split("\n")
    return [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines if line]


def special_tokens(folder: Path) -> dict[str, dict[str, str]]:
    """Each template's bos and eos token, by the template's name."""
    return {
        row["name"]: {
            "bos_token": json.loads(row["bos"] or '""'),
            "eos_token": json.loads(row["eos"] or '""'),
        }
        for row in rows(folder, "INDEX.tsv")
    }


def sources(folder: Path) -> dict[str, str]:
    """Each template's text by its name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def subjects(folder: Path) -> list[tuple[str, str, dict[str, str]]]:
    """(name, text, bos and eos token) of each template."""
    tokens = special_tokens(folder)
    usual = {"bos_token": "<s>", "eos_token": "</s>"}
    return [(name, text, tokens.get(name, usual)) for name, text in sources(folder).items()]


def processes() -> ProcessPoolExecutor:
    """To share the templates among. What they take over from a large process needs no collecting in each."""
    return ProcessPoolExecutor(min(4, os.cpu_count() or 1), initializer=gc.freeze)
