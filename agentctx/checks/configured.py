"""Running everything that a project has configured."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from agentctx.checks.baseline import Accepted, apply_baseline
from agentctx.checks.builders.judging import BuildRules, check_builder, variations
from agentctx.checks.builders.process import Place
from agentctx.checks.builders.scenario import built_in, from_file
from agentctx.checks.config import BuilderTable, Config, LogsTable, Project, SuppressTable, TemplatesTable
from agentctx.checks.log import LogRules, check_log
from agentctx.checks.log_budgets import Budgets, parse_compactions
from agentctx.checks.results import of_log
from agentctx.checks.template_sources import template_sources
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
        for part in _parts(project.config):
            try:
                result.add(part())
            except AgentctxError:
                if not missing_ok:
                    raise
    return result


def _parts(config: Config) -> list[Part]:
    parts: list[Part] = [
        *(lambda table=table: _templates(table) for table in config.templates),
        *(lambda table=table: _builder(config, table) for table in config.builders),
        *(lambda table=table: _logs(config, table) for table in config.logs),
    ]
    if not parts:
        raise UsageError("nothing to check: the configuration has no templates, builders or logs")
    return parts


def _templates(table: TemplatesTable) -> CheckResult:
    session = None
    if table.session is not None:
        session = next(iter(read_sessions(table.session)), None)
        if session is None:
            raise InputError("no session in the file", file=table.session, remedy="give a recorded session")
    sources = template_sources(_expanded(table.paths))
    return result_of(check_templates(sources, TemplateRules(table.keywords, session)))


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


def accept(result: CheckResult, config: Config, baseline: Iterable[Accepted]) -> None:
    """Allow what the baseline and the suppressions cover."""
    apply_baseline(result, list(baseline))
    used: set[int] = set()
    made = []
    for finding in result.findings:
        for index, entry in enumerate(config.suppress):
            if not finding.allowed and _covers(entry, finding):
                finding = finding.permitted(entry.reason)
                used.add(index)
        made.append(finding)
    result.findings = made
    result.notes += [
        f"suppress[{index}] ({entry.subject} {entry.code}) covers nothing: take it out"
        for index, entry in enumerate(config.suppress)
        if index not in used
    ]


def _covers(entry: SuppressTable, finding: CheckFinding) -> bool:
    return (
        entry.code in ("", finding.code)
        and fnmatchcase(finding.subject, entry.subject)
        and fnmatchcase(finding.case, entry.case)
    )
