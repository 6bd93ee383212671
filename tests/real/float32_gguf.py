"""A quantized GGUF file as float32, so that llama.cpp multiplies the same weights as everybody else.

llama.cpp quantizes activations to match quantized weights; only with float32 weights are its numbers, and its work,
comparable with the engine's and transformers'.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_WRITTEN_BY_WRITER = ("general.architecture", "general.file_type", "general.quantization_version")


def write_float32(source: Path, target: Path) -> Path:
    """Copy ``source``'s settings, vocabulary and tensors to ``target``, every tensor dequantized. Returns ``target``."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name in _WRITTEN_BY_WRITER or name.startswith("GGUF."):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        # The reader's shape is innermost first, the writer wants it outermost first.
        writer.add_tensor(tensor.name, values.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
