"""How findings are folded: what counts as the same break again, what recurs, what is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding, Folder, Loss, shape_of


class Log:
    """Feeds a folder as a judge does: the conversation counts each request, and its break."""

    def __init__(self) -> None:
        self.folder = Folder()
        self.conversation = Conversation(1, "openai.chat", "m")

    def clean(self, turn: int) -> None:
        self.conversation.saw(turn)

    def add(self, cause: str, turn: int, place: str | None = "messages[1].content@4", **more: Any) -> Finding:
        self.conversation.saw(turn)
        zone = more.pop("zone", "messages")
        finding = Finding(cause, "broken", more.pop("conversation", 1), turn, place, zone, **more)
        if not finding.suspected:
            self.conversation.broke(turn)
        return self.folder.add(finding, self.conversation)

    def found(self) -> list[tuple[str, int]]:
        return [(finding.cause, finding.count) for finding in self.folder.findings]


def test_the_same_cause_at_the_same_kind_of_place_is_one_finding() -> None:
    log = Log()
    first = log.add("whitespace", 1, "messages[1].content@4", loss=Loss(10, 20, True, 0.5, 0.01))
    again = log.add("whitespace", 2, "messages[3].content@9", loss=Loss(1, 2, True, 0.25, 0.02))
    assert again is first
    assert (first.count, first.turns, first.turn) == (2, [1, 2], 1)
    assert first.loss == Loss(11, 22, True, 0.75, 0.03)
    log.add("whitespace", 3, "system@4")
    log.add("message_removed", 4)
    log.add("whitespace", 5, conversation=2)
    assert log.found() == [("whitespace", 2), ("whitespace", 1), ("message_removed", 1), ("whitespace", 1)]


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        (Loss(), Loss(1, 2, True, 3.0, 4.0), Loss(1, 2, False, 3.0, 4.0)),
        (Loss(1, 2, True, 3.0, 4.0), Loss(), Loss(1, 2, False, 3.0, 4.0)),
        (Loss(1, 2, True), Loss(3, 4, True), Loss(4, 6, True)),
        (Loss(), Loss(), Loss()),
    ],
)
def test_losses_add_up_where_they_are_known(left: Loss, right: Loss, total: Loss) -> None:
    left.add(right)
    assert left == total


def test_a_place_has_a_shape() -> None:
    assert shape_of("messages[12].content[3].text@77") == "messages.content.text"
    assert shape_of(None) == ""


@pytest.mark.parametrize(
    ("first", "second", "place", "kept"),
    [
        ("message_edited", "volatile_text", "messages[1].content@4", [("volatile_text", 2)]),
        ("volatile_text", "message_edited", "messages[1].content@68", [("volatile_text", 2)]),
        ("message_edited", "message_edited", "messages[1].content@4", [("volatile_text", 2)]),
        ("random_value", "message_edited", "messages[1].content@4", [("random_value", 2)]),
        (
            "volatile_text",
            "message_edited",
            "messages[1].content@69",
            [("volatile_text", 1), ("message_edited", 1)],
        ),
        (
            "volatile_text",
            "message_edited",
            "messages[3].content@4",
            [("volatile_text", 1), ("message_edited", 1)],
        ),
        ("volatile_text", "whitespace", "messages[1].content@4", [("volatile_text", 1), ("whitespace", 1)]),
    ],
)
def test_text_that_changes_again_at_its_spot_is_volatile(
    first: str, second: str, place: str, kept: list[tuple[str, int]]
) -> None:
    log = Log()
    log.add(first, 1, text_edit=True)
    log.add(second, 2, place, text_edit=True)
    assert log.found() == kept


def test_another_item_edited_at_each_turn_is_no_volatile_text() -> None:
    log = Log()
    for turn in (1, 2, 3):
        log.add("message_edited", turn, f"messages[{turn}].content@4", text_edit=True)
    assert log.found() == [("message_edited", 3)]
    log = Log()
    log.add("message_edited", 1, "messages[1]")
    log.add("message_edited", 2, "messages[1]")
    assert log.found() == [("message_edited", 2)], "nothing says that it is the same text"


def test_a_note_that_wanders_is_one_finding() -> None:
    log = Log()
    log.add("message_inserted", 1, "messages[2]")
    log.add("message_removed", 2, "messages[1].x")
    assert log.found() == [("message_inserted", 2)]


def test_what_breaks_every_later_turn_recurs() -> None:
    log = Log()
    always = log.add("volatile_text", 1, "system@4")
    log.add("volatile_text", 2, "system@4")
    log.folder.settle()
    assert always.recurs
    log.clean(3)
    log.folder.settle()
    assert not always.recurs
    once = log.add("tool_order", 4, "tools (order)")
    log.folder.settle()
    assert not once.recurs, "there was no later turn"


def test_suspicions_stay_apart_and_one_of_shape_becomes_proven_by_repetition() -> None:
    log = Log()
    log.add("ttl_expired", 1, None, suspected=True)
    log.add("ttl_expired", 2, None, suspected=True)
    assert ([(s.cause, s.count) for s in log.folder.suspicions], log.found()) == ([("ttl_expired", 2)], [])
    shape = log.add("content_shape", 3, suspected=True)
    assert (shape.suspected, len(log.folder.suspicions)) == (True, 2)
    assert log.add("content_shape", 4, suspected=True) is shape
    assert not shape.suspected
    assert log.found() == [("content_shape", 2)]
    assert [finding.cause for finding in log.folder.suspicions] == ["ttl_expired"]
    assert log.add("content_shape", 5, suspected=True) is shape
    assert log.found() == [("content_shape", 3)]


@pytest.mark.parametrize("returned", [(True, False), (False, True)])
def test_what_lies_in_a_reply_proves_nothing_by_repetition(returned: tuple[bool, bool]) -> None:
    log = Log()
    log.add("content_shape", 1, suspected=True, returned=returned[0])
    log.add("content_shape", 2, suspected=True, returned=returned[1])
    assert (log.found(), len(log.folder.suspicions)) == ([], 1)


def test_what_the_server_does_not_see_is_taken_back() -> None:
    log = Log()
    log.add("whitespace", 1)
    log.add("whitespace", 2)
    other = log.add("tool_order", 3, "tools (order)")
    log.add("content_shape", 4, suspected=True)
    assert log.conversation.broken == 3
    log.folder.retract(1, "whitespace", shape_of("messages[7].content@1"), log.conversation)
    assert (log.folder.findings, log.conversation.broken) == ([other], 1)
    assert [finding.cause for finding in log.folder.suspicions] == ["content_shape"]
    log.folder.retract(1, "content_shape", shape_of("messages[7].content@1"), log.conversation)
    assert (log.folder.suspicions, log.folder.findings, log.conversation.broken) == ([], [other], 1)
    log.folder.retract(1, "json_key_order", "messages", log.conversation)
    assert log.add("whitespace", 5).count == 1, "it is counted anew"


def test_a_request_is_broken_once_however_many_findings_it_has() -> None:
    log = Log()
    log.add("whitespace", 1)
    log.conversation.broke(1)
    assert (log.conversation.broken, log.conversation.requests, log.conversation.turns) == (1, 1, [1])


def test_the_verdict_is_the_first_findings() -> None:
    assert (Diagnosis().verdict, Diagnosis().clean) == ("clean", True)
    server = Finding("server_evicted", "server", 1, 1, None, "")
    diagnosis = Diagnosis(findings=[server, Finding("whitespace", "broken", 1, 2, "m", "messages")])
    assert (diagnosis.verdict, diagnosis.clean) == ("server", False)
    assert Diagnosis(suspicions=[server]).clean


def test_long_lists_of_turns_are_cut_and_counted_on() -> None:
    log = Log()
    for turn in range(1_500):
        finding = log.add("whitespace", turn)
    assert (finding.count, len(finding.turns), len(log.conversation.turns)) == (1_500, 1_000, 1_000)
    assert log.conversation.requests == 1_500
