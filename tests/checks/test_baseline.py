"""Baselines: an update touches what was evaluated and nothing else, and a name that several templates have means none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx.checks.baseline import Accepted, apply_baseline, baseline_text, names_in, read_baseline
from agentctx.reports.check_result import CheckError, CheckFinding, CheckResult, Origin

FILE = Path("known.json")
PLACES = ("a/chat.jinja", "b/chat.jinja", "a/plain.jinja")
OTHERS = ("app.prompts:build", "logs/one.jsonl")
CASES = ("one", "two")
CAUSES = ("volatile_text", "template_made")


def finding(subject: str, case: str = "one", cause: str = "template_made") -> CheckFinding:
    return CheckFinding(subject, case, "some.py", 1, "AC150", cause, "it breaks")


@st.composite
def results(draw: st.DrawFn) -> CheckResult:
    """One run of some of the checks: each subject has findings, is in order, or can't be evaluated (or not to its end)."""
    places = draw(st.sets(st.sampled_from(PLACES)))
    names = [Path(place).stem for place in places]
    result = CheckResult()
    for place in sorted(places):
        name = Path(place).stem
        subject = place if names.count(name) > 1 else name
        result.origins[subject] = Origin(name, place)
    whole = set(result.origins) | draw(st.sets(st.sampled_from(OTHERS)))
    for subject in sorted(whole):
        kind = draw(st.sampled_from(("found", "passed", "error", "half")))
        if kind in ("found", "half"):
            made = draw(st.sets(st.tuples(st.sampled_from(CASES), st.sampled_from(CAUSES)), min_size=1))
            result.findings += [finding(subject, *each) for each in sorted(made)]
        if kind == "passed":
            result.passed.append((subject, "all"))
        if kind in ("error", "half"):
            result.errors.append(CheckError(subject, "some.py", "it raised"))
    return result


ENTRIES = st.lists(
    st.builds(
        Accepted,
        st.sampled_from((*PLACES, *OTHERS, "chat", "plain", "gone.jinja")),
        st.sampled_from(("", *CASES)),
        st.sampled_from(("", *CAUSES)),
        st.sampled_from(("old one", "old two")),
    ),
    max_size=8,
)


@given(results(), ENTRIES)
def test_an_update_touches_what_was_evaluated_and_loses_no_reason(
    result: CheckResult, old: list[Accepted]
) -> None:
    names = names_in(result, FILE)
    text = baseline_text(result, old, names, "new")
    made = [
        Accepted(each["subject"], each.get("case", ""), each.get("cause", ""), each["reason"])
        for each in json.loads(text)["accepted"]
    ]
    for entry in old:
        meant = names.meant(entry.subject)
        fits = [each for each in result.findings if each.subject in meant and entry.fits(each)]
        if not meant:  # nothing of it was looked at
            assert entry in made
        for each in fits:
            own = names.own[each.subject]
            kept = [new for new in made if new.subject == own and new.fits(each)]
            assert any(new.reason.startswith(entry.reason) for new in kept)
    for entry in made:
        meant = names.meant(entry.subject)
        if meant and result.evaluated.issuperset(meant):  # what is gone is dropped
            assert any(each.subject in meant and entry.fits(each) for each in result.findings)
    # What was written accepts all that was found, and an update of the same changes nothing.
    apply_baseline(result, made, names)
    assert not result.failing
    assert baseline_text(result, made, names, "newer") == text


@given(results(), ENTRIES)
def test_a_shared_name_covers_nothing_and_says_what_to_write(
    result: CheckResult, accepted: list[Accepted]
) -> None:
    names = names_in(result, FILE)
    apply_baseline(result, accepted, names)
    both = {"a/chat.jinja", "b/chat.jinja"} <= set(result.origins)
    for each in result.findings:
        entries = [entry for entry in accepted if entry.fits(each)]
        origin = result.origins.get(each.subject)
        known = {origin.place if origin else each.subject}
        if origin and not (both and origin.name == "chat"):
            known.add(origin.name)
        assert bool(each.allowed) == any(entry.subject in known for entry in entries)
        if both and origin and origin.name == "chat" and any(e.subject == "chat" for e in entries):
            assert any(
                "2 templates are called so" in note and "a/chat.jinja, b/chat.jinja" in note
                for note in result.notes
            )


@pytest.mark.parametrize(
    ("baseline", "root", "place", "name"),
    [
        ("known.json", ".", "a/chat.jinja", "a/chat.jinja"),
        ("ci/known.json", ".", "a/chat.jinja", "../a/chat.jinja"),
        ("known.json", "a", "chat.jinja", "a/chat.jinja"),
        ("known.json", "a", "../b/model.gguf:tool_use", "b/model.gguf:tool_use"),
        ("ci/known.json", ".", "https://host/chat.jinja", "https://host/chat.jinja"),
    ],
)
def test_a_path_is_the_same_wherever_the_check_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline: str, root: str, place: str, name: str
) -> None:
    for folder in ("a", "b", "ci"):
        (tmp_path / folder).mkdir()
    result = CheckResult(origins={"chat": Origin("chat", place)})
    monkeypatch.chdir(tmp_path)
    assert names_in(result, Path(baseline), Path(root)).own == {"chat": name}
    if "://" not in place:
        absolute = CheckResult(origins={"chat": Origin("chat", str(tmp_path / root / place))})
        assert names_in(absolute, tmp_path / baseline).own == {"chat": name}


def test_a_link_into_a_store_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/5e1f").write_text("{{ 1 }}")
    (tmp_path / "chat.jinja").symlink_to(tmp_path / "store/5e1f")
    result = CheckResult(origins={"chat": Origin("chat", "chat.jinja")})
    assert names_in(result, tmp_path / "known.json", tmp_path).own == {"chat": "chat.jinja"}


def test_an_entry_for_all_cases_stays_one(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"accepted": [{"subject": "app:build", "reason": "all of it"}]}))
    result = CheckResult(findings=[finding("app:build", "one"), finding("app:build", "two")])
    file.write_text(baseline_text(result, read_baseline(file), names_in(result, file), "new"))
    assert json.loads(file.read_text())["accepted"] == [{"subject": "app:build", "reason": "all of it"}]
    assert read_baseline(file) == [Accepted("app:build", "", "", "all of it")]
