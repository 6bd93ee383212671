"""Values that were cut before they came into a log: exporters limit their length and their number.

A cut JSON text is found for certain: it is no JSON any more. A cut plain text looks like a short one; what gives it away is that several
different texts are equally long and none is longer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentctx.traces.containers.draft import Json
from agentctx.traces.source import parse_text

_LISTS = frozenset(("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.definitions"))
_SCHEMA = re.compile(r"llm\.tools\.\d{1,6}\.tool\.json_schema\Z")
# JSON, or plain text in some instrumentations.
_MAYBE = re.compile(
    r"(?:gen_ai\.system_instructions|gen_ai\.prompt|gen_ai\.completion|llm\.invocation_parameters"
    r"|llm\.request\.functions\.\d{1,6}\.parameters)\Z"
)
OF_EVENTS = frozenset(("tool_calls", "message"))
_JSON_START = re.compile(r"\s*(?:\[\s*(?:\{\s*(?:\"|\Z)|\Z)|\{\s*(?:\"|\Z))")
_WHOLE_CALL = ("input.value", "output.value")  # OpenInference keeps the call's own JSON beside its messages
_LITELLM = re.compile(r"\.\.\. \(litellm_truncated (?:skipped )?\d+ chars\b")


def opened(attributes: Json, *, more: Collection[str] = ()) -> tuple[Json, str]:
    """The attributes with their JSON texts read, and what is wrong with the first that isn't whole (empty: nothing).

    ``more``: names that may hold JSON, too.
    """
    made, problem = dict(attributes), ""
    for name, value in attributes.items():
        if not isinstance(value, str):
            if name in _LISTS and value is not None and not isinstance(value, list):
                problem = problem or f"{name} is no list"
            continue
        strict = name in _LISTS or _SCHEMA.match(name) is not None
        maybe = name in more or _MAYBE.match(name) is not None
        if not strict and not (maybe and _JSON_START.match(value)):
            continue
        if not value and name in _LISTS and name != "gen_ai.input.messages":
            continue  # nothing was there
        try:
            found = parse_text(value)
        except ValueError:
            problem = problem or f"{name} is no whole JSON after {len(value):,} characters"
            continue
        if strict and not isinstance(found, list if name in _LISTS else dict):
            problem = problem or f"{name} is no {'list' if name in _LISTS else 'object'}"
            continue
        made[name] = found
    return made, problem


def dropped(holder: Mapping[str, Any], what: str = "attributes") -> str:
    """Says so where an exporter counts what it left out of a span or an event."""
    count = holder.get(f"dropped{what.title()}Count", holder.get(f"dropped_{what}_count"))
    return f"{count} of its {what} were dropped" if isinstance(count, int) and count > 0 else ""


def gap(indices: list[int], prefix: str) -> str:
    """Says so where messages that are numbered from 0 are missing."""
    missing = next((want for want, index in enumerate(sorted(indices)) if want != index), None)
    return "" if missing is None else f"{prefix}{missing} is missing"


def beside(attributes: Mapping[str, Any], messages: list[Json]) -> str:
    """Says so where the call's own JSON was cut, and a text of its messages at the same length."""
    for name in _WHOLE_CALL:
        value = attributes.get(name)
        if not isinstance(value, str) or not _JSON_START.match(value):
            continue
        if any(len(text) == len(value) for text in texts_of(messages)):
            try:
                parse_text(value)
            except ValueError:
                return f"{name} and a message are cut after {len(value):,} characters"
    return ""


def marked(value: Any) -> str:
    """Says so where LiteLLM wrote into a text that it shortened it."""
    found = next((match for text in texts_of(value) if (match := _LITELLM.search(text))), None)
    return f"a text was shortened: {found[0].removeprefix('... (')}" if found else ""


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a value but roles and types, which readers put in."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack += (inner for name, inner in item.items() if name not in ("type", "role"))
        elif isinstance(item, list):
            stack += item


class Lengths:
    """The longest texts of a log whose texts stand in values of their own. Holds no text."""

    def __init__(self) -> None:
        self._longest = -1
        self._seen: set[int] = set()
        self._line = 1

    def take(self, value: Any, line: int) -> None:
        """The texts of one request."""
        for text in texts_of(value):
            if len(text) > self._longest:
                self._longest, self._seen, self._line = len(text), {hash(text)}, line
            elif len(text) == self._longest:
                self._seen.add(hash(text))

    def doubt(self) -> tuple[str, int] | None:
        """Why the texts may have been cut, and the line of the first; ``None`` when nothing looks so."""
        size, count = self._longest, len(self._seen)
        if size == 0:
            return "every text is empty", self._line
        if count >= 2:
            what = f"{count} different texts end after {size:,} characters"
        elif size >= 64 and (size % 250 == 0 or size & (size - 1) == 0 or size & (size + 1) == 0):
            what = f"a text ends after just {size:,} characters"
        else:
            return None
        return (
            f"{what} and none is longer: if an exporter cut them there, what stands behind was not checked",
            self._line,
        )
