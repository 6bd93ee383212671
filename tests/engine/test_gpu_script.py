"""``engine/benchmarks/gpu.py`` as a person runs it, in Triton's interpreter: all of it, and with wrong kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

pytest.importorskip("triton")

# It needs torch, triton, numpy and the repository: these are taken away.
_ELSEWHERE = (
    "agentctx", "tests", "gguf", "safetensors", "transformers", "tokenizers", "pydantic", "httpx", "jinja2", "tiktoken",
    "rich", "typer", "hypothesis", "pytest",
)  # fmt: skip
_RUN = """
import runpy, sys
sys.modules.update(dict.fromkeys({elsewhere!r}))
script = {script!r}
sys.argv = [script, *{arguments!r}]
{before}
runpy.run_path(script, run_name="__main__")
"""
FIGURE = {"type": ["number", "null"]}
SCHEMA = {
    "type": "object",
    "required": [
        "format", "exit_code", "device", "versions", "sizes", "seed", "figures_mean_speed", "seconds", "budget_seconds",
        "engine", "checks", "rows", "broken",
    ],
    "properties": {
        "format": {"const": 1},
        "exit_code": {"enum": [0, 1, 3]},
        "device": {
            "type": "object",
            "required": ["kind", "name", "interpreted"],
            "properties": {"kind": {"enum": ["cpu", "cuda"]}, "name": {"type": "string"}},
        },
        "versions": {"type": "object", "required": ["python", "torch", "triton", "numpy"]},
        "seed": {"type": "integer"},
        "figures_mean_speed": {"type": "boolean"},
        "engine": {"type": "object", "additionalProperties": {"type": "string"}},
        "broken": {"type": "array", "items": {"type": "string"}},
        "checks": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["kernel", "case", "error", "bound", "faults", "right"],
                "properties": {"error": FIGURE, "bound": {"type": "number"}, "right": {"type": "boolean"}},
            },
        },
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "state", "figure", "unit", "share", "share_of", "target", "met", "why", "detail"],
                "properties": {
                    "state": {"enum": ["measured", "left out", "failed"]},
                    "figure": FIGURE,
                    "share": FIGURE,
                    "met": {"type": ["boolean", "null"]},
                },
            },
        },
    },
}  # fmt: skip


def ended(root: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The script's process, without what it must not need, in an environment that doesn't know the checkout."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    script = str(root / "engine/benchmarks/gpu.py")
    code = _RUN.format(elsewhere=_ELSEWHERE, script=script, arguments=list(arguments), before=before)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment, capture_output=True, text=True, check=False, cwd=root / "docs",
    )  # fmt: skip


def report(path: Path) -> Any:
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    return found


@pytest.mark.slow
def test_all_of_it_runs_in_the_interpreter(root_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "gpu.json"
    done = ended(root_dir, "--device", "cpu", "--interpret", "--json", str(path), "--budget", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    found = report(path)
    assert found["exit_code"] == 0
    assert not found["broken"]
    assert not found["figures_mean_speed"]
    assert all(check["right"] for check in found["checks"])
    assert {check["kernel"] for check in found["checks"]} >= {
        "decode attention", "prefill attention", "KV write", "KV write, int8", "KV write, fp8", "block copy", "RMS norm",
        "rotation and KV write", "gating",
    }  # fmt: skip
    timed = [check["case"] for check in found["checks"] if check["case"].endswith("as timed")]
    assert {"decode attention, 2 × 64, as timed", "prefill attention, 64, 90 % cached, as timed"} <= set(
        timed
    )
    rows = {row["name"]: row for row in found["rows"]}
    assert all(row["state"] == "measured" and row["figure"] > 0 for row in rows.values())
    kinds = (
        "copy",
        "float32 product",
        "decode attention",
        "prefill attention",
        "tiny,",
        "tinier,",
    )
    assert [sum(name.startswith(kind) for name in rows) for kind in kinds] == [1, 1, 4, 6, 5, 4]
    assert all("CUDA graphs off" in fact for fact in found["engine"].values())
    assert len(found["engine"]) == 2
    assert "say nothing about speed" in done.stdout
    assert "not judged" in done.stdout  # a target has no meaning here
    assert all(name in done.stdout for name in rows)


_WRONG_GATE = """
import os
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, {engine!r})
from agentctx_engine.attention.triton_kernels import gating
right = gating.gate_by
gating.gate_by = lambda gate_up, activation, *, out=None: right(gate_up, activation, out=out).mul_(1.03)
"""


@pytest.mark.slow
def test_a_wrong_kernel_is_a_finding(root_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    before = _WRONG_GATE.format(engine=str(root_dir / "engine"))
    done = ended(
        root_dir, "--device", "cpu", "--interpret", "--only", "checks", "--json", str(path), before=before
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG gating: error 0.0" in done.stdout
    found = report(path)
    assert found["exit_code"] == 1
    assert {check["kernel"] for check in found["checks"] if not check["right"]} == {"gating"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_what_runs_here(root_dir: Path) -> None:
    done = ended(root_dir)
    assert done.returncode == 3
    assert "--device cpu --interpret" in done.stderr


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--interpret"], ["--only", "nothing"]])
def test_wrong_usage(arguments: list[str], root_dir: Path) -> None:
    done = ended(root_dir, *arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
