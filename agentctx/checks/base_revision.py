"""Comparing with a revision of git: what does this change make worse?"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentctx.errors import AgentctxError, UsageError
from agentctx.reports.check_result import CheckFinding, CheckResult, fingerprint


@contextmanager
def checkout(root: Path, revision: str) -> Iterator[Path]:
    """A copy of ``root`` as it was in a revision. Neither the repository nor its hooks have a part in it.

    Raises ``UsageError`` when ``root`` is in no repository, or there is no such revision.
    """
    top = Path(_git(root, "rev-parse", "--show-toplevel").strip())
    commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="agentctx-base-") as name:
        packed = Path(name) / "base.tar"
        _git(top, "archive", "--format=tar", f"--output={packed}", commit)
        folder = Path(name) / "base"
        try:
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise AgentctxError(f"revision {revision} can't be unpacked: {error}") from None
        place = folder / root.resolve().relative_to(top.resolve())
        place.mkdir(parents=True, exist_ok=True)  # the folder may be new
        yield place


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--base needs git: {error.strerror}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise UsageError(f"git {arguments[0]}: {last}; --base takes a commit, a branch or a tag")
    return done.stdout


def worse_than(result: CheckResult, base: CheckResult, revision: str) -> None:
    """Allow the findings that the revision had, too, at the same price or a higher one."""
    here, there = (_places(each) for each in (result, base))
    known: dict[str, int] = {}
    for finding in base.findings:
        mark = _mark(finding, base, here)
        known[mark] = max(known.get(mark, 0), _price(finding))
    made = []
    for finding in result.findings:
        before = known.get(_mark(finding, result, there))
        if finding.fails and before is not None and _price(finding) <= before:
            finding = finding.permitted(f"no worse than in {revision}")
        made.append(finding)
    result.findings = made
    now = {_mark(finding, result, there) for finding in result.findings}
    mended = len(known.keys() - now)
    if mended:
        result.notes.append(f"{mended} findings of {revision} are gone")


def _places(result: CheckResult) -> set[str]:
    return {origin.place for origin in result.origins.values()}


def _mark(finding: CheckFinding, of: CheckResult, others: set[str]) -> str:
    """The finding's fingerprint. A file that the other revision hasn't goes by its name: it may have been moved."""
    place = of.place(finding.subject)
    return fingerprint(finding, place if place in others else "")


def _price(finding: CheckFinding) -> int:
    return finding.loss.again or 0
