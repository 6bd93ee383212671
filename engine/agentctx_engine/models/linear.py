"""Linear: a weight matrix in the layout that this machine multiplies fastest.

On the CPU in float32, oneDNN keeps the matrix packed in its own blocked layout. Against ``F.linear`` on the machines
measured that is 1.1 times as fast for hundreds of rows, twice for 8 rows, and 1.5 times for one: then four rows are
multiplied, because oneDNN reads memory faster for four rows than for one (``MIN_ROWS``).

A matrix out of a quantized file also comes as a ``CodedWeight``, which multiplies up to ``MOST_ROWS`` rows: it reads a third
of the bytes, and decoding is as slow as the bytes it reads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.kernels import MOST_ROWS
from agentctx_engine.models.coded_weight import CodedWeight

MIN_ROWS = 4  # rows that a step is padded to on the CPU
_PACK_FOR_ROWS = 8  # oneDNN picks its layout by a row count; the one for 8 serves all counts from 2 on


def packing_is_available() -> bool:
    """Whether this build of torch has the packed product (x86 builds do)."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear:
    """``y = x Wᵀ + b`` for ``x`` [rows, inputs] and a weight [outputs, inputs]; the given weight isn't kept if packed.

    ``coded``: the same weight for few rows.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        pack: bool | None = None,
        coded: CodedWeight | None = None,
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.bias = bias
        self.coded = coded
        if pack is None:
            pack = weight.device.type == "cpu" and weight.dtype == torch.float32 and packing_is_available()
        self.packed = pack
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS) if pack else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.coded is not None and x.shape[0] <= MOST_ROWS:
            product = self.coded(x)
            return product if self.bias is None else product.add_(self.bias)
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)
