"""Model: one decoder for all families, told apart by its config alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention import kv_cache, tiles
from agentctx_engine.attention.backend import (
    AttentionBackend,
    AttentionPlan,
    DecodePlanner,
    FusedKernels,
    KernelBackend,
    PackedBackend,
    PackedPlan,
)
from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.cpu import CpuAttention
from agentctx_engine.attention.decode_batch import DecodeBatch
from agentctx_engine.attention.named import accelerated_attention
from agentctx_engine.attention.quantized import Packing
from agentctx_engine.kernels import LANES, Kernels, attends, load_kernels
from agentctx_engine.models.coded_weight import CodedWeight, stack
from agentctx_engine.models.config import Rope
from agentctx_engine.models.fingerprint import Fingerprint
from agentctx_engine.models.linear import MIN_ROWS, Linear
from agentctx_engine.models.rope import Rotation, rotate
from agentctx_engine.models.weights import CodedWeights, Progress, Weights, expected_shapes

LayerKernels = Kernels | FusedKernels


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights. Query, key and value projections are one matrix, gate and up another."""

    attention_norm: Tensor
    qkv: Linear
    head_norm: Tensor | None  # [heads + kv_heads, head_dim], of queries and keys
    attention_out: Linear
    attention_out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    mlp_out_norm: Tensor | None
    group: int  # index into the config's layer_groups
    rope: Rope


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one step share."""

    rows: slice | Tensor  # the rows that are tokens; the others are padding
    turns: dict[Rope, Tensor]
    slot_mapping: tuple[Tensor, ...]
    plan: AttentionPlan
    kernels: LayerKernels | None  # None in a deterministic step, too: its bits never depend on a compiler
    wanted: Tensor | None  # the rows that leave the last layer; None: all
    packed: bool = False  # the KV memory is quantized


class Model:
    """Token ids in, logits out; keys and values go into the caller's paged memory.

    ``attention`` is the backend for all layers; by default the fast one for the device.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: AttentionBackend | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = weights.config
        self.dtype = dtype
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        kernels = load_kernels() if on_cpu and dtype == torch.float32 else None
        self.attention: AttentionBackend = attention or (
            CpuAttention(kernels if attends(self.config.head_dim) else None)
            if on_cpu
            else accelerated_attention(self.device)
        )
        fused = self.attention.layer_kernels if isinstance(self.attention, KernelBackend) else None
        self._kernels: LayerKernels | None = fused or kernels
        # What the products are surrounded with: nothing more than torch, C loops on the CPU, or Triton kernels.
        self.kernels = "triton" if fused is not None else "torch" if kernels is None else "c"
        self._windows = tuple(group.window for group in self.config.layer_groups)
        self._rotation = Rotation(self.config.ropes, self.config.head_dim, self.device)
        reader = _Reader(weights, dtype, self.device, progress, kernels)
        self.embedding = reader("embedding")
        self.layers = tuple(reader.layer(i) for i in range(self.config.num_layers))
        self.final_norm = reader("final_norm")
        self.output = reader.linear(
            "embedding" if self.config.tied_embeddings else "output",
            read={"embedding": self.embedding},
        )
        self._min_rows = MIN_ROWS if on_cpu and not self._coded else 1
        self.fingerprint = reader.fingerprint.hexdigest()  # of config and weights

    @property
    def _coded(self) -> bool:
        """Whether every product of a few rows reads codes."""
        products = [p for y in self.layers for p in (y.qkv, y.attention_out, y.gate_up, y.down)]
        return all(product.coded is not None for product in (*products, self.output))

    @torch.inference_mode()
    def forward(self, batch: Batch, kv_caches: Sequence[Tensor], *, deterministic: bool = False) -> Tensor:
        """Run one step.

        kv_caches: per layer [2, num_blocks, block_size, kv_heads, head_dim] in the model's dtype. The step's keys and
            values are written to the batch's slots.
        deterministic: compute each token in a way that depends on its sequence's tokens up to it alone, so that
            logits are equal to the last bit however the tokens are cut into steps, batched or cached (slower; see
            ``attention.tiles``).
        Returns the logits of ``batch.logit_rows``: [rows, vocab_size] float32.
        """
        if deterministic:
            return self._forward_in_tiles(batch, kv_caches)
        rows = len(batch.logit_rows)
        wanted = F.pad(batch.logit_rows, (0, max(0, self._min_rows - rows)))
        plan = self.attention.plan(batch, self._windows, self.dtype)
        return self._forward(batch, plan, wanted, kv_caches)[:rows]

    @property
    def decodes_in_place(self) -> bool:
        """Whether the attention backend can do ``decode``."""
        return isinstance(self.attention, DecodePlanner)

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch, kv_caches: Sequence[Tensor]) -> Tensor:
        """A token of each of some sequences → logits [rows, vocab_size] float32, padding rows among them.

        As ``forward``, but that the same kernels run whatever stands in the batch's tensors, so that it can be recorded.
        """
        assert isinstance(self.attention, DecodePlanner)
        plan = self.attention.plan_decode(batch, self._windows, self.dtype)
        return self._forward(batch, plan, None, kv_caches)[: batch.num_rows]

    def reads_packed(self, packing: Packing) -> bool:
        """Whether batches may say that their KV memory is quantized like this: rows of bytes are then the caches."""
        return isinstance(self.attention, PackedBackend) and self.attention.reads_packed(packing)

    def _forward(
        self,
        batch: Batch | DecodeBatch,
        plan: AttentionPlan,
        wanted: Tensor | None,
        kv_caches: Sequence[Tensor],
    ) -> Tensor:
        """Logits [rows, vocab_size] of the ``wanted`` rows, padding behind them."""
        rows = len(batch.token_ids)
        padding = max(0, self._min_rows - rows)
        step = Step(
            rows=slice(0, rows),
            turns=self._rotation.at(F.pad(batch.positions, (0, padding))),
            slot_mapping=batch.slot_mapping,
            plan=plan,
            kernels=self._kernels,
            wanted=wanted,
            packed=batch.packing is not None,
        )
        return self._logits(self._run(F.pad(batch.token_ids, (0, padding)), step, kv_caches))

    def _forward_in_tiles(self, batch: Batch, kv_caches: Sequence[Tensor]) -> Tensor:
        result = torch.empty((len(batch.logit_rows), self.config.vocab_size), device=self.device)
        place = torch.full(
            (batch.num_tokens,), -1, device=self.device
        )  # row of the batch → row of the result
        place[batch.logit_rows] = torch.arange(len(batch.logit_rows), device=self.device)
        for work in tiles.split_into_passes(batch):
            rows = tiles.PassRows.of(batch, work)
            step = Step(
                rows=rows.rows,
                turns=self._rotation.at(rows.positions),
                slot_mapping=rows.slot_mapping,
                plan=tiles.plan_pass(batch, work, self._windows, self.dtype, self.device),
                kernels=None,
                wanted=None,
            )
            x = self._run(rows.token_ids, step, kv_caches)
            target = place[rows.batch_rows]
            wanted = target >= 0
            if wanted.any():
                result[target[wanted]] = self._logits(x)[rows.rows[wanted]]
        return result

    def _run(self, token_ids: Tensor, step: Step, kv_caches: Sequence[Tensor]) -> Tensor:
        """All layers: token ids [rows] → normed hidden states [wanted rows, hidden_size]."""
        kernels = step.kernels
        x = F.embedding(token_ids, self.embedding) * self.config.embedding_scale
        normed = self._norm(x, self.layers[0].attention_norm, kernels)
        following = [layer.attention_norm for layer in self.layers[1:]] + [self.final_norm]
        for layer, next_norm, cache in zip(self.layers, following, kv_caches, strict=True):
            attended = self._attend(layer, normed, cache, step)
            if layer is self.layers[-1] and step.wanted is not None:
                attended, x = attended[step.wanted], x[step.wanted]
            out = self._attention_out(layer, attended, kernels)
            x, normed = self._add_and_norm(x, out, layer.mlp_norm, kernels)
            x, normed = self._add_and_norm(x, self._mlp(layer, normed, kernels), next_norm, kernels)
        return normed

    def _logits(self, normed: Tensor) -> Tensor:
        return self.output(normed).float()

    def _attend(self, layer: Layer, x: Tensor, cache: Tensor, step: Step) -> Tensor:
        """One layer's keys and values written, and its attention on ``x`` [rows, hidden_size], which is normed."""
        config, kernels = self.config, step.kernels
        qkv = layer.qkv(x).view(x.shape[0], -1, config.head_dim)
        heads, values = torch.split(qkv, [config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.head_norm is not None:
            heads = F.rms_norm(heads, heads.shape[-1:], None, config.norm_eps) * layer.head_norm
        slots = step.slot_mapping[layer.group]
        if kernels is not None and not step.packed:
            if layer.head_norm is not None:
                qkv = torch.cat([heads, values], dim=1)
            kernels.rotate_and_write(qkv, step.turns[layer.rope], cache, slots, heads.shape[1])
            queries = qkv[:, : config.num_heads]
        else:
            queries, keys = torch.split(
                rotate(heads, step.turns[layer.rope]), [config.num_heads, config.num_kv_heads], dim=1
            )
            if step.packed:
                assert isinstance(step.plan, PackedPlan)
                step.plan.write_packed(layer.group, keys[step.rows], values[step.rows], cache)
            else:
                kv_cache.write(cache, slots, keys[step.rows], values[step.rows])
        return step.plan.attend(layer.group, queries, cache, config.softmax_scale)

    def _attention_out(self, layer: Layer, attended: Tensor, kernels: LayerKernels | None) -> Tensor:
        out = layer.attention_out(attended)
        return out if layer.attention_out_norm is None else self._norm(out, layer.attention_out_norm, kernels)

    def _mlp(self, layer: Layer, x: Tensor, kernels: LayerKernels | None) -> Tensor:
        """One layer's gated MLP on ``x`` [rows, hidden_size], which is normed."""
        out = layer.down(self._gate(layer.gate_up(x), kernels))
        return out if layer.mlp_out_norm is None else self._norm(out, layer.mlp_out_norm, kernels)

    def _gate(self, gate_up: Tensor, kernels: LayerKernels | None) -> Tensor:
        """[rows, 2 * intermediate_size] → [rows, intermediate_size]"""
        silu = self.config.activation == "silu"
        if isinstance(kernels, Kernels):
            if silu and self.config.intermediate_size % LANES == 0:
                return kernels.gate_silu(gate_up)
        elif kernels is not None:
            return kernels.gate(gate_up, self.config.activation)
        gate, up = gate_up.chunk(2, dim=-1)
        gate = F.silu(gate) if silu else F.gelu(gate, approximate="tanh")
        return gate.mul_(up)

    def _add_and_norm(
        self, x: Tensor, added: Tensor, weight: Tensor, kernels: LayerKernels | None
    ) -> tuple[Tensor, Tensor]:
        """(``x + added``, its norm); ``x`` may be changed."""
        if kernels is None or isinstance(kernels, Kernels):
            x += added
            return x, self._norm(x, weight, kernels)
        return kernels.add_rms_norm(x, added, weight, self.config.norm_eps)

    def _norm(self, x: Tensor, weight: Tensor, kernels: LayerKernels | None) -> Tensor:
        if kernels is not None:
            return kernels.rms_norm(x, weight, self.config.norm_eps)
        return F.rms_norm(x, x.shape[-1:], weight, self.config.norm_eps)


class _Reader:
    """Reads a model's tensors in order, moves them to their place and tells the progress."""

    def __init__(
        self,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None,
        kernels: Kernels | None,
    ) -> None:
        self._kernels = kernels
        self._weights, self._dtype, self._device, self._progress = weights, dtype, device, progress
        self._done, self._total = 0, sum(1 for _ in expected_shapes(weights.config))
        self.fingerprint = Fingerprint(weights.config)

    def __call__(self, name: str) -> Tensor:
        tensor = self._weights.tensor(name).to(self._device, self._dtype)
        self.fingerprint.add(name, tensor)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor

    def linear(
        self, *names: str, bias: Tensor | None = None, read: Mapping[str, Tensor] | None = None
    ) -> Linear:
        """One product of one or more matrices, the first one's outputs first. ``read``: tensors that are here already."""
        tensors = [read[name] if read and name in read else self(name) for name in names]
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return Linear(weight, bias, coded=self._coded(names, tensors))

    def _coded(self, names: Sequence[str], tensors: Sequence[Tensor]) -> CodedWeight | None:
        if self._kernels is None or not isinstance(self._weights, CodedWeights):
            return None
        parts = [self._weights.codes(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        codes = stack(found)
        return CodedWeight(codes, self._kernels) if CodedWeight.fits(codes) else None

    def layer(self, i: int) -> Layer:
        config = self._weights.config

        def read(name: str) -> Tensor:
            return self(f"layers.{i}.{name}")

        def linear(*names: str, bias: Tensor | None = None) -> Linear:
            return self.linear(*(f"layers.{i}.{name}" for name in names), bias=bias)

        bias = None
        if config.attention_bias:
            bias = torch.cat([read("query_bias"), read("key_bias"), read("value_bias")])
        head_norm = None
        if config.qk_norm:
            shares = (("query_norm", config.num_heads), ("key_norm", config.num_kv_heads))
            head_norm = torch.cat([read(name).expand(heads, -1) for name, heads in shares])
        return Layer(
            attention_norm=read("attention_norm"),
            qkv=linear("query", "key", "value", bias=bias),
            head_norm=head_norm,
            attention_out=linear("attention_out"),
            attention_out_norm=read("attention_out_norm") if config.sandwich_norms else None,
            mlp_norm=read("mlp_norm"),
            gate_up=linear("gate", "up"),
            down=linear("down"),
            mlp_out_norm=read("mlp_out_norm") if config.sandwich_norms else None,
            group=config.group_of_layer[i],
            rope=config.ropes[i],
        )
