"""A check's result as JUnit XML: a suite for each subject, a test for each case."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from agentctx.diagnosis.report import price_of
from agentctx.reports.check_result import CheckFinding, CheckResult

# Characters that XML 1.0 can't hold in any form.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: CheckResult) -> str:
    """The XML text. What is allowed counts as skipped; warnings and notes pass and say so."""
    root = ElementTree.Element("testsuites", name="agentctx")
    subjects = dict.fromkeys(
        [finding.subject for finding in result.findings]
        + [error.subject for error in result.errors]
        + [subject for subject, _ in result.passed]
    )
    for subject in subjects:
        _suite(root, subject, result)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="utf-8"?>\n', "\n")
    )


def _suite(root: ElementTree.Element, subject: str, result: CheckResult) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_legal(subject))
    for finding in result.findings:
        if finding.subject == subject:
            _case(suite, finding)
    for error in result.errors:
        if error.subject == subject:
            case = _test(suite, subject, "evaluation")
            ElementTree.SubElement(case, "error", type="could-not-evaluate", message=_legal(error.message))
    for name, passed in result.passed:
        if name == subject:
            _test(suite, subject, passed)
    suite.set("tests", str(len(suite)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))


def _test(suite: ElementTree.Element, subject: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_legal(subject), name=_legal(name), time="0")


def _case(suite: ElementTree.Element, finding: CheckFinding) -> None:
    case = _test(suite, finding.subject, f"{finding.case} ({finding.code})")
    if finding.file:
        case.set("file", _legal(finding.file))
    if finding.line is not None:
        case.set("line", str(finding.line))
    if finding.allowed:
        ElementTree.SubElement(case, "skipped", message=_legal(f"allowed: {finding.allowed}"))
        return
    text = _legal(_text(finding))
    if finding.fails:
        failure = ElementTree.SubElement(
            case, "failure", type=f"{finding.code} {finding.info.name}", message=_legal(finding.message)
        )
        failure.text = text
    else:
        ElementTree.SubElement(case, "system-out").text = (
            _legal(f"{finding.level}: {finding.message}\n") + text
        )


def _text(finding: CheckFinding) -> str:
    where = f"{finding.file}:{finding.line}" if finding.line is not None else finding.file
    lines = [where]
    if finding.was or finding.now:
        lines += [f"was: {finding.was}", f"now: {finding.now}"]
    price = price_of(finding.loss)
    lines += [f"cost: {price}"] if price else []
    lines += [f"remedy: {finding.remedy}"] if finding.remedy else []
    return "\n".join(line for line in lines if line)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
