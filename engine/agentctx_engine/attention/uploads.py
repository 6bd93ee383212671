"""Small arrays of the host on their way to the device: the host doesn't wait for what the device still has to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[Any] | Sequence[Any]


def upload(values: Numbers, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` on ``device``, as ``dtype`` or as what they are. An array may be shared, a list is copied.

    A plain copy to a GPU would wait for all that was launched before it.
    """
    tensor = torch.as_tensor(values, dtype=dtype)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_index(rows: Sequence[int], device: torch.device | str) -> Tensor:
    """``rows`` as an index; also of no rows, which ``upload`` would make numbers with a point."""
    return upload(rows, device, torch.long)
