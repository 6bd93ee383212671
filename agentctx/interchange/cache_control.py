"""Where the cache markers of an Anthropic request stand, by one rule.

The API takes four markers, and a marker finds an entry that an earlier request wrote at most 20 blocks before it. A turn
with many parallel calls adds more blocks than that. So the four stand on the last tool, the last system block, the end
of the newest user message, and the end of the user message that was newest in the request before: there an entry was
written, so the look-back is never needed, however long the turn was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Life = Literal["5m", "1h"]

_FIELD = "cache_control"


def with_markers(
    body: Mapping[str, Any], *, ttl: Life | None = None, sent: int | None = None
) -> dict[str, Any]:
    """A copy of an Anthropic request body with its markers placed by the rule; those that it had are taken away.

    ``sent``: how many messages the request before had, where that is known; without it the newest user message before
    the last assistant message is taken. Contents of user and system messages become lists of blocks, whether they are
    marked this time or not, so that a marker that moves on changes no byte of the content.
    """
    marker: dict[str, str] = {"type": "ephemeral"} | ({} if ttl is None else {"ttl": ttl})
    result = dict(body)
    if body.get("tools"):
        tools = [_bare(tool) for tool in body["tools"]]
        tools[-1] = {**tools[-1], _FIELD: marker}
        result["tools"] = tools
    if body.get("system"):
        result["system"] = _marked(_blocks(body["system"]), marker)
    messages = [_bare_message(message) for message in body["messages"]]
    for index in _places(messages, sent):
        messages[index] = {**messages[index], "content": _marked(messages[index]["content"], marker)}
    result["messages"] = messages
    return result


def newest_users(users: Sequence[int], replies: Sequence[int], sent: int | None = None) -> list[int]:
    """Of user messages that can carry a marker: the newest one, and the one that was newest in the request before.

    ``users``, ``replies``: their indices and those of the assistant messages, in order. ``sent``: as of ``with_markers``.
    """
    if sent is None:
        sent = replies[-1] if replies else 0
    before = [index for index in users if index < sent]
    return sorted({*users[-1:], *before[-1:]})


def _places(messages: list[dict[str, Any]], sent: int | None) -> list[int]:
    users, replies = (
        [index for index, message in enumerate(messages) if message["role"] == role]
        for role in ("user", "assistant")
    )
    markable = [index for index in users if any(map(_can_carry, messages[index]["content"]))]
    return newest_users(markable, replies, sent)


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_bare(block) for block in content]


def _bare_message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "user" and content:
        return {**message, "content": _blocks(content)}
    if isinstance(content, list):
        return {**message, "content": [_bare(block) for block in content]}
    return dict(message)


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block or tool without its marker, nested blocks of a tool result included."""
    bare = {key: value for key, value in block.items() if key != _FIELD}
    if bare.get("type") == "tool_result" and isinstance(bare.get("content"), list):
        bare["content"] = [_bare(inner) for inner in bare["content"]]
    return bare


def _can_carry(block: Any) -> bool:
    """Whether a block takes a marker: not thinking, and no text that is empty."""
    if not isinstance(block, dict) or block.get("type") in ("thinking", "redacted_thinking"):
        return False
    return block.get("type") != "text" or bool(block.get("text"))


def _marked(blocks: list[dict[str, Any]], marker: Mapping[str, str]) -> list[dict[str, Any]]:
    last = next((index for index in range(len(blocks) - 1, -1, -1) if _can_carry(blocks[index])), None)
    if last is None:
        return blocks
    return [{**block, _FIELD: dict(marker)} if index == last else block for index, block in enumerate(blocks)]
