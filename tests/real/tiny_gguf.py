"""Random-weight models of a few kilobytes, as GGUF files: real architectures, real code paths, no download.

Each is written from a seed, so that two runs serve the same model. The vocabulary is 256 byte tokens plus two
special ones, one copied with its merges and chat template from another GGUF, or one that is given.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from .vocabularies import CONTROL, NORMAL, Vocabulary, written

VOCABULARY = 258
_WIDTH, _HEADS, _KV_HEADS, _HEAD, _INNER = 32, 2, 1, 16, 64

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_full_attention(
    path: Path, *, n_ctx: int = 8192, vocabulary: Path | Vocabulary | None = None, template: str = _CHATML
) -> Path:
    """A Llama of two layers: every token stays in memory. ``template``: the chat template of a vocabulary that has none."""
    return _write(path, "llama", n_ctx, vocabulary, _llama, template)


def write_sliding_window(
    path: Path, *, window: int = 64, n_ctx: int = 8192, vocabulary: Path | None = None
) -> Path:
    """A Gemma 3 of six layers, five of them with a sliding window of ``window`` tokens."""

    def fill(writer: gguf.GGUFWriter, weights: _Weights) -> None:
        _gemma3(writer, weights, window)

    return _write(path, "gemma3", n_ctx, vocabulary, fill)


def write_hybrid(path: Path, *, n_ctx: int = 8192, vocabulary: Path | None = None) -> Path:
    """An LFM2 of three layers: short convolutions, whose state can't be rolled back, around one attention layer."""
    return _write(path, "lfm2", n_ctx, vocabulary, _lfm2)


class _Weights:
    """Adds random tensors. The scale keeps activations of order one, so that sampling sees no NaN."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self.writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, inputs: int, outputs: int) -> None:
        values = self._random.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        self.writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(self, name: str, size: int) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    def feed_forward(self, block: str) -> None:
        self.norm(f"{block}.ffn_norm", _WIDTH)
        self.matrix(f"{block}.ffn_gate", _WIDTH, _INNER)
        self.matrix(f"{block}.ffn_up", _WIDTH, _INNER)
        self.matrix(f"{block}.ffn_down", _INNER, _WIDTH)

    def attention(self, block: str, *, normed: bool) -> None:
        self.matrix(f"{block}.attn_q", _WIDTH, _HEADS * _HEAD)
        self.matrix(f"{block}.attn_k", _WIDTH, _KV_HEADS * _HEAD)
        self.matrix(f"{block}.attn_v", _WIDTH, _KV_HEADS * _HEAD)
        self.matrix(f"{block}.attn_output", _HEADS * _HEAD, _WIDTH)
        if normed:
            self.norm(f"{block}.attn_q_norm", _HEAD)
            self.norm(f"{block}.attn_k_norm", _HEAD)


def _write(
    path: Path,
    architecture: str,
    n_ctx: int,
    vocabulary: Path | Vocabulary | None,
    fill: Callable[[gguf.GGUFWriter, _Weights], None],
    template: str = _CHATML,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny random {architecture}")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    if isinstance(vocabulary, Path):
        size = _copy_vocabulary(writer, vocabulary)
    else:
        size = _add_vocabulary(writer, vocabulary or byte_vocabulary(), template)
    writer.add_vocab_size(size)
    weights = _Weights(writer, seed=1)
    weights.matrix("token_embd", _WIDTH, size)
    fill(writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _llama(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    writer.add_block_count(2)
    writer.add_head_count_kv(_KV_HEADS)
    for index in range(2):
        block = f"blk.{index}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        weights.attention(block, normed=False)
        weights.feed_forward(block)
    weights.norm("output_norm", _WIDTH)


def _gemma3(writer: gguf.GGUFWriter, weights: _Weights, window: int) -> None:
    writer.add_block_count(6)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_sliding_window(window)
    for index in range(6):
        block = f"blk.{index}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        weights.attention(block, normed=True)
        weights.norm(f"{block}.post_attention_norm", _WIDTH)
        weights.feed_forward(block)
        weights.norm(f"{block}.post_ffw_norm", _WIDTH)
    weights.norm("output_norm", _WIDTH)


def _lfm2(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    writer.add_block_count(3)
    writer.add_head_count_kv([0, _KV_HEADS, 0])
    writer.add_shortconv_l_cache(3)
    for index in range(3):
        block = f"blk.{index}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        if index == 1:
            weights.attention(block, normed=True)
        else:
            weights.matrix(f"{block}.shortconv.in_proj", _WIDTH, 3 * _WIDTH)
            weights.matrix(f"{block}.shortconv.out_proj", _WIDTH, _WIDTH)
            weights.matrix(f"{block}.shortconv.conv", 3, _WIDTH)
        weights.feed_forward(block)
    weights.norm("token_embd_norm", _WIDTH)


def byte_vocabulary() -> Vocabulary:
    """The 256 bytes, one merge and two control tokens."""
    tokens = (*(written(bytes([value])) for value in range(256)), "<|bos|>", "<|eos|>")
    types = (NORMAL,) * 256 + (CONTROL,) * 2
    return Vocabulary(tokens, types, ("Ġ Ġ",), pre="default", bos="<|bos|>", eos="<|eos|>")


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary, template: str) -> int:
    writer.add_tokenizer_model(vocabulary.model)
    if vocabulary.pre is not None:
        writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    for text, add in ((vocabulary.bos, writer.add_bos_token_id), (vocabulary.eos, writer.add_eos_token_id)):
        if text is not None:
            add(vocabulary.tokens.index(text))
    for key, value in vocabulary.switches.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.add_chat_template(template)
    return len(vocabulary.tokens)


def _copy_vocabulary(writer: gguf.GGUFWriter, source: Path) -> int:
    """Copy every ``tokenizer.*`` field of another GGUF."""
    reader = gguf.GGUFReader(source)
    size = 0
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind = field.types[0]
        value = field.contents()
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
        if key == "tokenizer.ggml.tokens":
            size = len(value)
    return size
