"""Running everything that a project has configured."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from agentctx.checks.builders.judging import BuildRules, check_builder, variations
from agentctx.checks.builders.process import Place
from agentctx.checks.builders.scenario import built_in, from_file
from agentctx.checks.config import BuilderTable, Config, LogsTable, Project, SuppressTable, TemplatesTable
from agentctx.checks.log import LogRules, check_log
from agentctx.checks.log_budgets import Budgets, parse_compactions
from agentctx.checks.results import of_log
from agentctx.checks.template_sources import TemplateSource, template_sources, told_apart
from agentctx.checks.templates import TemplateRules, check_templates, result_of
from agentctx.errors import AgentctxError, InputError, UsageError
from agentctx.reports.check_result import CheckFinding, CheckResult
from agentctx.traces import expand, read_sessions

Part = Callable[[], CheckResult]


def run_project(project: Project, *, root: Path | None = None, missing_ok: bool = False) -> CheckResult:
    """Check all of it, in its folder (or in ``root``, a copy of that). ``missing_ok``: what can't be read there is left out.

    Raises ``UsageError`` when nothing is configured, or what is configured isn't there.
    """
    result = CheckResult()
    with contextlib.chdir(root or project.root):
        for part in _parts(project.config, missing_ok=missing_ok):
            try:
                result.add(part())
            except AgentctxError:
                if not missing_ok:
                    raise
    return result


def _parts(config: Config, *, missing_ok: bool) -> list[Part]:
    parts: list[Part] = [
        *((lambda: _templates(config.templates, missing_ok=missing_ok),) if config.templates else ()),
        *(lambda table=table: _builder(config, table) for table in config.builders),
        *(lambda table=table: _logs(config, table) for table in config.logs),
    ]
    if not parts:
        raise UsageError("nothing to check: the configuration has no templates, builders or logs")
    return parts


def _templates(tables: Sequence[TemplatesTable], *, missing_ok: bool) -> CheckResult:
    """All tables together: names that templates of several share have to be told apart."""
    chosen: list[tuple[TemplateSource, TemplateRules]] = []
    for table in tables:
        try:
            rules = _rules(table)
        except AgentctxError:
            if not missing_ok:
                raise
            continue
        for path in table.paths:
            try:
                chosen += [(source, rules) for source in template_sources(_expanded((path,)))]
            except AgentctxError:
                if not missing_ok:
                    raise
    sources = iter(told_apart([source for source, _ in chosen]))
    result = CheckResult()
    for rules, group in groupby(chosen, key=lambda each: each[1]):
        result.add(result_of(check_templates([next(sources) for _ in group], rules)))
    return result


def _rules(table: TemplatesTable) -> TemplateRules:
    session = None
    if table.session is not None:
        session = next(iter(read_sessions(table.session)), None)
        if session is None:
            raise InputError("no session in the file", file=table.session, remedy="give a recorded session")
    return TemplateRules(table.keywords, session)


def _expanded(paths: Iterable[str]) -> Iterator[str]:
    """Patterns as what they match. Raises ``UsageError`` for one that matches nothing."""
    for path in paths:
        if "://" in path or not glob.has_magic(path):
            yield path
            continue
        found = sorted(glob.glob(path, recursive=True))
        if not found:
            raise UsageError(f"{path} matches no file; paths are relative to the configuration's folder")
        yield from found


def _builder(config: Config, table: BuilderTable) -> CheckResult:
    rules = BuildRules(config.named_target(table.target), variations(table.vary), frozenset(table.allow))
    scenario = from_file(table.scenario) if table.scenario is not None else built_in()
    return check_builder(Place(table.callable, Path.cwd(), table.timeout), scenario, rules)


def _logs(config: Config, table: LogsTable) -> CheckResult:
    rules = LogRules(
        target=config.named_target(table.target),
        budgets=Budgets(
            rework_turn=table.max_rework_turn,
            rework_session=table.max_rework_session,
            hit_rate=table.min_hit_rate,
            compactions=parse_compactions(table.max_compactions) if table.max_compactions else None,
            stable_prefix=table.min_stable_prefix,
        ),
        allow=frozenset(table.allow),
        skip_others=table.skip_others,
    )
    result = CheckResult()
    for path in expand(list(_expanded(table.files))):
        result.add(of_log(check_log(path, rules)))
    return result


# -- what is accepted -------------------------------------------------------------------------------------------


def suppress(result: CheckResult, config: Config) -> None:
    """Allow what the suppressions cover. Before a baseline, which is for the rest."""
    used: set[int] = set()
    made = []
    for finding in result.findings:
        for index, entry in enumerate(config.suppress):
            if not finding.allowed and _covers(entry, finding, result):
                finding = finding.permitted(entry.reason)
                used.add(index)
        made.append(finding)
    result.findings = made
    result.notes += [
        f"suppress[{index}] ({' '.join(filter(None, (entry.subject, entry.code)))}) covers nothing: {_advice(entry, result)}"
        for index, entry in enumerate(config.suppress)
        if index not in used
    ]


def _covers(entry: SuppressTable, finding: CheckFinding, result: CheckResult) -> bool:
    """By what the subject is called, or by its place. A name that several templates share means none of them, unless it is a pattern."""
    names = [finding.subject, result.place(finding.subject)]
    if finding.subject in result.origins and glob.has_magic(entry.subject):
        names.append(result.origins[finding.subject].name)
    return (
        entry.code in ("", finding.code)
        and any(fnmatchcase(name, entry.subject) for name in names if name)
        and fnmatchcase(finding.case, entry.case)
    )


def _advice(entry: SuppressTable, result: CheckResult) -> str:
    shared = [origin.place for origin in result.origins.values() if origin.name == entry.subject]
    if len(shared) < 2:
        return "take it out"
    return f"several templates are called so, write the path of the one that is meant ({', '.join(shared)})"
