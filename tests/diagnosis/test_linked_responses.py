"""Responses that go on from a history which the server keeps: bodies hold only what is new."""

from __future__ import annotations

from typing import Any

from agentctx.diagnosis import Exchange, diagnose_log, parse_target

Body = dict[str, Any]
TEXTS = (
    "Which of the three harbour cranes was serviced last, and by whom was it signed off?",
    "And which one is due next? Give the week, and the reason if it is early.",
    "Then write the order for that one, addressed to the workshop on pier four.",
)


def said(number: int) -> Body:
    text = (
        f"Answer {number}: crane {number} was serviced in week {20 + number} and signed off by the day shift."
    )
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def asked(number: int) -> Body:
    return {"role": "user", "content": TEXTS[number]}


def call(number: int, request: Body, output: list[Body] | None = None) -> Exchange:
    response = {"id": f"resp_{number}", "object": "response", "output": output or [said(number)]}
    return Exchange("openai.responses", {"model": "gpt-4.1", **request}, response)


def linked(number: int) -> Exchange:
    return call(number, {"previous_response_id": f"resp_{number - 1}", "input": [asked(number)]})


def test_a_linked_chain_is_one_conversation_that_grows() -> None:
    whole = [asked(0), said(0), asked(1), said(1), asked(2)]
    chain = [call(0, {"input": [asked(0)]}), linked(1), linked(2)]
    written_out = [call(number, {"input": whole[: 2 * number + 1]}) for number in range(3)]
    target = parse_target("chatml")
    counts = []
    for log in (chain, written_out):
        diagnosis = diagnose_log(log, target)
        assert diagnosis.clean
        (conversation,) = diagnosis.conversations
        counts.append((conversation.tokens, conversation.reused, conversation.lost))
    assert counts[0] == counts[1]


def test_a_client_that_sends_the_whole_history_again_goes_on() -> None:
    whole = [asked(0), said(0), asked(1), said(1), asked(2)]
    log = [call(0, {"input": [asked(0)]}), linked(1), call(2, {"input": whole})]
    diagnosis = diagnose_log(log)
    assert diagnosis.clean
    assert diagnosis.conversation_count == 1
    edited = [asked(0), said(0), {"role": "user", "content": TEXTS[1].replace("week", "day")}, said(1)]
    log[2] = call(2, {"input": [*edited, asked(2)]})
    (finding,) = diagnose_log(log).findings
    assert (finding.cause, finding.turn) == ("message_edited", 2)
    assert finding.place == f"input[2].content@{TEXTS[1].index('week')}"


def test_new_instructions_break_a_linked_chain_at_its_head() -> None:
    first = call(0, {"instructions": "Answer in one line.", "input": [asked(0)]})
    request = {"previous_response_id": "resp_0", "instructions": "Answer in two lines.", "input": [asked(1)]}
    (finding,) = diagnose_log([first, call(1, request)]).findings
    assert finding.place == "instructions@10"
    assert finding.cause == "message_edited"


def test_a_history_that_the_server_compacted_is_the_same_conversation() -> None:
    """``/responses/compact`` answers with the history that is to be sent from then on."""
    whole = [asked(0), said(0), asked(1), said(1)]
    summary = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABp" * 12}
    log = [
        call(0, {"input": whole[:1]}),
        call(1, {"input": whole[:3]}),
        call(2, {"input": whole}, [asked(0), asked(1), summary]),
        call(3, {"input": [asked(0), asked(1), summary, asked(2)]}),
    ]
    diagnosis = diagnose_log(log)
    (finding,) = diagnosis.findings
    assert (finding.cause, finding.turn, finding.place) == ("compaction", 3, "input[1]")
    assert diagnosis.conversation_count == 1
