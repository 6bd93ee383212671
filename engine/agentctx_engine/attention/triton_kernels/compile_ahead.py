"""Compile the kernels for a Hopper GPU where there is none, and say what they take of a processor.

``python -m agentctx_engine.attention.triton_kernels.compile_ahead`` prints a table, with ``--json`` a list. Triton brings
the assembler, so nothing of CUDA need be installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from agentctx_engine.attention.triton_kernels.block_copy import LANES as COPY_LANES
from agentctx_engine.attention.triton_kernels.block_copy import copy_rows
from agentctx_engine.attention.triton_kernels.decode import MIN_ROWS, DecodeShape, decode_join, decode_split
from agentctx_engine.attention.triton_kernels.gating import LANES as GATE_LANES
from agentctx_engine.attention.triton_kernels.gating import gate_rows
from agentctx_engine.attention.triton_kernels.kv_write import write_packed_blocks, write_slots
from agentctx_engine.attention.triton_kernels.online_softmax import INTERPRETED
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, prefill_tiles
from agentctx_engine.attention.triton_kernels.rms_norm import norm_rows
from agentctx_engine.attention.triton_kernels.rotation import rotate_rows

HOPPER = 90
_GROUP, _KV_HEADS, _BLOCK_SIZE, _SPLITS = (
    4,
    8,
    16,
    8,
)  # of an 8B-shaped model, in blocks as the engine makes them
_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel at one configuration."""

    name: str
    function: Any
    head_dim: int
    kv: str  # Triton's name of the type of keys and values
    constants: Mapping[str, int | bool]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler says of a compiled kernel. Registers are per thread; bytes of shared memory per program."""

    kernel: str
    head_dim: int
    kv: str
    warps: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    ptx_bytes: int
    cubin_bytes: int


def attention_kernels() -> Iterator[Kernel]:
    """Decode and prefill for bfloat16 queries, at the defaults for each head size and kind of keys and values."""
    for head_dim in (64, 80, 128, 256):
        for kv in ("bf16", "i8", "fp8e4nv") if head_dim in (64, 128) else ("bf16",):
            dims = triton.next_power_of_2(head_dim)
            common = {
                "KV_HEADS": _KV_HEADS, "GROUP": _GROUP, "HEAD_DIM": head_dim, "DIMS": dims, "BLOCK_SIZE": _BLOCK_SIZE,
                "QUANTIZED": kv != "bf16", "WIDE": False,
            }  # fmt: skip
            decode = DecodeShape.default(head_dim, torch.bfloat16)
            split = {"GROUP_ROWS": MIN_ROWS, "KEYS": decode.keys, "SPLITS": _SPLITS}
            yield Kernel("decode", decode_split, head_dim, kv, common | split, decode.warps, decode.stages)
            prefill = PrefillShape.default(head_dim, torch.bfloat16)
            for windowed in (False, True) if head_dim == 128 and kv == "bf16" else (False,):
                tile = {"ROWS": prefill.rows, "KEYS": prefill.keys, "WINDOWED": windowed}
                name = "prefill, window" if windowed else "prefill"
                yield Kernel(name, prefill_tiles, head_dim, kv, common | tile, prefill.warps, prefill.stages)
        joined = {
            "HEADS": _GROUP * _KV_HEADS, "HEAD_DIM": head_dim, "DIMS": dims, "SPLITS": _SPLITS, "SPLIT_ROWS": _SPLITS,
        }  # fmt: skip
        yield Kernel("decode, join", decode_join, head_dim, "bf16", joined, 4, 3)


def other_kernels() -> Iterator[Kernel]:
    """Those that stand around attention, in bfloat16, for a hidden size of 4,096 and heads of 128."""
    head_dim, numbers = 128, 128 * _KV_HEADS
    slots = {"BLOCK_SIZE": _BLOCK_SIZE, "NUMBERS": numbers, "LANES": numbers}
    yield Kernel("KV write", write_slots, head_dim, "bf16", slots, 4, 3)
    for kv, largest in (("i8", 127), ("fp8e4nv", 448)):
        packed = {
            "KV_HEADS": _KV_HEADS, "HEAD_DIM": head_dim, "DIMS": head_dim, "BLOCK_SIZE": _BLOCK_SIZE,
            "TOKENS": _BLOCK_SIZE, "LARGEST": largest, "WHOLE": kv == "i8",
        }  # fmt: skip
        yield Kernel("KV write, packed", write_packed_blocks, head_dim, kv, packed, 4, 3)
    turned = {
        "HEADS": _GROUP * _KV_HEADS, "KV_HEADS": _KV_HEADS, "PAIRS": head_dim // 2, "LANES": head_dim // 2,
        "BLOCK_SIZE": _BLOCK_SIZE,
    }  # fmt: skip
    yield Kernel("rotation", rotate_rows, head_dim, "bf16", turned, 1, 3)
    for added in (False, True):
        normed = {"SIZE": 4096, "LANES": 4096, "ADDED": added}
        yield Kernel("sum, RMS norm" if added else "RMS norm", norm_rows, head_dim, "bf16", normed, 8, 3)
    for silu in (True, False):
        gated = {"LANES": GATE_LANES, "SILU": silu}
        yield Kernel("SwiGLU" if silu else "GeGLU", gate_rows, head_dim, "bf16", gated, 4, 3)
    yield Kernel("block copy", copy_rows, head_dim, "i64", {"LANES": COPY_LANES}, 4, 3)


def compile_ahead(kernel: Kernel, capability: int = HOPPER) -> Resources:
    """Raises ``RuntimeError`` when the assembler refuses the kernel."""
    names = kernel.function.arg_names
    types = {name: "constexpr" if name in kernel.constants else _type(name, kernel.kv) for name in names}
    # What a launch would find out: pointers are multiples of 16, and so are strides but for those of scales.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if types[name].startswith("*") or (name.endswith("stride") and not name.startswith("scale"))
    }
    source = ASTSource(fn=kernel.function, signature=types, constexprs=dict(kernel.constants), attrs=aligned)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": kernel.warps, "num_stages": kernel.stages},
    )
    registers, spills = _assembled(compiled.asm["ptx"], capability)
    return Resources(
        kernel.name, kernel.head_dim, kernel.kv, kernel.warps, registers, compiled.metadata.shared, spills,
        len(compiled.asm["ptx"]), len(compiled.asm["cubin"]),
    )  # fmt: skip


_TYPES = {
    "*fp32": ("sums", "tops", "totals", "turns"),
    "*i32": ("tables", "lengths", "rows", "tiles", "blocks", "offsets", "counts", "pairs"),
    "*i64": ("slots", "source", "target"),
    "*bf16": (
        "queries", "keys", "values", "qkv", "x", "residual", "weight", "summed", "gate_up", "out",
    ),
    "fp32": ("factor", "eps"),
    "i32": ("window", "size", "written"),
}  # fmt: skip


def _type(name: str, kv: str) -> str:
    """Of a kernel's argument, by its name."""
    if name == "numbers":
        return f"*{kv}"
    if name == "scales":
        return f"*{kv}" if kv == "bf16" else "*fp32"
    if name.endswith("stride"):
        return "i32"
    return next(kind for kind, names in _TYPES.items() if name in names)


def _assembled(ptx: str, capability: int) -> tuple[int, int]:
    """(registers of a thread, bytes spilled), as the assembler reports them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [
            get_ptxas(capability).path, "-v", f"--gpu-name=sm_{capability}a", str(source), "-o", f"{source}.cubin",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    used, spilled = _USED.search(done.stderr), _SPILLS.search(done.stderr)
    if done.returncode or used is None or spilled is None:
        raise RuntimeError(f"the assembler did not report on the kernel: {done.stderr.strip()[-500:]}")
    return int(used[1]), int(spilled[1]) + int(spilled[2])


def main(arguments: list[str]) -> int:
    if INTERPRETED:
        print(
            "TRITON_INTERPRET is set: kernels are interpreted, none can be compiled; unset it",
            file=sys.stderr,
        )
        return 2
    found = [compile_ahead(kernel) for kernel in (*attention_kernels(), *other_kernels())]
    if "--json" in arguments:
        print(json.dumps([asdict(resources) for resources in found]))
        return 0
    print(
        f"{'kernel':16} {'head':>4} {'KV':>8} {'warps':>5} {'registers':>9} {'shared bytes':>12} {'spilled':>7}"
    )
    for r in found:
        print(
            f"{r.kernel:16} {r.head_dim:4} {r.kv:>8} {r.warps:5} {r.registers:9} {r.shared_bytes:12,} {r.spill_bytes:7}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
