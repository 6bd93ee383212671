"""All kernels on drawn cases, kernel by kernel."""

from __future__ import annotations

import sys
import traceback

from benchmarks.bench import Bench
from benchmarks.drawn_cases import ATTENTION, Drawing, drawn_checks


def check_kernels(bench: Bench) -> None:
    """Run every check, whatever the budget: a figure of a wrong kernel is worth nothing."""
    sizes = bench.sizes
    drawing = Drawing(
        device=str(bench.device),
        processors=bench.processors,
        longest=sizes.longest_checked,
        most_kv_heads=sizes.checked_kv_heads,
        hidden=sizes.checked_hidden,
        kinds=("int8", "fp8") if bench.has_fp8 else ("int8",),
        attention=ATTENTION[: sizes.checked_attention],
    )
    if not bench.has_fp8:
        bench.facts["not checked"] = "fp8 keys and values, which this card's arithmetic lacks"
    for check in drawn_checks(drawing, bench.random):
        try:
            bench.check(check())
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)
            bench.broken.append(f"a kernel check: {type(error).__name__}: {error}")
    print(f"{bench.seconds:6.1f} s  {len(bench.checks)} kernel checks", file=sys.stderr, flush=True)
    bench.changed()
