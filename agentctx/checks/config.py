"""Configuration: what a project checks, in ``agentctx.toml`` or in ``[tool.agentctx]`` of its ``pyproject.toml``."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentctx.checks.builders.judging import allowed_words, variations
from agentctx.checks.log import known_codes
from agentctx.diagnosis import Target, parse_target
from agentctx.errors import InputError, UsageError

OWN, SHARED = "agentctx.toml", "pyproject.toml"
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _known(names: Callable[[list[str]], Iterable[str]]) -> AfterValidator:
    """A name that ``names`` knows, as it writes it. ``names`` raises ``UsageError`` for others, pydantic wants ``ValueError``."""

    def name(text: str) -> str:
        try:
            return next(iter(names([text])))
        except UsageError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(name)


def _codes(given: list[str]) -> Iterable[str]:
    return known_codes(given) if any(given) else given


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetTable(_Table):
    """``targets.NAME``: a template, with the tokenizer and the cache of the server that it is used on."""

    template: _Text
    tokenizer: _Text | None = None
    cache: _Text | None = None
    prefill_rate: float | None = Field(default=None, gt=0)


class TemplatesTable(_Table):
    """``templates``: chat templates, as files, folders or patterns, and how they are used."""

    paths: list[_Text] = Field(min_length=1)
    keywords: dict[str, Any] = Field(default_factory=dict)
    session: _Text | None = None


class BuilderTable(_Table):
    """``builders``: a prompt builder."""

    callable: Annotated[str, StringConstraints(pattern=r"^[\w.]+:[\w.]+$")]
    scenario: _Text | None = None
    target: _Text | None = None
    timeout: float = Field(default=20.0, gt=0)
    vary: list[Annotated[_Text, _known(variations)]] | None = None
    allow: list[Annotated[_Text, _known(allowed_words)]] = Field(default_factory=list)


class LogsTable(_Table):
    """``logs``: request logs or recorded sessions, and their budgets."""

    files: list[_Text] = Field(min_length=1)
    target: _Text | None = None
    max_rework_turn: int | None = Field(default=None, ge=0)
    max_rework_session: int | None = Field(default=None, ge=0)
    min_hit_rate: float | None = Field(default=None, ge=0, le=1)
    max_compactions: Annotated[str, StringConstraints(pattern=r"^\d+/[1-9]\d*$")] | None = None
    min_stable_prefix: int | None = Field(default=None, ge=1)
    allow: list[Annotated[_Text, _known(known_codes)]] = Field(default_factory=list)
    skip_others: bool = False


class SuppressTable(_Table):
    """``suppress``: findings that don't fail, and why. ``subject`` and ``case`` are patterns; ``code`` is a code or its name, empty for all."""

    subject: _Text
    reason: _Text
    case: str = "*"
    code: Annotated[str, _known(_codes)] = ""


class Config(_Table):
    """The whole configuration. ``target``: of builders and logs that name none; ``baseline``: a file of accepted findings."""

    target: _Text = "as-sent"
    baseline: _Text | None = None
    targets: dict[str, TargetTable] = Field(default_factory=dict)
    templates: list[TemplatesTable] = Field(default_factory=list)
    builders: list[BuilderTable] = Field(default_factory=list)
    logs: list[LogsTable] = Field(default_factory=list)
    suppress: list[SuppressTable] = Field(default_factory=list)

    def named_target(self, name: str | None) -> Target:
        """The target of that name (the default one for ``None``); any other name is one for ``parse_target``."""
        wanted = name or self.target
        table = self.targets.get(wanted)
        if table is None:
            return parse_target(wanted)
        return parse_target(
            table.template, tokenizer=table.tokenizer, cache=table.cache, prefill_rate=table.prefill_rate
        )


@dataclass(frozen=True, slots=True)
class Project:
    """A configuration and the folder that its paths start from. ``file`` is where it stands."""

    config: Config
    root: Path
    file: Path


def find_config(start: Path) -> Path | None:
    """The nearest configuration in a folder or above it; ``agentctx.toml`` goes before ``pyproject.toml``."""
    for folder in (start.resolve(), *start.resolve().parents):
        own, shared = folder / OWN, folder / SHARED
        if own.is_file():
            return own
        if shared.is_file() and "agentctx" in _tool(_parsed(shared)):
            return shared
    return None


def read_config(file: Path) -> Project:
    """Read a configuration. Raises ``InputError`` naming file and field, and what to do."""
    data = _parsed(file)
    if file.name == SHARED:
        tool = _tool(data)
        if "agentctx" not in tool:
            raise InputError(
                "has no table [tool.agentctx]", file=str(file), remedy="`agentctx init` writes a start"
            )
        data, prefix = tool["agentctx"], "tool.agentctx"
    else:
        prefix = ""
    try:
        config = Config.model_validate(data, strict=False)
    except ValidationError as error:
        raise _told(error, file, prefix) from None
    return Project(config, file.parent.resolve(), file)


def need_config(given: Path | None, start: Path) -> Project:
    """The configuration that is named, or the nearest one. Raises ``UsageError`` when there is none."""
    file = given or find_config(start)
    if file is None:
        raise UsageError(
            f"nothing to check: there is no {OWN} and no [tool.agentctx] in {SHARED} from here upwards; "
            "`agentctx init` writes a start, `agentctx check template FILE` checks without one"
        )
    return read_config(file)


def target_by_name(name: str, start: Path) -> Target:
    """The target that the nearest configuration calls so; else the one that ``parse_target`` knows."""
    file = find_config(start)
    if file is not None:
        config = read_config(file).config
        if name in config.targets:
            return config.named_target(name)
    return parse_target(name)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", file=str(file)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8: {error.reason} at byte {error.start}", file=str(file)) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _LINE.search(str(error))
        line = int(place.group(1)) if place else text.count("\n") + 1  # else: at the end of the document
        problem = f"is no TOML: {_LINE.sub('', str(error)).strip()}"
        raise InputError(problem, file=str(file), line=line) from None


def _tool(data: dict[str, Any]) -> dict[str, Any]:
    tool = data.get("tool")
    return tool if isinstance(tool, dict) else {}


def _told(error: ValidationError, file: Path, prefix: str) -> InputError:
    """The first problem, with its field as one writes it and what to do."""
    first = error.errors()[0]
    place = _field((*prefix.split("."), *first["loc"]) if prefix else first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _siblings(first["loc"]), 1)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(_siblings(first['loc']))}"
        return InputError("there is no such setting", file=str(file), field=place, remedy=remedy)
    if first["type"] == "missing":
        last = str(first["loc"][-1])
        remedy = "say why it is accepted" if last == "reason" else f"add {last}"
        return InputError("a setting is missing", file=str(file), field=place, remedy=remedy)
    if first["type"] == "value_error":  # a validator of ours, which says what to write
        problem, _, remedy = str(first["ctx"]["error"]).partition("; ")
        return InputError(problem, file=str(file), field=place, remedy=remedy or None)
    problem = first["msg"][:1].lower() + first["msg"][1:]
    return InputError(problem, file=str(file), field=place, remedy=_REMEDIES.get(str(first["loc"][-1])))


_REMEDIES = {
    "callable": "write MODULE:CALLABLE, such as app.prompts:build",
    "max_compactions": "write how many in how many turns, such as 1/50",
    "min_hit_rate": "write a share between 0 and 1",
    "reason": "say why it is accepted",
}
_TABLES: dict[str, type[BaseModel]] = {
    "targets": TargetTable,
    "templates": TemplatesTable,
    "builders": BuilderTable,
    "logs": LogsTable,
    "suppress": SuppressTable,
}


def _siblings(place: Sequence[str | int]) -> list[str]:
    table = _TABLES.get(str(place[0]), Config) if len(place) > 1 else Config
    return list(table.model_fields)


def _field(place: Sequence[str | int]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


START = """# agentctx: what `agentctx check` looks at. Paths are relative to this file.
# The same can stand in pyproject.toml, under [tool.agentctx].

# The server for which builders and logs are judged: as-sent (the strictest), a provider (anthropic, openai, …), a built-in
# layout (chatml), or one of the targets below.
target = "as-sent"

# Accepted findings; `agentctx check --update-baseline --reason "…"` writes it.
# baseline = "agentctx-baseline.json"

# A server of your own: its chat template, tokenizer and cache.
# [targets.coder]
# template = "templates/coder.jinja"     # a template, a GGUF or a checkpoint's folder
# tokenizer = "tokenizer.json"           # for exact token counts
# cache = "paged:16"                     # `agentctx compare --list` describes all
# prefill_rate = 1670                    # tokens per second, for costs in seconds

# Chat templates: does every prompt extend the one before?
# [[templates]]
# paths = ["templates/*.jinja"]
# keywords = { enable_thinking = true }

# Prompt builders: functions that turn the messages so far into a request.
# [[builders]]
# callable = "app.prompts:build"
# scenario = "sessions/one.jsonl"        # default: a built-in session
# vary = ["hash-seed", "clock", "cwd", "locale", "timezone"]
# timeout = 20

# Request logs or recorded sessions, with budgets.
# [[logs]]
# files = ["sessions/*.jsonl"]
# max_rework_session = 2000
# min_hit_rate = 0.9
# max_compactions = "1/50"

# What is accepted, and why.
# [[suppress]]
# subject = "app.prompts:*"
# code = "AC101"
# reason = "the demo shows the clock"
"""
