"""A model without weights whose every token depends on all it can read through the block tables.

It stores each token's id in the KV memory and finds the next token by hashing what it reads back: a wrong slot, a
missed copy, a block given to two owners or a stale entry changes the output. It is quick enough for hundreds of schedules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.models.config import ModelConfig, Rope


def tiny_config(vocab_size: int = 97, max_context: int = 4096) -> ModelConfig:
    return ModelConfig(
        family="llama", vocab_size=vocab_size, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=2, windows=(None,), ropes=(Rope(),), max_context=max_context, eos_token_ids=(0,),
    )  # fmt: skip


@dataclass
class ContextHashModel:
    """See the module. ``reference`` gives the same logits from a plain list of token ids."""

    config: ModelConfig = field(default_factory=tiny_config)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    calls: int = 0
    tokens_run: int = 0

    @classmethod
    def with_vocabulary(cls, vocab_size: int) -> ContextHashModel:
        return cls(tiny_config(vocab_size))

    def forward(self, batch: Batch, kv_caches: Sequence[Tensor], *, deterministic: bool = False) -> Tensor:
        self.calls += 1
        self.tokens_run += batch.num_tokens
        memory = kv_caches[0].flatten(1, 2)
        slots = batch.slot_mapping[0]
        memory[0].index_copy_(0, slots, batch.token_ids.float()[:, None, None].expand(-1, 1, 2))
        memory[1].index_copy_(0, slots, batch.positions.float()[:, None, None].expand(-1, 1, 2))
        rows: list[Tensor] = []
        wanted = set(batch.logit_rows.tolist())
        block_size = batch.block_size
        for i in range(len(batch.context_lens)):
            table = batch.block_tables[0][i].to(torch.int64)
            for row in range(batch.query_starts[i], batch.query_starts[i + 1]):
                if row not in wanted:
                    continue
                positions = torch.arange(int(batch.positions[row]) + 1)
                read = table[positions // block_size] * block_size + positions % block_size
                assert torch.equal(memory[1][read, 0, 0].long(), positions), (
                    "a token stands at another's place"
                )
                rows.append(self.logits(memory[0][read, 0, 0].long().tolist()))
        return torch.stack(rows) if rows else torch.empty(0, self.config.vocab_size)

    def logits(self, tokens: list[int]) -> Tensor:
        """[vocab_size]: a function of the whole context."""
        digest = hashlib.blake2b(repr(tokens).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return torch.randn(self.config.vocab_size, generator=generator)

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """What a run without any cache, batch or block gives."""
        tokens = list(prompt)
        for _ in range(max_tokens):
            tokens.append(int(self.logits(tokens).argmax()))
            if tokens[-1] in self.config.eos_token_ids:
                break
        return tokens[len(prompt) :]
