"""Guard: an agent keeps its own message list, and every turn is checked before it is sent.

No History is needed and no shape is imposed: the guard takes what the agent passes to its client (OpenAI chat, OpenAI
Responses or Anthropic messages, as dictionaries or as the client's own objects) and compares it with what was sent the
turn before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from agentctx.diagnosis import Api, Exchange, Finding, Target, detect_api, diagnose
from agentctx.errors import AgentctxError, InputError
from agentctx.interchange import write_request
from agentctx.messages import Message, Request, Tool

Mode = Literal["strict", "warn"]


class PrefixChanged(AgentctxError):
    """A request changes what an earlier one carried. ``findings`` say where and why; nothing was sent."""

    exit_code: ClassVar[int] = 1

    def __init__(self, turn: int, findings: Sequence[Finding]) -> None:
        first = findings[0]
        texts = f"\n  was: {first.was}\n  now: {first.now}" if first.was or first.now else ""
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(
            f"turn {turn}: {first.code} {first.info.word} at {first.place}{more}{texts}\n  remedy: {first.remedy}"
        )
        self.turn = turn
        self.findings = tuple(findings)


class Guard:
    """Checks one conversation's requests, one a turn.

    ``strict`` raises ``PrefixChanged`` before anything is sent, and the request does not count; ``warn`` returns the
    findings and goes on from the new request. A target (``parse_target``) checks the prompts of a real chat template
    instead of the bodies as they are sent. What an API doesn't read (markers that move, empty fields that come and go) is
    no change.
    """

    def __init__(
        self, mode: Mode = "strict", *, api: Api | None = None, target: Target | None = None
    ) -> None:
        self.mode: Mode = mode
        self.turns = 0
        self.epochs = 1
        self.findings: list[Finding] = []
        self._api = api
        self._target = target
        self._last: _Sent | None = None
        self._reply: Mapping[str, Any] | None = None
        self._compacted = False

    def check(
        self,
        messages: Iterable[Any],
        tools: Iterable[Any] | None = None,
        *,
        system: Any = None,
        **params: Any,
    ) -> list[Finding]:
        """Check the request that is about to be sent: messages (or Responses items), tools, and Anthropic's system.

        ``params`` are further fields of the body that the provider's cache depends on, such as ``model``. Returns the
        findings of this turn, none when the request extends the one before. Raises ``PrefixChanged`` in strict mode and
        ``InputError`` naming the item that is no JSON.
        """
        items = list(messages)
        body: dict[str, Any] = {key: value for key, value in params.items() if value is not None}
        key = "input" if self._takes_items(items) else "messages"
        if system is not None:
            body["instructions" if key == "input" else "system"] = system
        body[key] = _provider_items(items)
        if tools is not None:
            body["tools"] = _provider_tools(tools)
        return self.check_request(body)

    def check_request(self, body: Mapping[str, Any]) -> list[Finding]:
        """Check a whole request body, as :meth:`check` does."""
        if self._api is None:
            self._api = detect_api(_plain(body))
        now = _Sent(body, self._api)
        turn = self.turns + 1
        findings = self._compare(now, turn)
        if findings and self.mode == "strict":
            raise PrefixChanged(turn, findings)
        self.turns = turn
        self.epochs += self._compacted
        self.findings += findings
        self._last, self._reply, self._compacted = now, None, False
        return findings

    def replied(self, response: Mapping[str, Any] | Any) -> None:
        """Say what the provider answered, body or client object, so that a reply stored otherwise is found too."""
        self._reply = _plain(response)

    def compacted(self) -> None:
        """Announce that the next request is rewritten on purpose: a new epoch begins with it."""
        self._compacted = True

    @property
    def newest(self) -> Exchange | None:
        """The request that was checked last, with its answer where it is known."""
        return self._last.exchange(self._reply) if self._last is not None else None

    def _takes_items(self, items: Sequence[Any]) -> bool:
        if self._api is not None:
            return self._api == "openai.responses"
        return any(
            isinstance(item, Mapping) and "role" not in item and "type" in item for item in map(_plain, items)
        )

    def _compare(self, now: _Sent, turn: int) -> list[Finding]:
        before = self._last
        if before is None or self._compacted:
            return []
        # A template may change what the client left alone, so an equal beginning proves nothing about its prompts.
        renders = self._target is not None and self._target.renderer is not None
        if self._reply is None and not renders and now.extends(before):
            return []
        previous, current = before.exchange(self._reply), now.exchange(None)
        diagnosis = diagnose(previous, current, self._target)
        findings = [finding for finding in diagnosis.findings if finding.verdict == "broken"]
        for finding in findings:
            finding.turn = turn
        return findings


class _Sent:
    """A request as it was when it was checked: texts, so that a list that changes in place can't change it."""

    def __init__(self, body: Mapping[str, Any], api: Api) -> None:
        self.api = api
        self.key = "input" if api == "openai.responses" else "messages"
        items = body.get(self.key)
        self.items = (
            [_text(item, f"{self.key}[{index}]") for index, item in enumerate(items)]
            if isinstance(items, list | tuple)
            else [_text(items, self.key)]
        )
        self.whole = isinstance(items, list | tuple)
        self.rest = {key: _text(value, key) for key, value in body.items() if key != self.key}

    def extends(self, before: _Sent) -> bool:
        """Whether nothing that was sent before is different, to the byte."""
        return (
            self.whole
            and before.whole
            and self.rest == before.rest
            and self.items[: len(before.items)] == before.items
        )

    def exchange(self, response: Mapping[str, Any] | None) -> Exchange:
        """The request, and what was answered, as diagnosis takes it."""
        items = [json.loads(item) for item in self.items]
        body = {key: json.loads(value) for key, value in self.rest.items()}
        return Exchange(self.api, {**body, self.key: items if self.whole else items[0]}, response)


def _text(value: Any, where: str) -> str:
    """Canonical JSON, made in one pass: every turn reads the whole list again, because it may have changed anywhere."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_dumped)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: {error}", field=where, remedy="pass what the client sends") from None


def _plain(value: Any) -> Any:
    """JSON data of a value in which objects of the SDKs (pydantic models) may stand, as the SDKs send them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _dumped(value) if hasattr(value, "model_dump") else value


def _dumped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} is no JSON value")
    return value.model_dump(mode="json", exclude_unset=True)


def _provider_items(items: Sequence[Any]) -> list[Any]:
    """The items, with agentctx's own messages in the form of OpenAI chat."""
    return [
        write_request("openai.chat", Request(messages=(item,)))["messages"][0]
        if isinstance(item, Message)
        else item
        for item in items
    ]


def _provider_tools(tools: Iterable[Any]) -> list[Any]:
    return [
        write_request("openai.chat", Request(tools=(tool,)))["tools"][0] if isinstance(tool, Tool) else tool
        for tool in tools
    ]
