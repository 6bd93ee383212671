"""Is a builder's prefix stable? From turn to turn in one process, and between processes that differ in what must not matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentctx.checks.append_only import Allowed, judge
from agentctx.checks.builders.process import (
    VARIATIONS,
    Place,
    Run,
    Setting,
    Variation,
    another_folder,
    run_builder,
)
from agentctx.checks.builders.scenario import Scenario
from agentctx.checks.log import known_codes
from agentctx.diagnosis import AS_SENT, Exchange, Finding, Loss, Target, detect_api, diagnose
from agentctx.diagnosis.findings import shape_of
from agentctx.errors import UsageError
from agentctx.reports.check_result import CheckError, CheckFinding, CheckResult

SEEDS = (3, 4)
"""Hash seeds beside those of the two main runs: two elements of a set stand in equal order half of the time."""
_READS = {
    "volatile_text": ("clock", "cwd"),
    "random_value": ("random", "clock"),
    "id_regenerated": ("random", "clock"),
}
_SORT = "sort what comes out of a set (or is keyed by hash()) before it goes into the prompt"
_CHANCE = "chance"
_VARIED_READS = {"clock": "clock", "timezone": "clock", "cwd": "cwd", _CHANCE: "random"}


@dataclass(frozen=True, slots=True)
class BuildRules:
    """How a builder is judged. ``vary``: what fresh processes differ in; ``allow``: ``output`` (it prints), ``threads`` (it leaves
    threads running), and codes of findings that don't fail."""

    target: Target = AS_SENT
    vary: tuple[Variation, ...] = VARIATIONS
    allow: frozenset[str] = frozenset()


def variations(names: Iterable[str] | None) -> tuple[Variation, ...]:
    """What to vary, by name; everything when no name is given. Raises ``UsageError``."""
    wanted = [name.replace("-", " ") for name in names or ()]
    for name in wanted:
        if name not in VARIATIONS:
            known = ", ".join(each.replace(" ", "-") for each in VARIATIONS)
            raise UsageError(f"fresh processes can't differ in {name!r}; known: {known}")
    return tuple(each for each in VARIATIONS if not wanted or each in wanted)


def allowed_words(words: Iterable[str]) -> frozenset[str]:
    """``output``, ``threads``, and codes or names of findings as codes. Raises ``UsageError``."""
    given = set(words)
    plain = given & {"output", "threads"}
    return frozenset(plain) | known_codes(given - plain)


def check_builder(place: Place, scenario: Scenario, rules: BuildRules) -> CheckResult:
    """Run the builder and judge it. What can't be evaluated is an error of the result, never an exception."""
    result = CheckResult()
    base = run_builder(place, scenario, Setting())
    if not _usable(result, place, base, rules, ""):
        return result
    own = judge(_exchanges(scenario, base), rules.target, Allowed(codes=_codes(rules))).failing
    result.findings += [_of_turn(place, base, found) for found in own]
    if not own:
        result.passed.append((place.builder, f"{len(base.bodies)} turns of {scenario.name}"))
    _fresh_processes(result, place, scenario, base, rules, {_what(found) for found in own})
    result.notes.append(
        f"{place.builder}: {len(base.bodies)} turns, target {rules.target.name}; fresh processes differ in {', '.join(rules.vary)}"
    )
    return result


def _usable(result: CheckResult, place: Place, run: Run, rules: BuildRules, where: str) -> bool:
    """Whether a run came to its end as it should; else says why not."""
    problem = run.failure
    if not problem and run.printed and "output" not in rules.allow:
        first = run.printed.strip().splitlines()[0][:80] if run.printed.strip() else ""
        problem = (
            f"it prints to standard output ({first!r}), where other programs read results; log to standard error, "
            "or allow it with --allow output"
        )
    if not problem and run.threads and "threads" not in rules.allow:
        problem = (
            f"it leaves threads running ({', '.join(run.threads[:3])}), so what it builds may depend on their timing; "
            "end them before it returns, or allow it with --allow threads"
        )
    if not problem:
        return True
    # A traceback was told by its last line already; of a process that is gone, its last words are all there is.
    detail = run.detail.splitlines()[-1] if run.detail and "ended by itself" in run.failure else ""
    message = f"{where}{problem}" + (f" [{detail.strip()[:200]}]" if detail else "")
    result.errors.append(CheckError(place.builder, _shown(run.file, place.root), message))
    return False


# -- turn by turn -----------------------------------------------------------------------------------------------


def _exchanges(scenario: Scenario, run: Run) -> list[Exchange]:
    """The requests, and what the model answered where the API is that of the scenario."""
    made = []
    for turn, body in enumerate(run.bodies):
        api = detect_api(body)
        reply = scenario.reply(turn)
        response = (
            {"choices": [{"index": 0, "message": reply}]}
            if reply is not None and api == "openai.chat"
            else None
        )
        made.append(Exchange(api=api, request=body, response=response))
    return made


def _of_turn(place: Place, run: Run, found: Finding) -> CheckFinding:
    more = f", and in {found.count - 1} later turns" if found.count > 1 else ""
    message = f"{found.info.title} at {found.place}{more}"
    return _finding(place, run, found, f"turn {found.turn + 1}", message, _READS.get(found.cause, ()))


def _codes(rules: BuildRules) -> frozenset[str]:
    return frozenset(code for code in rules.allow if code.startswith("AC"))


def _finding(
    place: Place, run: Run, found: Finding, case: str, message: str, reads: Sequence[str]
) -> CheckFinding:
    """A finding with the place in the project that is to blame: who read clock, cwd or chance in that turn, else the builder."""
    file, line = _blamed(run, found.turn, reads)
    return CheckFinding(
        subject=place.builder,
        case=case,
        file=_shown(file, place.root),
        line=line,
        code=found.code,
        cause=found.cause,
        message=message,
        was=found.was,
        now=found.now,
        remedy=found.remedy,
        loss=found.loss,
    )


def _blamed(run: Run, turn: int, kinds: Sequence[str]) -> tuple[str, int | None]:
    reads = run.reads[turn] if turn < len(run.reads) else []
    for wanted in kinds:
        for kind, file, line in reads:
            if kind == wanted:
                return file, line
    return run.file, run.line


def _shown(file: str, root: Path) -> str:
    """A path as one writes it in the project."""
    try:
        return Path(file).resolve().relative_to(root.resolve()).as_posix() if file else ""
    except ValueError:
        return file


# -- process by process -----------------------------------------------------------------------------------------


def _fresh_processes(
    result: CheckResult, place: Place, scenario: Scenario, base: Run, rules: BuildRules, told: set[What]
) -> None:
    """``told``: what was found already."""
    with another_folder(place.root) as elsewhere, ThreadPoolExecutor(2) as pool:
        plain = everything = Setting()
        for what in rules.vary:
            everything = everything.varied(what, elsewhere)
        seeds = SEEDS if "hash seed" in rules.vary else ()
        settings = [everything, *(replace(plain, hash_seed=seed) for seed in seeds)]
        runs = list(pool.map(lambda setting: run_builder(place, scenario, setting), settings))
        names = [", ".join(rules.vary), *["hash seed"] * len(seeds)]
        for run, name in zip(runs, names, strict=True):
            if not _usable(result, place, run, rules, f"in a fresh process with another {name}: "):
                return
        heads = _heads(base)
        found = _differs(heads, _heads(runs[0]), rules)
        if found is not None and _what(found) not in told:
            _add(result, place, base, found, _single(place, scenario, heads, found, rules, elsewhere), told)
        for run in runs[1:]:
            other = _differs(base, run, rules)
            if other is not None:
                _add(result, place, base, other, ["hash seed"], told)
                found = other
        if found is None:
            result.passed.append((place.builder, f"fresh process: {', '.join(rules.vary)}"))


What = tuple[str, str]
"""A cause, and where: the place without its indices."""


def _what(found: Finding) -> What:
    return found.cause, shape_of(found.place)


def _single(
    place: Place, scenario: Scenario, heads: Run, found: Finding, rules: BuildRules, elsewhere: Path
) -> list[str]:
    """What of all that was varied makes the difference; nothing of it when equal settings don't give equal prompts, too."""
    again = run_builder(place, scenario, Setting())
    if _differs(heads, _heads(again), rules) is not None:
        return [_CHANCE]
    blamed: list[str] = []
    for what in rules.vary:
        run = run_builder(place, scenario, Setting().varied(what, elsewhere))
        other = None if run.failure else _differs(heads, _heads(run), rules)
        if other is not None and shape_of(other.place) == shape_of(found.place):
            blamed.append(what)
    return blamed or ["several of them together"]


def _add(
    result: CheckResult,
    place: Place,
    base: Run,
    found: Finding,
    blamed: Sequence[str],
    told: set[What],
) -> None:
    """Add the finding unless the turns, or another process, said the same before."""
    if _what(found) in told:
        return
    # That it was edited is what the diagnosis of two turns says; here nobody edited anything.
    if found.cause == "message_edited" and "hash seed" not in blamed:
        found.cause = "volatile_text"
    told.add(_what(found))
    by = "equal settings give other prompts" if _CHANCE in blamed else f"it depends on {' and '.join(blamed)}"
    message = f"two fresh processes differ in turn {found.turn + 1} at {found.place}, {by}"
    found.loss = Loss()  # the requests are of two conversations: nothing is paid again
    reads = [_VARIED_READS[what] for what in blamed if what in _VARIED_READS]
    made = _finding(place, base, found, f"fresh process: {', '.join(blamed)}", message, reads)
    if "hash seed" in blamed:
        made = replace(made, remedy=_SORT)
    result.findings.append(made)


def _heads(run: Run) -> Run:
    """The run with nothing but what stands before the conversation: tools, system messages, parameters."""
    return replace(run, bodies=[_head(body) for body in run.bodies])


def _head(body: Mapping[str, Any]) -> dict[str, Any]:
    key = "input" if "input" in body else "messages"
    items = body.get(key)
    if not isinstance(items, list):
        return dict(body)
    lead = next((i for i, item in enumerate(items) if not _is_head(item)), len(items))
    # One message of its own stands for the conversation: a request without any is none.
    return {**body, key: [*items[:lead], {"role": "user", "content": "…"}]}


def _is_head(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("role") in ("system", "developer")


def _differs(first: Run, second: Run, rules: BuildRules) -> Finding | None:
    """The first difference between the requests of two runs, turn by turn."""
    # What a template does with a difference is the turns' business: here the bytes have to be equal.
    target = AS_SENT if rules.target.renderer is not None else rules.target
    for turn, (one, other) in enumerate(zip(first.bodies, second.bodies, strict=False)):
        if one == other and list(_keys(one)) == list(_keys(other)):
            continue
        found = _first(one, other, turn, target)
        if found is not None and found.code not in rules.allow:
            return found
    return None


def _first(one: Mapping[str, Any], other: Mapping[str, Any], turn: int, target: Target) -> Finding | None:
    earlier, later = (Exchange(api=detect_api(body), request=body) for body in (one, other))
    if earlier.api != later.api:
        return None
    diagnosis = diagnose(earlier, later, target)
    found = next((found for found in diagnosis.findings if found.verdict == "broken"), None)
    if found is not None:
        found.turn, found.turns = turn, [turn]
    return found


def _keys(value: Any) -> Iterable[str]:
    """All keys in their order: equal mappings may have them in another one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)
