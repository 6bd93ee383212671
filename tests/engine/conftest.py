"""One thread for torch: the models here are so small that a second one only waits, and CI runs two workers on two cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
