"""`agentctx explain A B`: two requests of any format."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from agentctx.diagnosis.report import json_schema
from tests.diagnosis.healthy_sessions import make

from .command import Command

BODIES = make(11, "anthropic.messages", turns=5, replies=False).bodies


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two consecutive requests, the second with its tools turned around, each in a file of its own."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(BODIES[2], indent=2))
    second.write_text(json.dumps({"body": {**BODIES[3], "tools": BODIES[3]["tools"][::-1]}}))
    return first, second


def test_two_files(pair: tuple[Path, Path], command: Command) -> None:
    ended = command("explain", *pair)
    assert ended.code == 1
    assert ended.out.startswith(f"! AC103 tool-order  {pair[1]}:1, conversation 1  tools (order)")
    assert "    was: [" in ended.out
    assert "    now: [" in ended.out


def test_json(pair: tuple[Path, Path], command: Command) -> None:
    ended = command("explain", *pair, "--json", "--target", "chatml", "--cache", "paged:16")
    found = json.loads(ended.out)
    jsonschema.validate(found, json_schema())
    assert found["target"] == "chatml+paged:16"
    (finding,) = found["findings"]
    assert (finding["code"], finding["where"]) == ("AC103", "tools (order)")
    assert finding["loss"]["lost_tokens"] > finding["loss"]["paid_again_tokens"] > 100


def test_lines_of_a_log(tmp_path: Path, command: Command) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(body) + "\n" for body in BODIES))
    assert command("explain", f"{log}:2", f"{log}:3").code == 0
    ended = command("explain", log, f"{log}:3")
    assert ended.code == 2
    assert "several requests" in ended.err
    ended = command("explain", f"{log}:2", f"{log}:99")
    assert ended.code == 2
    assert "no request begins on line 99" in ended.err


def test_what_can_not_be_compared(pair: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"model": "m", "messages": [{"role": "system", "content": "x"}]}))
    ended = command("explain", pair[0], other)
    assert ended.code == 3
    assert "two APIs" in ended.err
    other.write_text("not JSON")
    ended = command("explain", pair[0], other)
    assert ended.code == 3
    assert f"{other}:1: " in ended.err
    assert command("explain", pair[0], tmp_path / "missing.json").code == 3


def talk(*texts: str) -> dict[str, object]:
    """A request of OpenAI chat: user and assistant in turn."""
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": [{"role": "system", "content": "Be brief and kind."}, *said]}


ASK = "It is 10:05. What is up in the garden today, and who waters the beds?"


@pytest.mark.parametrize(
    ("later", "code", "place"),
    [
        (talk(ASK), None, None),
        (talk(ASK, "Nothing much."), None, None),
        (talk(ASK.replace("10:05", "10:06")), "AC101", "messages[1].content@10"),
        (talk("Something else entirely, please."), "AC110", "messages[1].content@0"),
        (talk(), "AC112", "messages[1]"),
    ],
)
def test_the_later_request_is_known_to_follow(
    tmp_path: Path, command: Command, later: dict[str, object], code: str | None, place: str | None
) -> None:
    """In a log it might begin another conversation; two requests that are named have no such excuse."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(talk(ASK)))
    second.write_text(json.dumps(later))
    ended = command("explain", first, second, "--json")
    found = [(finding["code"], finding["where"]) for finding in json.loads(ended.out)["findings"]]
    assert found == ([(code, place)] if code else [])
    assert ended.code == (1 if code else 0)


def test_a_recording_in_which_no_model_answered(
    pair: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    unanswered = tmp_path / "unanswered.traj.json"
    unanswered.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "info": {}}))
    ended = command("explain", unanswered, pair[1])
    assert ended.code == 3
    assert f"{unanswered}:1: no request to a model in this file" in ended.err
