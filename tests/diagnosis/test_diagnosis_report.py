"""What a person and a machine see: text lines, JSON with its schema, excerpts without secrets, a page for each code."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given, settings

from agentctx.diagnosis import BY_CODE, CAUSES, Diagnosis, Exchange, cause_of, diagnose, diagnose_log
from agentctx.diagnosis.excerpt import excerpt, redact, visible
from agentctx.diagnosis.pages import all_pages
from agentctx.diagnosis.report import finding_lines, json_schema, text_lines, to_json
from agentctx.diagnosis.targets import Target, parse_target
from agentctx.errors import UsageError

from .healthy_sessions import make
from .mutations import CLIENT
from .server_mutations import SERVER


def body(system: str, *more: str) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in more)]
    return {"model": "gpt-4.1", "messages": messages}


def diagnoses() -> list[Diagnosis]:
    made = []
    for kind, (mutate, apis) in CLIENT.items():
        case = mutate(random.Random(kind), make(3, apis[0]))
        if case is not None:
            made.append(diagnose_log(case[0].exchanges(), parse_target("chatml") if len(made) % 2 else None))
    servers = [make_case(random.Random(1), 1)[0][0] for make_case in SERVER.values()]
    return [*made, *(diagnose_log(session.exchanges()) for session in servers)]


def test_json_follows_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    validator = jsonschema.Draft202012Validator(json_schema())
    for diagnosis in diagnoses():
        validator.validate(json.loads(json.dumps(to_json(diagnosis))))
    spoiled = to_json(diagnoses()[0])
    spoiled["findings"][0]["code"] = "X1"
    assert list(validator.iter_errors(spoiled))


def test_json_says_what_the_finding_says() -> None:
    diagnosis = diagnose(
        body("Time 10:05:00. Be kind.", "Hello."), body("Time 10:06:00. Be kind.", "Hello.", "There.")
    )
    (finding,) = to_json(diagnosis)["findings"]
    assert (finding["code"], finding["name"], finding["cause"]) == ("AC101", "volatile-text", "volatile_text")
    assert (finding["verdict"], finding["where"], finding["turn"]) == ("broken", "messages[0].content@9", 1)
    assert finding["was"].startswith("Time 10:05:00")
    assert finding["now"].startswith("Time 10:06:00")


def test_lines_of_a_finding() -> None:
    log = [
        Exchange(
            "openai.chat",
            body(f"It is 10:0{n}:00. " + "Be kind. " * 40, *["Hello."] * (n + 1)),
            line=n + 1,
            file="day.jsonl",
        )
        for n in range(4)
    ]
    lines = list(text_lines(diagnose_log(log, Target(prefill_rate=100.0))))
    assert lines[0] == (
        "! AC101 volatile-text  day.jsonl:2 and 2 more, every turn since, conversation 1  messages[0].content@10"
    )
    assert lines[1].startswith("    was: It is 10:00:00. Be kind.")
    assert lines[2].startswith("    now: It is 10:01:00. Be kind.")
    assert re.fullmatch(
        r"    cost: about \d+ tokens paid again, \d+\.\d s, \$0\.\d{4} \(estimated\)", lines[3]
    )
    assert lines[4].startswith("    remedy: put the volatile text in the newest message")
    assert lines[5].startswith("4 requests, 1 conversation, target as-sent: 1 finding in 3 turns, ")
    assert all("\n" not in line for line in lines)


def test_a_clean_log_is_one_line() -> None:
    assert list(text_lines(diagnose_log(make(1, "openai.chat").exchanges()))) == [
        f"{len(make(1, 'openai.chat').bodies)} requests, 1 conversation, target as-sent: no finding"
    ]


def test_suspicions_are_kept_apart() -> None:
    one = {"model": "m", "messages": [{"role": "user", "content": "Hello there, baker."}]}
    two = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello there, baker."}]},
            {"role": "user", "content": "And?"},
        ],
    }
    diagnosis = diagnose(one, two)
    assert diagnosis.clean
    assert diagnosis.verdict == "clean"
    assert "suspected, not proven:" in list(text_lines(diagnosis))
    assert next(finding_lines(diagnosis.suspicions[0])).startswith("? AC117 content-shape")
    assert "suspected, not proven:" not in list(text_lines(diagnosis, suspicions=False))


SECRETS = (
    "sk-proj-abcdEFGH1234567890abcdEFGH",
    "sk-ant-api03-abcdEFGH1234567890",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghijkl",
    "hf_abcdefghijklmnopqrst",
    "AIzaSyA1234567890abcdefghijklmnop",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123456",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "key {} end", "Authorization: Bearer {}\n", '"api_key": "{}"', "url=https://u:{}@host/"]
)
def test_secrets_never_show(secret: str, around: str) -> None:
    text = "x " * 30 + around.format(secret) + " y" * 30
    at = text.index(secret)
    for offset in (at - 30, at, at + 3, at + len(secret) // 2, at + len(secret), at + len(secret) + 20):
        shown = excerpt(text, offset)
        for start in range(len(secret) - 8):
            assert secret[start : start + 9] not in shown
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "named",
    [
        "password=hunter2hunter",
        "DB_PASSWORD: s3cr3t-value",
        "client_secret = 'abcdefgh12'",
        "x-api-key: abcdef123456",
    ],
)
def test_named_secrets_never_show(named: str) -> None:
    value = re.split(r"[=:]\s*'?", named)[1].rstrip("'")
    assert value not in redact(f"a {named} b")
    assert value not in excerpt(f"a {named} b", len(named))


def test_secrets_never_reach_a_report() -> None:
    """The text that changed is a key; the finding shows that it changed, and not what it was."""
    keys = ("sk-proj-aaaaBBBB1111222233334444", "sk-proj-aaaaBBBB1111999988887777")
    diagnosis = diagnose(
        body(f"Key {keys[0]}. Be kind.", "Hello."), body(f"Key {keys[1]}. Be kind.", "Hello.", "More.")
    )
    shown = json.dumps(to_json(diagnosis)) + "\n".join(text_lines(diagnosis))
    assert "[redacted]" in shown
    assert not any(key[8:] in shown or key[-8:] in shown for key in keys)


def test_invisible_characters_are_shown() -> None:
    assert visible("a\tb\r\nc\u00a0d\u200be\ufeff") == "a⇥b␍⏎c⍽d[ZWSP]e[BOM]"
    assert visible("a\u202eb\u2003c\x07") == "a[U+202E]b[U+2003]c[U+0007]"
    assert excerpt("ab  cd ", 3) == "ab··cd·"
    assert visible("naïve 日本 ok") == "naïve 日本 ok"


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300), at=st.integers(-5, 400))
def test_an_excerpt_is_one_short_line(text: str, at: int) -> None:
    shown = excerpt(text, max(0, at))
    assert "\n" not in shown
    assert "\r" not in shown
    assert len(shown) <= 100 * 8 + 2


def test_codes_are_stable() -> None:
    """Codes and names are part of the interface: this list only grows."""
    assert {cause.code: cause.name for cause in CAUSES.values()} == {
        "AC101": "volatile-text", "AC102": "random-value", "AC103": "tool-order", "AC104": "tool-added",
        "AC105": "tool-removed", "AC106": "tool-schema-changed", "AC107": "json-key-order",
        "AC108": "argument-serialisation", "AC109": "id-regenerated", "AC110": "message-edited",
        "AC111": "message-inserted", "AC112": "message-removed", "AC113": "history-trimmed", "AC114": "compaction",
        "AC115": "reasoning-removed", "AC116": "whitespace", "AC117": "content-shape", "AC118": "image-changed",
        "AC119": "system-moved", "AC120": "parameter-changed", "AC121": "model-changed",
        "AC130": "breakpoint-misplaced", "AC131": "breakpoint-limit", "AC132": "breakpoint-lookback",
        "AC140": "below-minimum", "AC141": "ttl-expired", "AC142": "slot-taken", "AC143": "sliding-window",
        "AC144": "server-evicted", "AC145": "retokenised", "AC150": "template-made", "AC190": "budget-exceeded", "AC199": "unexplained",
    }  # fmt: skip
    for cause in CAUSES.values():
        assert cause_of(cause.code.lower()) is cause_of(cause.name) is cause_of(cause.word) is cause
        assert len(cause.remedy) <= 110
        assert "\n" not in cause.remedy
    with pytest.raises(KeyError):
        cause_of("AC999")


def test_pages_are_those_of_the_registry(root_dir: Path) -> None:
    """``python scripts/finding_pages.py`` writes them."""
    folder = root_dir / "docs" / "findings"
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert written == all_pages()
    assert len(written) == len(BY_CODE) + 1
    for text in written.values():
        assert not re.search(r"[^\x00-\x7f…⏎]", text)


def test_unknown_targets_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"unknown target 'nonsense'.*anthropic.*chatml"):
        parse_target("nonsense")
    assert parse_target("as-sent").renderer is None
    assert parse_target("chatml").renderer is not None
    assert parse_target("openai").provider is not None
