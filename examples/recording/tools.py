"""The tools of the recorded agent. They are real: they read, search, edit and test the copy that they are given."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentctx.messages import Tool

MATCH_LIMIT = 60
OUTPUT_LIMIT = (
    12_000  # characters of test output that the model reads; the middle of longer output is left out
)


class ToolFailedError(Exception):
    """A tool could not do what it was asked; the message is what the model reads."""


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, str]:
    return {"type": "integer", "description": description}


def _schema(required: list[str], **properties: dict[str, str]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TOOLS = (
    Tool.of(
        "list_files",
        "List the files below a folder of the repository, with their number of lines.",
        _schema(["path"], path=_text("Folder, relative to the root of the repository.")),
    ),
    Tool.of(
        "read_file",
        "Read a text file, or the lines from first to last of it. Lines are numbered from 1.",
        _schema(
            ["path"],
            path=_text("File, relative to the root of the repository."),
            first=_number("First line to read. Default 1."),
            last=_number("Last line to read. Default: the end of the file."),
        ),
    ),
    Tool.of(
        "search",
        "Find the lines that match a regular expression (Python syntax) in the Python files below a folder.",
        _schema(
            ["pattern", "path"], pattern=_text("Regular expression."), path=_text("Folder or file to search.")
        ),
    ),
    Tool.of(
        "edit_file",
        "Replace a piece of text in a file. The old text must occur exactly once. Gives the change as a unified diff.",
        _schema(
            ["path", "old", "new"],
            path=_text("File, relative to the root of the repository."),
            old=_text("Text to replace, copied exactly, indentation included."),
            new=_text("Text to put in its place."),
        ),
    ),
    Tool.of(
        "write_file",
        "Write a new text file. An existing file is not overwritten.",
        _schema(["path", "content"], path=_text("File to create."), content=_text("Its whole content.")),
    ),
    Tool.of(
        "run_tests",
        "Run pytest on a file or folder and give its output. The second argument selects tests by name, as -k does.",
        _schema(["path"], path=_text("Test file or folder."), only=_text("Expression for pytest -k.")),
    ),
)


class Workspace:
    """A copy of the repository, and what the tools may do with it: nothing outside of it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._tools: dict[str, Callable[..., str]] = {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "search": self.search,
            "edit_file": self.edit_file,
            "write_file": self.write_file,
            "run_tests": self.run_tests,
        }

    def run(self, name: str, arguments: dict[str, object]) -> str:
        """Run a tool. A failure is a result too: the model reads what went wrong."""
        try:
            return self._tools[name](**arguments)
        except ToolFailedError as failure:
            return f"error: {failure}"

    def _inside(self, path: str) -> Path:
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root):
            raise ToolFailedError(f"{path} is outside of the repository")
        return found

    def _existing(self, path: str) -> Path:
        found = self._inside(path)
        if not found.exists():
            raise ToolFailedError(f"there is no {path}")
        return found

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def list_files(self, path: str) -> str:
        """Files below a folder with their line counts."""
        rows = [
            (self._name(file), file.read_bytes().count(b"\n"))
            for file in sorted(self._existing(path).rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
        ]
        return "\n".join(f"{lines:6d}  {name}" for name, lines in rows) or "no files"

    def read_file(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Numbered lines of a file."""
        lines = self._existing(path).read_text().splitlines()
        last = len(lines) if last is None else min(last, len(lines))
        if not 1 <= first <= last:
            raise ToolFailedError(f"{path} has {len(lines)} lines")
        body = "\n".join(f"{number:4d}  {lines[number - 1]}" for number in range(first, last + 1))
        return f"{path}, lines {first}-{last} of {len(lines)}\n{body}"

    def search(self, pattern: str, path: str) -> str:
        """Matching lines with file and line number."""
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise ToolFailedError(f"not a regular expression: {error}") from error
        start = self._existing(path)
        hits = []
        for file in sorted(start.rglob("*.py")) if start.is_dir() else [start]:
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if wanted.search(line):
                    hits.append(f"{self._name(file)}:{number}: {line.strip()}")
        if len(hits) > MATCH_LIMIT:
            hits[MATCH_LIMIT:] = [f"… {len(hits) - MATCH_LIMIT} more"]
        return "\n".join(hits) or "no match"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one piece of text and show the change."""
        file = self._existing(path)
        before = file.read_text()
        if before.count(old) != 1:
            raise ToolFailedError(f"the old text occurs {before.count(old)} times in {path}")
        after = before.replace(old, new)
        file.write_text(after)
        change = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=2)
        return "\n".join(change)

    def write_file(self, path: str, content: str) -> str:
        """Create a file."""
        file = self._inside(path)
        if file.exists():
            raise ToolFailedError(f"{path} exists; use edit_file")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return f"wrote {path}, {len(content.splitlines())} lines"

    def run_tests(self, path: str, only: str = "") -> str:
        """Run pytest in the copy; what depends on the machine is taken out of the output."""
        self._existing(path)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:randomly",
            "-p",
            "no:xdist",
            "--tb=short",
            path,
        ]
        if only:
            command += ["-k", only]
        source = os.pathsep.join([str(self.root), str(self.root / "engine")])
        environment = {
            **os.environ,
            "PYTHONPATH": source,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "AGENTCTX_REQUIRE_REAL": "",
            "COLUMNS": "100",
        }
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        # Warnings of plugins go to stderr; it matters only when the tests couldn't run at all.
        return self._portable(done.stdout if done.returncode in (0, 1) else done.stdout + done.stderr)

    def _portable(self, output: str) -> str:
        """The output without machine paths, addresses and durations, its middle left out when it is long."""
        for path, name in ((str(self.root), "."), (sys.prefix, "<venv>"), (sys.base_prefix, "<python>")):
            output = output.replace(path, name)
        output = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", output)
        output = re.sub(r"\bin \d+\.\d+s( \([0-9:]+\))?", "in 0.00s", output)
        output = re.sub(r"(<python>|<venv>)/lib/python[0-9.]+", r"\1", output).strip("\n")
        if len(output) > OUTPUT_LIMIT:
            half = OUTPUT_LIMIT // 2
            output = (
                f"{output[:half]}\n… {len(output) - OUTPUT_LIMIT} characters left out …\n{output[-half:]}"
            )
        return output
