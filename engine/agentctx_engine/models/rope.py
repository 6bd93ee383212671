"""Rotary position embedding, and its scalings, as one complex multiplication.

Pair ``i`` of a head is turned by ``position * frequency[i]``. The engine stores the two numbers of a pair side by
side (checkpoints in Hugging Face format keep them half a head apart: the loader reorders the weights), so that a
head of 64 numbers is 32 complex ones and the rotation is one product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentctx_engine.models.config import Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position of each of a head's ``head_dim // 2`` pairs, float32."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / (rope.theta**pairs)
    if rope.divisors:
        if len(rope.divisors) != len(base):
            raise ValueError(f"{len(rope.divisors)} RoPE divisors for {len(base)} pairs")
        return base / torch.tensor(rope.divisors)
    match rope.scaling:
        case "none":
            return base
        case "linear":
            return base / rope.factor
        case "llama3":
            return _llama3(rope, base)
        case "yarn":
            return _yarn(rope, base, head_dim)


def _llama3(rope: Rope, base: Tensor) -> Tensor:
    """Slow pairs are slowed down by ``factor``, fast ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * math.pi / base
    slow = rope.original_context / rope.low_freq_factor
    fast = rope.original_context / rope.high_freq_factor
    keep = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - keep) * base / rope.factor + keep * base
    scaled = torch.where(wavelength > slow, base / rope.factor, base)
    between = (wavelength <= slow) & (wavelength >= fast)
    return torch.where(between, blended, scaled)


def _yarn(rope: Rope, base: Tensor, head_dim: int) -> Tensor:
    """Pairs that turn less than ``beta_slow`` times over the original context are interpolated, those that turn more
    than ``beta_fast`` times are kept, with a linear ramp between (arXiv 2309.00071, section 3.2)."""

    def dimension(rotations: float) -> float:
        return (
            head_dim
            * math.log(rope.original_context / (rotations * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return base * (1 - ramp) + base / rope.factor * ramp


class Rotation:
    """The rotations of one step's positions, for each distinct rope of the model."""

    def __init__(self, ropes: Sequence[Rope], head_dim: int, device: torch.device | str = "cpu") -> None:
        self._tables = {rope: frequencies(rope, head_dim).to(device) for rope in dict.fromkeys(ropes)}

    def at(self, positions: Tensor) -> dict[Rope, Tensor]:
        """``positions`` [rows] → per rope [rows, 1, head_dim // 2] complex64."""
        where = positions.float()[:, None]
        turns = {}
        for rope, table in self._tables.items():
            angle = (where * table).unsqueeze(1)
            turns[rope] = torch.polar(torch.full_like(angle, rope.attention_factor), angle)
        return turns


def rotate(heads: Tensor, turn: Tensor) -> Tensor:
    """Turn ``heads`` [rows, heads, head_dim] by ``turn`` [rows, 1, head_dim // 2]; same shape and dtype back."""
    pairs = torch.view_as_complex(torch.unflatten(heads.float(), -1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(heads.dtype)


def interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a projection (or the numbers of a head's norm or bias) from half-a-head-apart pairs to
    side-by-side ones: ``weight`` [heads * head_dim, …] → same shape."""
    halves = torch.unflatten(weight, 0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)
