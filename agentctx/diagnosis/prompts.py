"""Breaks between finished prompts: one text, or one list of token ids, instead of messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentctx.common_ends import common_start
from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.classify import Setting, text_cause
from agentctx.diagnosis.texts import looks_like_summary, shared_share
from agentctx.diagnosis.views import View

# Where the first user message begins, in the layouts of common chat templates.
_USER = re.compile(
    r"<\|im_start\|>user|<start_of_turn>user|\[INST\]|<\|start_header_id\|>user|<\|user\|>|<\|start\|>user"
    r"|<\|turn>user|\n(?:User|Human|USER|### Instruction)\s*:"
)
_ANSWER = re.compile(r"assistant|<start_of_turn>model|\[/INST\]|\n(?:Assistant|ASSISTANT|### Response)\s*:")
_OPENING = re.compile(r"(?:<[^<>]{1,40}>|\[/?[A-Z_]{2,20}\]|assistant|model|user|[\s:#])+\Z")
_MARKUP = re.compile(r"<?[^<>\s]{0,24}\|>|<[^<>]{1,40}>?|\b(?:assistant|user|system|model|tool)\b|\s")
_PROBE = 48
_REACH = 20_000


def find_prompt_break(
    old: View, reply: str | Sequence[int], new: View, elapsed: float | None = None
) -> Break | None:
    """The first break between two finished prompts; ``reply`` was generated behind the earlier one."""
    before, after = old.prompt, new.prompt
    if isinstance(before, str) and isinstance(after, str):
        reference = before + reply if isinstance(reply, str) and after != before else before
        return _text_break(before, reference, after, new.path, elapsed)
    if isinstance(before, list) and isinstance(after, list):
        ids = [*before, *reply] if not isinstance(reply, str) and after != before else before
        return _ids_break(len(before), ids, after, new.path)
    return None


def _text_break(sent: str, reference: str, new: str, path: str, elapsed: float | None) -> Break | None:
    at = common_start(reference, new)
    if at == len(new) or at == len(reference):
        return None
    if at >= len(sent) and not reference[at:].strip():
        return _break("whitespace", reference, new, at, path)  # the blank end of the reply was cut off
    if _in_last_message(sent, new, at):
        return None  # nothing stood behind it that could be sent again
    gone, come = meeting(reference[at:], new[at:])
    if gone < 0 and not _reworded(reference, new, at, at >= len(sent)):
        if looks_like_summary(new[at : at + 600]):
            return _break("compaction", reference, new, at, path)
        return None
    if gone < 0:
        gone, come = len(reference) - at, len(new) - at
    word = _word(reference, new, at, gone, come, elapsed)
    return _break(word, reference, new, at, path)


def _break(word: str, reference: str, new: str, at: int, path: str) -> Break:
    return Break(word, f"{path}@{at}", "messages", reference, new, at, text_edit=True)


def _in_last_message(old: str, new: str, at: int) -> bool:
    """Whether two prompts differ in their newest message only, so far as their layout shows it."""
    if at >= len(old) or _USER.search(old, 0, at) is None:
        return False
    ends = (_OPENING.sub("", text[at:]) for text in (old, new))
    return not any(_ANSWER.search(end) or _USER.search(end) for end in ends)


def meeting(old: str, new: str) -> tuple[int, int]:
    """The nearest offsets at which both texts go on alike for a while; (-1, -1) when they never do."""
    best = (-1, -1)
    nearest = len(old) + len(new)
    for start in (*range(0, 256, 4), *range(256, min(len(old), _REACH), 64)):
        probe = old[start : start + _PROBE]
        if len(probe) < _PROBE or start >= nearest:
            break
        if len(_MARKUP.sub("", probe)) < _PROBE // 2:
            continue  # what stands between any two messages
        found = new.find(probe, 0, nearest - start + _PROBE)
        if found >= 0 and start + found < nearest:
            best, nearest = (start, found), start + found
    if best[0] < 0:
        return best
    # The probe may have met late: both texts may be alike for some characters before it.
    gone, come = best
    while gone > 0 and come > 0 and old[gone - 1] == new[come - 1]:
        gone, come = gone - 1, come - 1
    return gone, come


def _reworded(old: str, new: str, at: int, in_reply: bool) -> bool:
    """Whether what follows is another wording of the same last message (and not a new branch)."""
    if same_words(_core(old[at:]), _core(new[at:])):
        return True
    # The message may have begun before the first difference: compare from the start of its line.
    start = max(old.rfind("\n", 0, at) + 1, at - _REACH)
    left, right = _core(old[start:]), _core(new[start:])
    return not in_reply and bool(left) and bool(right) and shared_share(left, right) >= 0.5


def _core(text: str) -> str:
    """A message without the opening of the reply behind it."""
    return _OPENING.sub("", text[:_REACH])


def same_words(left: str, right: str) -> bool:
    """Whether one text begins with the other when white space is left out."""
    a, b = "".join(left.split()), "".join(right.split())
    return bool(a) and bool(b) and (a.startswith(b) or b.startswith(a))


def _word(old: str, new: str, at: int, gone: int, come: int, elapsed: float | None) -> str:
    user = _USER.search(old)
    head = user is not None and at < user.start()
    # Widen to whole lines, so that a number or a time is seen as a whole.
    start = max(old.rfind("\n", 0, at) + 1, at - 200)
    was, now = old[start : at + gone + 24], new[start : at + come + 24]
    taken, put = old[at : at + gone], new[at : at + come]
    if (gone >= 32 and come <= 2) or (come >= 32 and gone <= 2):
        if "".join(taken.split()) == "".join(put.split()):
            return "whitespace"
        if gone > come:
            return "history_trimmed" if _ANSWER.search(taken) else "message_removed"
        return "system_moved" if head else "message_inserted"
    if "".join(taken.split()) == "".join(put.split()):
        return "whitespace"
    if head and _same_lines(old, new, at, gone, come):
        return "tool_order"
    if looks_like_summary(put) and gone > come:
        return "compaction"
    return text_cause(
        was,
        now,
        at - start,
        Setting(head=head, elapsed=elapsed, result="tool" in old[max(0, at - 4000) : at]),
    )


def _same_lines(old: str, new: str, at: int, gone: int, come: int) -> bool:
    """Whether the lines around the difference are the same JSON objects in another order, as declared tools are."""
    start = old.rfind("\n", 0, at) + 1
    if not old.startswith("{", start) or not new.startswith("{", start):
        return False
    before, after = old[start : at + gone + _REACH], new[start : at + come + _REACH]
    lines = [line for line in before.split("\n") if line.startswith("{")]
    others = [line for line in after.split("\n") if line.startswith("{")]
    return lines != others and sorted(lines) == sorted(others)


def _ids_break(sent: int, old: Sequence[int], new: Sequence[int], path: str) -> Break | None:
    limit = min(len(old), len(new))
    at = next((i for i in range(limit) if old[i] != new[i]), limit)
    if at == limit:
        return None
    gone = _ids_meeting(old, new, at)
    if gone is None:
        return None if at >= sent else Break("message_edited", f"{path}[{at}]", "messages", item=at)
    word = "history_trimmed" if gone > 0 else "message_inserted"
    return Break(word, f"{path}[{at}]", "messages", item=at)


def _ids_meeting(old: Sequence[int], new: Sequence[int], at: int) -> int | None:
    """Ids taken out at ``at`` (negative: put in), when both lists go on alike; None when they don't."""
    probe = 16
    mark = list(new[at : at + probe])
    for i in range(at + 1, min(len(old) - probe, at + _REACH) + 1):
        if old[i] == mark[0] and list(old[i : i + probe]) == mark:
            return i - at
    mark = list(old[at : at + probe])
    for i in range(at + 1, min(len(new) - probe, at + _REACH) + 1):
        if new[i] == mark[0] and list(new[i : i + probe]) == mark:
            return at - i
    return None


def prompt_turn_off(old: View, new: View) -> Break | None:
    """Where a finished prompt leaves the earlier one (see ``breaks.turn_off``)."""
    before, after = old.prompt, new.prompt
    if isinstance(before, str) and isinstance(after, str):
        at = common_start(before, after)
        return None if at == len(before) else _break("branch", before, after, at, new.path)
    if isinstance(before, list) and isinstance(after, list):
        limit = min(len(before), len(after))
        at = next((i for i in range(limit) if before[i] != after[i]), limit)
        return None if at == len(before) else Break("branch", f"{new.path}[{at}]", "messages", at=at)
    return None


def carries_prompt_reply(old: View, reply: str | Sequence[int], new: View) -> bool:
    """Whether a finished prompt goes on with (nearly all of) the reply to the earlier one."""
    before, after = old.prompt, new.prompt
    if before is None or after is None or not reply or type(before) is not type(after):
        return False
    behind = after[len(before) : len(before) + len(reply)]
    if isinstance(behind, str) and isinstance(reply, str):
        return common_start(behind, reply) >= 0.9 * len(reply)
    return list(behind) == list(reply)


def shares_an_answer(old: View, new: View) -> bool:
    """Whether two finished prompts share more than the opening question: at least one answer of the model."""
    before, after = old.prompt, new.prompt
    if not isinstance(before, str) or not isinstance(after, str):
        return True  # token ids don't show it
    shared = before[: common_start(before, after)]
    user = _USER.search(shared)
    return user is not None and _ANSWER.search(shared, user.end()) is not None


def is_question(view: View) -> bool:
    """Whether a finished prompt holds no answer yet: what it has in common with another may come from anyone."""
    if not isinstance(view.prompt, str):
        return False  # token ids don't show it
    asked = _OPENING.sub("", view.prompt)
    user = _USER.search(asked)
    return user is not None and _ANSWER.search(asked, user.end()) is None
