"""The kernels compile for a Hopper GPU where there is none, and nothing spills at the defaults."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

MODULE = "agentctx_engine.attention.triton_kernels.compile_ahead"
REGISTERS, SHARED_BYTES, REGISTER_FILE = 255, 232_448, 65_536
"""Of a thread, of a program (227 KiB), of a processor: CUDA C++ Programming Guide, compute capability 9.0."""


def compiled(cache: Path, *arguments: str, interpret: bool = False) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because this one's kernels are interpreted, and with nothing compiled before."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache)} | ({"TRITON_INTERPRET": "1"} if interpret else {})
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", MODULE, *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="triton brings no assembler here")
def test_kernels_compile_for_hopper_without_spills(tmp_path: Path) -> None:
    done = compiled(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for r in found:
        print(
            f"{r['kernel']:16} head {r['head_dim']:3} KV {r['kv']:8} {r['warps']} warps {r['registers']:3} registers "
            f"{r['shared_bytes']:7,} shared bytes {r['spill_bytes']} spilled"
        )
        assert r["spill_bytes"] == 0
        assert 0 < r["registers"] <= REGISTERS
        assert r["registers"] * 32 * r["warps"] <= REGISTER_FILE
        assert r["shared_bytes"] <= SHARED_BYTES
        assert r["ptx_bytes"] > 0
        assert r["cubin_bytes"] > 0
    kinds = {(r["kernel"], r["head_dim"], r["kv"]) for r in found}
    assert {(k, d, "bf16") for k in ("decode", "prefill") for d in (64, 80, 128, 256)} <= kinds
    assert {(k, d, kv) for k in ("decode", "prefill") for d in (64, 128) for kv in ("i8", "fp8e4nv")} <= kinds
    others = {
        "KV write",
        "KV write, packed",
        "rotation",
        "RMS norm",
        "sum, RMS norm",
        "SwiGLU",
        "GeGLU",
        "block copy",
    }
    assert others <= {r["kernel"] for r in found}


def test_interpreted_kernels_cannot_be_compiled(tmp_path: Path) -> None:
    done = compiled(tmp_path, interpret=True)
    assert done.returncode == 2
    assert "unset it" in done.stderr
