"""``agentctx check template URL`` against a live llama-server: its own template is checked, as the file would be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ChatModelFile, StartServer

pytestmark = [pytest.mark.real, pytest.mark.corpus]


def checked(place: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "agentctx", "check", "template", place, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["templates"][0]
    return found


def test_the_template_of_a_running_server(
    chat_model: ChatModelFile, start_server: StartServer, shared_dir: Path
) -> None:
    server = start_server(chat_model("Qwen 3"), n_parallel=1)
    live = checked(server.url)
    file = checked(str(shared_dir / "corpus" / "templates" / "Qwen-Qwen3-0.6B.jinja"))
    assert [case["calls"] for case in live["cases"]] == [case["calls"] for case in file["cases"]]
    assert [each["line"] for each in live["findings"]] == [each["line"] for each in file["findings"]]
    assert live["file"].startswith(server.url)
    # And from the GGUF, whose own vocabulary counts exactly.
    packed = checked(str(chat_model("Qwen 3")))
    assert [case["calls"] for case in packed["cases"]] == [case["calls"] for case in file["cases"]]
    assert packed["cost"]["exact"]
    assert not live["cost"]["exact"]
