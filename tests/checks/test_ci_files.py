"""The GitHub action and the pre-commit hooks: what they run is run here, in the example project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, **more}


def step(root: Path) -> dict[str, Any]:
    action = yaml.safe_load((root / "action.yml").read_text())
    [found] = [step for step in action["runs"]["steps"] if step.get("id") == "check"]
    return found  # type: ignore[no-any-return]


def run_step(root: Path, project: Path, **inputs: str) -> tuple[int, dict[str, str], str, str]:
    """Exit code, outputs, summary and standard output of the action's step, run as the runner does."""
    action = yaml.safe_load((root / "action.yml").read_text())
    given = {name: str(entry["default"]) for name, entry in action["inputs"].items()} | inputs
    values = {name: given[text[len("${{ inputs.") : -len(" }}")]] for name, text in step(root)["env"].items()}
    outputs, summary = project / "outputs", project / "step-summary"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(root)["run"]],
        cwd=project,
        env=environment(GITHUB_OUTPUT=str(outputs), GITHUB_STEP_SUMMARY=str(summary), **values),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    return done.returncode, said, summary.read_text() if summary.exists() else "", done.stdout


def test_the_action_annotates_reports_and_ends_as_the_check_does(root_dir: Path, ci_project: Path) -> None:
    code, outputs, summary, said = run_step(root_dir, ci_project, config="planted.toml")
    assert code == 1
    assert outputs["exit-code"] == "1"
    assert Path(outputs["sarif"]).read_text().startswith("{")
    assert Path(outputs["junit"]).read_text().startswith("<?xml")
    assert "❌ prompts break their prefix" in summary
    assert "::error file=prompts/planted.py,line=" in said


def test_inputs_of_the_action_are_no_code(root_dir: Path, ci_project: Path) -> None:
    code, outputs, _, _ = run_step(root_dir, ci_project, base="$(touch hacked); --help", config="")
    assert code == 2
    assert outputs["exit-code"] == "2"
    assert not (ci_project / "hacked").exists()
    assert "${{" not in step(root_dir)["run"]


def test_every_input_and_output_is_one_of_the_action(root_dir: Path) -> None:
    action = yaml.safe_load((root_dir / "action.yml").read_text())
    workflow = yaml.safe_load((root_dir / "examples/ci/.github/workflows/prompts.yml").read_text())
    [used] = [step for step in workflow["jobs"]["check"]["steps"] if step.get("id") == "agentctx"]
    assert set(used["with"]) <= set(action["inputs"])
    assert all(step.get("shell") == "bash" for step in action["runs"]["steps"])


@pytest.mark.parametrize(("hook", "files"), [("agentctx-check", []), ("agentctx-template", ["coder.jinja"])])
def test_hooks(root_dir: Path, ci_project: Path, hook: str, files: list[str]) -> None:
    hooks = {
        entry["id"]: entry for entry in yaml.safe_load((root_dir / ".pre-commit-hooks.yaml").read_text())
    }
    config = yaml.safe_load((ci_project / ".pre-commit-config.yaml").read_text())
    assert {entry["id"] for entry in config["repos"][0]["hooks"]} == set(hooks)
    done = subprocess.run(
        [*hooks[hook]["entry"].split(), *files],
        cwd=ci_project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert bool(files) == hooks[hook].get("pass_filenames", True)
