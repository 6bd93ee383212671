"""What servers report, in the words of more of them: losses that are theirs, and reports that show that all is well."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from agentctx.diagnosis import Api, Exchange, diagnose_log

from .healthy_sessions import Session, make

OPENAI, CLAUDE, LLAMA = "openai.chat", "anthropic.messages", "llama.completion"


@dataclass(frozen=True)
class Served:
    """A conversation with what a server reported: for each request its prompt, cached and generated tokens, and the
    seconds after the one before. ``causes`` empty: nothing may be found.
    """

    name: str
    api: Api
    style: str
    counts: tuple[tuple[int, int, int], ...]
    causes: tuple[str, ...] = ()
    turn: int | None = None
    model: str = "local-model"
    hint: str | None = None
    gaps: tuple[int, ...] = (0, 20, 20, 20, 20)
    verdict: str = "server"


def usage(style: str, prompt: int, cached: int, output: int) -> dict[str, Any]:
    """One response's report, in the style of a provider."""
    match style:
        case "openai":
            details = {"cached_tokens": cached}
            return {
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": output,
                    "prompt_tokens_details": details,
                }
            }
        case "deepseek":
            hit = {"prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": prompt - cached}
            return {"usage": {"prompt_tokens": prompt, "completion_tokens": output, **hit}}
        case "litellm claude":
            details = {"cached_tokens": cached, "cache_creation_tokens": prompt - cached - 4}
            return {
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": output,
                    "prompt_tokens_details": details,
                }
            }
        case "claude":
            made = prompt - cached - 4
            return {
                "type": "message",
                "usage": {
                    "input_tokens": 4,
                    "cache_read_input_tokens": cached,
                    "cache_creation_input_tokens": made,
                    "cache_creation": {"ephemeral_5m_input_tokens": made, "ephemeral_1h_input_tokens": 0},
                    "output_tokens": output,
                },
            }
        case "llama":
            times = {"cache_n": cached, "prompt_n": prompt - cached, "prompt_ms": 40.0, "predicted_n": output}
            return {"timings": times}
    raise ValueError(style)


CASES = [
    # servers that cache by themselves
    Served("vLLM drops a block in the middle of the day", OPENAI, "openai", ((3000, 0, 40), (3400, 2992, 40), (3800, 640, 40), (4200, 3792, 40)), ("server_evicted",), 2, hint="http://vllm-3:8000/v1"),
    Served("vLLM in whole blocks", OPENAI, "openai", ((3001, 0, 40), (3407, 2992, 40), (3811, 3392, 40), (4203, 3808, 40)), hint="vllm http://10.0.0.3:8000/v1"),
    Served("SGLang to the token", OPENAI, "openai", ((3001, 0, 40), (3407, 3041, 40), (3811, 3447, 40), (4203, 3851, 40)), hint="sglang http://10.0.0.3:30000/v1"),
    Served("SGLang flushed", OPENAI, "openai", ((3001, 0, 40), (3407, 3041, 40), (3811, 0, 40), (4203, 3851, 40)), ("server_evicted",), 2, hint="sglang http://10.0.0.3:30000/v1"),
    Served("OpenAI in steps", OPENAI, "openai", ((1900, 0, 40), (2300, 1792, 40), (2700, 2176, 40), (3100, 2560, 40)), model="gpt-4.1"),
    Served("OpenAI after a quarter of an hour", OPENAI, "openai", ((1900, 0, 40), (2300, 1792, 40), (2700, 0, 40), (3100, 2560, 40)), ("ttl_expired",), 2, model="gpt-4.1", gaps=(0, 20, 900, 20)),
    Served("OpenAI on another machine", OPENAI, "openai", ((1900, 0, 40), (2300, 1792, 40), (2700, 0, 40), (3100, 2560, 40)), ("server_evicted",), 2, model="gpt-4.1"),
    Served("OpenAI with little to cache", OPENAI, "openai", ((400, 0, 40), (560, 0, 40), (700, 0, 40), (860, 0, 40)), ("below_minimum",), 1, model="gpt-4.1-mini"),
    Served("DeepSeek in steps of 64", OPENAI, "deepseek", ((1900, 0, 40), (2300, 1856, 40), (2700, 2240, 40), (3100, 2624, 40)), model="deepseek-chat"),
    Served("DeepSeek has forgotten", OPENAI, "deepseek", ((1900, 0, 40), (2300, 1856, 40), (2700, 64, 40), (3100, 2624, 40)), ("server_evicted",), 2, model="deepseek-chat"),
    Served("a provider that takes old reasoning out", OPENAI, "openai", ((5200, 0, 900), (6400, 5120, 900), (5900, 2048, 80), (6300, 5888, 80)), ("template_made",), 2, model="gpt-5.1", verdict="broken"),
    # markers
    Served("Claude, all well", CLAUDE, "claude", ((3000, 0, 40), (3400, 2996, 40), (3800, 3396, 40), (4200, 3796, 40)), model="claude-sonnet-4-5"),
    Served("Claude after nine minutes", CLAUDE, "claude", ((3000, 0, 40), (3400, 2996, 40), (3800, 0, 40), (4200, 3796, 40)), ("ttl_expired",), 2, model="claude-sonnet-4-5", gaps=(0, 30, 540, 20)),
    Served("Claude after three seconds", CLAUDE, "claude", ((3000, 0, 40), (3400, 2996, 40), (3800, 0, 40), (4200, 3796, 40)), ("server_evicted",), 2, model="claude-sonnet-4-5", gaps=(0, 30, 3, 20)),
    Served("Claude behind a gateway of another API", OPENAI, "litellm claude", ((3000, 0, 40), (3400, 2996, 40), (3800, 3396, 40), (4200, 3796, 40)), model="anthropic/claude-sonnet-4-5", hint="https://gateway.example/v1/chat/completions"),
    Served("Claude behind a gateway, expired", OPENAI, "litellm claude", ((3000, 0, 40), (3400, 2996, 40), (3800, 0, 40), (4200, 3796, 40)), ("ttl_expired",), 2, model="anthropic/claude-sonnet-4-5", hint="https://gateway.example/v1/chat/completions", gaps=(0, 30, 400, 20)),
    # llama-server
    Served("a slot, all well", OPENAI, "llama", ((900, 0, 40), (1300, 939, 40), (1700, 1339, 40), (2100, 1739, 40)), hint="llama-server -np 1"),
    Served("a slot that was emptied", OPENAI, "llama", ((900, 0, 40), (1300, 939, 40), (1700, 0, 40), (2100, 1739, 40)), ("server_evicted",), 2, hint="llama-server -np 1"),
    Served("a reply that is encoded otherwise", OPENAI, "llama", ((900, 0, 90), (1300, 989, 90), (1700, 1312, 90), (2100, 1789, 90)), ("retokenised",), 2, hint="llama-server -np 1"),
    Served("a finished prompt, all well", LLAMA, "llama", ((900, 0, 40), (1300, 939, 40), (1700, 1339, 40), (2100, 1739, 40))),
]  # fmt: skip


def marked(body: dict[str, Any]) -> None:
    """All messages but the model's as blocks, and a marker on the newest, as gateways take it."""
    for message in body["messages"]:
        if message["role"] != "assistant" and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}


def served(case: Served) -> list[Exchange]:
    session: Session = make(41, case.api, turns=len(case.counts), reasoning=False)
    calls = []
    now = 1_770_000_000.0
    for body, reply, counts, gap in zip(
        session.bodies, session.replies, case.counts, case.gaps, strict=False
    ):
        now += gap
        request = json.loads(json.dumps(body))
        if "model" in request:
            request["model"] = case.model
        if case.style == "litellm claude":
            marked(request)
        response = {**(reply or {}), **usage(case.style, *counts)}
        calls.append(Exchange(case.api, request, response, now, case.hint))
    return calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_report(case: Served) -> None:
    diagnosis = diagnose_log(served(case))
    said = [(f.cause, f.turn, f.verdict) for f in diagnosis.findings]
    if not case.causes:
        assert said == []
    else:
        assert len(said) == 1, said
        assert said[0][0] in case.causes
        assert said[0][1:] == (case.turn, case.verdict)
        assert (diagnosis.findings[0].loss.again or 0) > 0 or said[0][0] == "template_made"
    assert not diagnosis.suspicions


def test_a_request_without_the_marker_that_the_others_have() -> None:
    """Everything that was stored is there, and nobody asked for it."""
    case = next(case for case in CASES if case.name == "Claude, all well")
    log = served(case)
    body = json.loads(json.dumps(log[2].request))
    text = json.dumps(body)
    assert '"cache_control"' in text
    for block in [
        *body["system"],
        *(part for m in body["messages"] for part in m["content"]),
        *body["tools"],
    ]:
        block.pop("cache_control", None)
    report = {
        "input_tokens": 3800,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 40,
    }
    response = {**(log[2].response or {}), "usage": report}
    log[2] = Exchange(log[2].api, body, response, log[2].at, log[2].endpoint_hint)
    (finding,) = diagnose_log(log).findings
    assert (finding.cause, finding.turn, finding.verdict) == ("breakpoint_misplaced", 2, "broken")
    assert "no marker" in finding.detail


def as_blocks(log: list[Exchange], marked_last: bool) -> list[Exchange]:
    """As a real client does it: the newest message is a block with a marker, and a plain string from then on."""
    made = []
    for call in log:
        body = json.loads(json.dumps(call.request))
        last = body["messages"][-1]
        block = {"type": "text", "text": last["content"]}
        if marked_last:
            block["cache_control"] = {"type": "ephemeral"}
        last["content"] = [block]
        made.append(Exchange(call.api, body, call.response, call.at, call.endpoint_hint))
    return made


def test_a_shape_that_the_server_reads_alike() -> None:
    """Its own counts show it once, on a message that is long enough; then it holds for the short ones."""
    case = next(case for case in CASES if case.name == "OpenAI in steps")
    wire = Session("openai.chat", [], [], [])
    session = make(41, "openai.chat", turns=6, reasoning=False)
    head, ask = session.bodies[0], "word " * 400
    log: list[dict[str, Any]] = []
    for number in range(6):
        log.append({"role": "user", "content": ask if number == 1 else f"Short question {number}."})
        wire.bodies.append({**head, "model": case.model, "messages": [head["messages"][0], *log]})
        log.append({"role": "assistant", "content": f"Short answer {number}."})
    sizes = [2_000, 2_430, 2_460, 2_490, 2_520, 2_550]
    reads = [0, 1_920, 2_432, 2_432, 2_432, 2_432]
    calls = [
        Exchange("openai.chat", body, usage("openai", size, read, 8), 1_770_000_000.0 + 9 * number)
        for number, (body, size, read) in enumerate(zip(wire.bodies, sizes, reads, strict=True))
    ]
    assert diagnose_log(calls).clean
    diagnosis = diagnose_log(as_blocks(calls, marked_last=True))
    assert (diagnosis.findings, diagnosis.suspicions) == ([], [])
    assert diagnosis.conversations[0].broken == 0
    # Without the counts nothing shows it, and the body was sent otherwise.
    bare = [Exchange(call.api, call.request, None, call.at) for call in calls]
    (finding,) = diagnose_log(as_blocks(bare, marked_last=True)).findings
    assert (finding.cause, finding.turn, finding.count) == ("content_shape", 1, 5)
