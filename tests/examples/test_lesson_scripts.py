"""The lesson's scripts print the lesson's figures (written down here from the lesson, not from the scripts)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_llama_server
from tests.real.llama_server import LlamaServer
from tests.real.tiny_gguf import write_full_attention, write_sliding_window

FIGURES = {
    "01": ["500 tokens: rejected", "8192 slots reserved, 2350 stored, 28.7%", "1892 slots free, in gaps of [600, 400, 892]", "900 slots: rejected"],
    "02": ["[7, 2, 9]", "[4, 0]", " 0 of A is in slot 112", "15 of A is in slot 127", "16 of A is in slot 32", "36 of A is in slot 148", "19 of B is in slot 3", "[5, 11, 3]"],
    "03": ["4 requests, 3077 tokens, 37.6%", "8 requests, 7533 tokens, 92.0%", "51 slots, 6.4 a request, never over 15: True"],
    "04": ["[[0, 1, 2], [0, 1, 2], [0, 1, 2]], reference counts {0: 3, 1: 3, 2: 3}", "copy block 2 to block 3", "copy block 2 to block 4", "[[0, 1, 3], [0, 1, 4], [0, 1, 2]], reference counts {0: 3, 1: 3, 2: 1, 3: 1, 4: 1}", "5 blocks in use", "would take 9"],
    "05": ["table [0, 1, 2, 3, 4, 5], reused 0, computed 90", "table [0, 1, 2, 3, 6, 7, 8], reused 64, computed 39", "9 blocks in use; 13 without sharing"],
    "06": ["6cfd527e 9f569157 e0297480", "6cfd527e 9f569157 6417173d", "f896424a becafd48 11e3be4a", "6057b827 793c15f6 099ad05f", "3 full blocks of 14 tokens, 2 tokens not hashed", "64 tokens again: 48 reused"],
    "07": ["[3, 4, 5, 2, 1, 0]", "[5, 2, 1, 0, 4, 3]", "[0, 1, 5]", "[2, 4, 3] and evicts a3, b2, b1", "[5, 1, 0]"],
    "08": ["13 stored entries for 27 prompt tokens", "the match is 9 tokens", "evicted leaf: [30, 31]", "[1, 2, 3, 4, 5, 6] locked", "[20, 21, 22] locked"],
    "09": ["13700 prompt  11696 cached   85.4%", "13800 prompt      0 cached    0.0%", "13700 prompt   2736 cached   20.0%"],
    "10": [
        "34          0        0         34",
        "56         41       41         15",
        "78         63       63         15",
        "100         85       85         15",
        "tokens processed: 79",
        "46          3        3         43",
        "68         10       10         58",
        "90         10       10         80",
        "112         10       10        102",
        "tokens processed: 283",
    ],
    "11": ["saved 748 tokens: 765,952 bytes of keys and values, 1,024 a token", "a new process restored 748 tokens", "a prompt of 753: 748 cached, 5 computed", "the same answer as without the file: True", "93.5 MiB, 32.7 ms at 3 GB/s"],
    "12": [
        "cells of a local layer: 768",
        "no checkpoints          1841        0      1841", "no checkpoints           354        0       354",
        "default                 1841        0      1841", "default                  354        0       354",
        "--swa-full              1841        0      1841", "--swa-full               354      350         4",
        "[(557, 1324), (1069, 1836)]", "must begin at 222", "of 1844 tokens: 1841 cached",
    ],
    "13": ["append-only                  10000       2400     400        10000", "keep-last:5                  34000       2400    2000         4000", "summarize-at:13,12,300       10300       2400     700         5500"],
}  # fmt: skip


def run(script: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script_of(root_dir: Path, number: str) -> Path:
    [script] = (root_dir / "examples/lesson").glob(f"{number}_*.py")
    return script


def assert_figures(output: str, number: str) -> None:
    at = 0
    for figure in FIGURES[number]:
        assert figure in output[at:], f"{figure!r} is missing (or out of order) in:\n{output}"
        at = output.index(figure, at)


@pytest.mark.parametrize("number", FIGURES)
def test_figures(number: str, root_dir: Path) -> None:
    assert_figures(run(script_of(root_dir, number)), number)


@pytest.mark.real
def test_the_slot_cache_of_a_real_llama_server(root_dir: Path, tmp_path: Path) -> None:
    require_llama_server()
    model = write_full_attention(tmp_path / "tiny.gguf")
    with LlamaServer(model, n_parallel=1, n_ctx=1024, cache_ram_mib=0) as server:
        assert_figures(run(script_of(root_dir, "10"), server.url), "10")


@pytest.mark.real
@pytest.mark.parametrize(("swa_full", "cache_n"), [(False, 0), (True, 350)])
def test_the_sliding_window_of_a_real_llama_server(
    swa_full: bool, cache_n: int, root_dir: Path, tmp_path: Path
) -> None:
    require_llama_server()
    model = write_sliding_window(tmp_path / "window-128.gguf", window=128)
    with LlamaServer(model, n_parallel=1, n_ctx=4096, cache_ram_mib=0, swa_full=swa_full) as server:
        output = run(script_of(root_dir, "12"), server.url)
    assert_figures(output, "12")
    observed = [line.split() for line in output[output.index("observed at") :].splitlines()[1:]]
    assert observed == [["1841", "0", "1841"], ["354", str(cache_n), str(354 - cache_n)]]


def test_every_script_is_tested(root_dir: Path) -> None:
    numbers = {script.name[:2] for script in (root_dir / "examples/lesson").glob("*.py")}
    assert numbers == set(FIGURES)
