"""load_model: a path in, a Model out.

A format's reader is imported when a file of it is opened: models of random weights need neither gguf nor safetensors.
"""

from __future__ import annotations

from pathlib import Path

import torch

from agentctx_engine.attention.backend import AttentionBackend
from agentctx_engine.models.errors import CheckpointError
from agentctx_engine.models.model import Model
from agentctx_engine.models.weights import Progress, Weights


def open_weights(path: Path | str) -> Weights:
    """A GGUF file, or a Hugging Face directory (``config.json`` and safetensors). Raises ``CheckpointError``."""
    path = Path(path)
    if path.is_dir():
        from agentctx_engine.models.hf_directory import HfDirectory

        return HfDirectory(path)
    if path.is_file():
        from agentctx_engine.models.gguf_file import GgufFile

        return GgufFile(path)
    raise CheckpointError(
        path, "is not there", remedy="give a GGUF file or a directory with config.json and safetensors"
    )


def load_model(
    path: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    attention: AttentionBackend | None = None,
    progress: Progress | None = None,
) -> Model:
    """Read a checkpoint; quantized tensors are dequantized to ``dtype``, in which the model also computes.

    ``progress`` is called after every tensor with (tensors read, tensors in all). Raises ``CheckpointError``, which
    names the file and the tensor or field.
    """
    return Model(open_weights(path), dtype=dtype, device=device, attention=attention, progress=progress)
