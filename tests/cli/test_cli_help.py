"""What `--help` says: something of every command, argument and option, and defaults that are the real ones."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
import typer

from agentctx.cli import app
from agentctx.compare import DEFAULT_POLICIES
from agentctx.replaying.live import DEFAULT_CACHE, DEFAULT_LAYOUT

from .command import Command

# Options without a default are those that change nothing when they aren't given.
NO_DEFAULT = {
    "output", "reason", "base", "report", "keyword", "allow", "max_rework_turn", "rework_turn", "rework_session",
    "hit_rate", "compactions", "stable_prefix", "observe", "version", "help", "tokenizer", "baseline", "files",
}  # fmt: skip


def commands(group: click.Command, name: str = "agentctx") -> Iterator[tuple[str, click.Command]]:
    yield name, group
    for each, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {each}")


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_all_commands_are_here() -> None:
    assert {name.partition(" ")[2] for name in COMMANDS} == {
        "", "init", "explain", "compare", "run", "doctor", "check", "check build", "check log", "check template",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does_and_what_holds_without_it(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        if parameter.name in ("help", "install_completion", "show_completion"):
            continue
        text = getattr(parameter, "help", None)
        assert text, f"{name} {parameter.name}"
        assert text.endswith("."), text
        flag = getattr(parameter, "is_flag", False)
        said = parameter.required or flag or parameter.name in NO_DEFAULT or "Default" in text
        assert said or parameter.default is not None, f"{name} {parameter.name} tells no default"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_pages_are_whole(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = command(*name.split()[1:], "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "..." not in ended.out.partition("Commands:")[2], "a command's short help is cut"
    if name != "agentctx init":
        assert "Exit codes: 0" in ended.out
    for parameter in COMMANDS[name].params:
        assert all(option in ended.out for option in parameter.opts if option.startswith("--"))


def test_defaults_of_compare_are_those_that_it_takes(command: Command) -> None:
    text = " ".join(command("compare", "--help").out.split())
    assert all(policy in text for policy in DEFAULT_POLICIES)
    assert f"Default: {DEFAULT_CACHE}." in text
    assert f"Default: {DEFAULT_LAYOUT}." in text
