"""What a run leaves: a table to read, a JSON file, and an exit code."""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from benchmarks.bench import Bench, described
from benchmarks.kernel_checks import Checked
from benchmarks.rows import table

CLEAN, FINDINGS, NOT_EVALUATED = 0, 1, 3
FORMAT = 1


def exit_code(bench: Bench) -> int:
    """A wrong kernel is a finding. A target that is missed is told, not a finding: it holds for one card."""
    if bench.wrong:
        return FINDINGS
    return NOT_EVALUATED if bench.broken else CLEAN


def device_told(bench: Bench) -> dict[str, Any]:
    """The card, or the processor."""
    if not bench.on_gpu:
        return {"kind": "cpu", "name": platform.processor() or platform.machine(), "interpreted": True}
    properties = torch.cuda.get_device_properties(bench.device)
    return {
        "kind": "cuda",
        "name": properties.name,
        "interpreted": False,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "triton": triton.__version__,
        "numpy": np.__version__,
    }


def told(bench: Bench, seed: int) -> dict[str, Any]:
    """The JSON file."""
    return {
        "format": FORMAT,
        "exit_code": exit_code(bench),
        "device": device_told(bench),
        "versions": versions(),
        "sizes": bench.sizes.name,
        "seed": seed,
        "figures_mean_speed": bench.on_gpu,
        "seconds": bench.seconds,
        "budget_seconds": bench.budget_seconds,
        "engine": bench.facts,
        "checks": [_check_told(checked) for checked in bench.checks],
        "rows": [row.told() for row in bench.rows.values()],
        "broken": bench.broken,
    }


def _check_told(checked: Checked) -> dict[str, Any]:
    return {
        "kernel": checked.kernel,
        "case": checked.case,
        "error": checked.error if math.isfinite(checked.error) else None,
        "bound": checked.bound,
        "faults": list(checked.faults),
        "right": checked.is_right,
    }


def write_json(path: Path, contents: dict[str, Any]) -> None:
    """Replaced at once: a run that is ended before its time leaves what it had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(contents, indent=1, allow_nan=False) + "\n")
    os.replace(new, path)


def text(bench: Bench, seed: int) -> str:
    """What is printed at the end."""
    device = device_told(bench)
    where = device["name"] if bench.on_gpu else f"{device['name']}, in Triton's interpreter"
    lines = [f"{where}; {', '.join(f'{k} {v}' for k, v in versions().items() if v)}; seed {seed}"]
    lines += [f"{name}: {fact}" for name, fact in bench.facts.items()]
    if not bench.on_gpu:
        lines.append("The figures say nothing about speed: kernels were interpreted, on small sizes.")
    if bench.rows:
        lines += ["", table(list(bench.rows.values()), means_speed=bench.on_gpu)]
    kernels = sorted({checked.kernel for checked in bench.checks})
    lines += [
        "",
        f"{len(bench.checks)} checks of {len(kernels)} kernels against float64, {len(bench.wrong)} wrong",
    ]
    lines += [f"WRONG {described(checked)}" for checked in bench.wrong]
    lines += [f"NOT EVALUATED {broken}" for broken in bench.broken]
    lines.append(f"{bench.seconds:.0f} s of {bench.budget_seconds:.0f}")
    return "\n".join(lines)
