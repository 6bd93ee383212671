"""What a newcomer meets first: each error says in one line what is wrong and what to do, and shows no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.llama_server import free_port

from .command import Command

SESSION = "examples/sessions/add-pauses.jsonl"


@pytest.fixture
def folder(tmp_path: Path, root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a session, an empty file, one of another kind, and an empty folder."""
    (tmp_path / "session.jsonl").write_bytes((root_dir / SESSION).read_bytes())
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.txt").write_text("no log\n")
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("check log missing.jsonl", 3, "missing.jsonl: no such file or folder; check the path"),
        ("check log empty.jsonl", 3, "empty.jsonl:1: the file is empty; give a log"),
        ("check log notes.txt", 3, "notes.txt:1: "),
        ("check log nothing", 3, "nothing: the folder holds no files; name a folder of"),
        ("check log session.jsonl -t qwen", 2, "unknown target 'qwen'; known: as-sent, anthropic"),
        ("check log session.jsonl -t qwen.jinja", 2, "target 'qwen.jinja': there is no file or folder 'qwen.jinja'; known"),
        ("check log session.jsonl -t chatml@o200k_base", 2, "takes an encoding behind a colon, chatml:o200k_base"),
        ("check log session.jsonl --cache slot", 2, "name a template or a layout"),
        ("check log session.jsonl --allow AC1", 2, "write a code such as AC101, or its name"),
        ("check log session.jsonl --allow volatile", 2, "did you mean volatile-text?"),
        ("check log session.jsonl --report sarif=.", 2, ". can't be written: Is a directory; name another file"),
        ("check template missing.jinja", 2, "missing.jinja isn't there; name a template"),
        ("check template nothing", 2, "nothing holds no chat template (*.jinja"),
        ("check build app.prompts", 2, "write MODULE:CALLABLE, such as app.prompts:build"),
        ("check build json:dumps --scenario missing.jsonl", 3, "missing.jsonl: can't open the file"),
        ("check", 2, "`agentctx init` writes a start"),
        ("init missing", 2, "'missing' does not exist"),
        ("compare", 2, "name files or folders, for example"),
        ("compare missing.jsonl", 3, "missing.jsonl: no such file or folder; check the path"),
        ("compare empty.jsonl", 3, "1 file could not be read; see above"),
        ("compare session.jsonl -p append", 2, "no policy is called 'append'; choose from append-only"),
        ("compare session.jsonl --cache vllm", 2, "unknown cache 'vllm'; choose one of paged, radix"),
        ("compare session.jsonl --layout qwen", 2, "unknown renderer 'qwen'; known: chatml"),
        ("compare session.jsonl --observe vllm", 2, "neither 'engine' nor a URL such as http://"),
        ("compare session.jsonl -p append-only --cache paged:block=16,capacity=99", 3, "is too small for a prompt of"),
        ("compare session.jsonl -p append-only --cache radix:page=1,capacity=1000", 3, "give it a larger capacity"),
        ("check log session.jsonl -t chatml --cache paged:block=16,capacity=99", 3, "is too small for a prompt of"),
        ("run session.jsonl -b localhost:8080", 2, "neither 'engine' nor a URL such as http://"),
        ("run session.jsonl -b http://127.0.0.1:PORT", 3, "can't connect to http://127.0.0.1:PORT: "),
        ("run session.jsonl -b http://127.0.0.1:PORT/v1", 3, "is the server running?"),
        ("doctor http://127.0.0.1:PORT", 3, "is the server running?"),
        ("doctor localhost:8080", 2, "begins with http:// or https:// and names a host"),
        ("explain session.jsonl missing.json", 2, "holds several requests; name one by its line: session.jsonl:6"),
        ("explain missing.json session.jsonl:6", 3, "missing.json: can't open the file"),
    ],
)  # fmt: skip
def test_it_says_what_to_do(folder: Path, command: Command, line: str, code: int, says: str) -> None:
    port = str(free_port())
    ended = command(*line.replace("PORT", port).split())
    assert ended.code == code, ended.err
    assert says.replace("PORT", port) in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


def test_nothing_is_printed_where_nothing_was_compared(folder: Path, command: Command) -> None:
    assert command("compare", "empty.jsonl").out == ""


def test_a_template_without_a_network(folder: Path, command: Command) -> None:
    ended = command("check", "template", f"http://127.0.0.1:{free_port()}/chat.jinja")
    assert ended.code == 3
    assert "can't be fetched: ConnectError; check the address, and whether there is a network" in ended.out


@pytest.mark.parametrize("line", ["run -b engine session.jsonl", "compare --observe engine session.jsonl"])
def test_the_engine_without_torch(folder: Path, line: str) -> None:
    """In a process of its own, in which torch can't be imported."""
    program = "import sys; sys.modules['torch'] = None; from agentctx.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split(), "-p", "append-only"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: the bundled engine needs torch; install it with: pip install 'agentctx-sdk[engine]'"
    )


def test_what_cannot_be_written_leaves_nothing_behind(folder: Path, command: Command) -> None:
    before = sorted(folder.iterdir())
    ended = command("compare", "session.jsonl", "-p", "append-only", "-o", "notes.txt/report.html")
    assert ended.code == 2
    assert "notes.txt/report.html can't be written: " in ended.err
    assert sorted(folder.iterdir()) == before
