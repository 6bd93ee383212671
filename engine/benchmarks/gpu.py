"""Checks the engine's Triton kernels on a GPU and measures what they make of it.

    python engine/benchmarks/gpu.py                            # on a CUDA GPU: within 8 minutes
    python engine/benchmarks/gpu.py --device cpu --interpret   # in Triton's interpreter, on small sizes: that it all runs

Needs torch, triton, numpy and the repository, nothing installed. Every kernel is held against float64 on data that is new in
every run, into outputs full of NaN; a wrong one is a finding. Then decode and prefill attention are timed by device events and
compared with what a copy and a matrix product reach on the same card, and whole requests go through the engine with
models of random weights. What the time doesn't suffice for is left out and said to be.

Exit code: 0, every kernel is right; 1, one is wrong; 2, wrong usage; 3, something could not be evaluated. Missed targets
are told in the table and change no exit code.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

PARTS = ("checks", "attention", "models")
NOT_EVALUATED = 3


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--interpret", action="store_true", help="run kernels in Triton's interpreter")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument(
        "--graphs", choices=("on", "off"), default="on", help="the engine's decode steps as CUDA graphs"
    )
    parser.add_argument("--budget", type=float, default=450.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of data, weights and prompts; default: a new one")
    parser.add_argument("--json", type=Path, default=Path("out/gpu.json"), help="default: %(default)s")
    found = parser.parse_args(arguments)
    if found.interpret != (found.device == "cpu"):
        parser.error(
            "--device cpu and --interpret go together: kernels run on the CPU in the interpreter only"
        )
    return found


def run(options: argparse.Namespace) -> int:
    """Everything that imports torch and triton, which must know by then whether to interpret."""
    import torch

    from benchmarks.attention_speed import measure_attention, measure_rates
    from benchmarks.bench import Bench
    from benchmarks.checking import check_kernels
    from benchmarks.model_speed import measure_model
    from benchmarks.report import exit_code, text, told, write_json
    from benchmarks.sizes import FULL, SMALL

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "no CUDA device is here; --device cpu --interpret shows that the script runs, on small sizes",
            file=sys.stderr,
        )
        return NOT_EVALUATED
    seed = secrets.randbits(32) if options.seed is None else options.seed
    torch.manual_seed(seed)
    sizes = SMALL if options.interpret else FULL
    bench = Bench(torch.device(options.device), sizes, options.budget, Random(seed), options.graphs == "on")
    bench.changed = lambda: write_json(options.json, told(bench, seed))
    if "checks" in options.only:
        check_kernels(bench)
    if set(options.only) - {"checks"}:
        measure_rates(bench)
    if "attention" in options.only:
        measure_attention(bench)
    if "models" in options.only:
        for named in (sizes.large, sizes.small):
            gc.collect()  # so that the engine counts what is really free
            measure_model(bench, named)
    bench.changed()
    print(text(bench, seed), flush=True)
    return exit_code(bench)


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    missing = [name for name in ("torch", "triton", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{', '.join(missing)} can't be imported: pip install {' '.join(missing)}", file=sys.stderr)
        return NOT_EVALUATED
    os.environ["TRITON_INTERPRET"] = "1" if options.interpret else "0"
    return run(options)


if __name__ == "__main__":
    # The checkout's packages, whatever is installed; not this folder, whose modules are those of a package.
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(path for path in sys.path if path != str(here))]
    sys.exit(main(sys.argv[1:]))
