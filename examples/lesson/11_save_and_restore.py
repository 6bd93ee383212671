"""Example 11: a prefix is computed once, written to a file, and read by the next process, which computes only the question.

The file holds keys and values: 4 layers of 2 KV heads with 32 values, K and V, two bytes each, are 1,024 bytes a token.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from agentctx_engine.models import random_config, random_model
from agentctx_engine.runtime import Engine, SamplingParams, kv_bytes

PREFIX = np.random.default_rng(0).integers(1, 500, 748).tolist()  # a system prompt with 40 tools
QUESTION = [7, 8, 9, 10, 11]


def engine() -> Engine:
    """The same model in both processes: its weights are drawn from a seed."""
    config = random_config("llama", num_layers=4, num_kv_heads=2, head_dim=32)
    model = random_model(config=config, dtype=torch.bfloat16, seed=0)
    return Engine(model, num_blocks=64, token_granular=True)


def save(path: Path) -> None:
    with engine() as first:
        saved = first.save(PREFIX, path)
    print(f"saved {saved.num_tokens} tokens: {saved.kv_bytes:,} bytes of keys and values, ", end="")
    print(f"{saved.kv_bytes // saved.num_tokens:,} a token")


def restore(path: Path) -> None:
    with engine() as second:
        restored = second.restore(path)
        result = second.generate(PREFIX + QUESTION, SamplingParams(max_tokens=4))
        afresh = second.generate(PREFIX + QUESTION, SamplingParams(max_tokens=4), reuse=False)
    print(f"a new process restored {len(restored.token_ids)} tokens")
    print(
        f"a prompt of {result.prompt_tokens}: {result.cached_tokens} cached, {result.computed_tokens} computed"
    )
    print("the same answer as without the file:", result.token_ids == afresh.token_ids)


if len(sys.argv) > 1:
    restore(Path(sys.argv[1]))
else:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent-prefix.kv"
        save(file)
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, str(file)], check=True)
    size = kv_bytes(layers=32, kv_heads=8, head_dim=128, value_bytes=2, tokens=len(PREFIX))
    print(f"of an 8B model: {size / 2**20:.1f} MiB, {size / 3e9 * 1e3:.1f} ms at 3 GB/s")
