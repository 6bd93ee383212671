"""Snapshots on the engine: which blocks hold a prefix, out to a file and back. See ``snapshot_file`` for the format."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.errors import EngineMemoryError, SnapshotError
from agentctx_engine.runtime.kv_store import BlockTable, KvStore, PlacedPrefix, TokenArray
from agentctx_engine.runtime.model_runner import DecoderModel, ModelRunner
from agentctx_engine.runtime.request import Sample
from agentctx_engine.runtime.snapshot_file import LayerKv, Snapshot


@dataclass(frozen=True, slots=True)
class RestoredPrefix:
    """What ``Engine.restore`` put back: a request that begins with ``token_ids`` now reuses ``findable_tokens`` of them."""

    token_ids: TokenArray
    findable_tokens: int


def snapshot_path(place: str | Path, directory: str | Path | None) -> Path:
    """A ``Path`` is used as it is; a string is a plain name in ``directory``. Raises ``SnapshotError`` for any other."""
    if isinstance(place, Path):
        return place
    if directory is None:
        raise SnapshotError(
            f"{place!r} is a name, but the engine has no snapshot_dir; set it, or give a Path"
        )
    if not place or place.startswith(".") or any(c in "/\\:" or ord(c) < 32 for c in place):
        raise SnapshotError(
            f"{place!r} is no name for a snapshot: it must not be empty, begin with a dot or hold a path separator; "
            "to write elsewhere give a Path"
        )
    return Path(directory) / place


def identity(model: DecoderModel, block_size: int) -> dict[str, str]:
    """What keys and values depend on besides the tokens. ``block_size`` is told and not compared: files hold tokens."""
    return {**comparable_identity(model), "block_size": str(block_size)}


def comparable_identity(model: DecoderModel) -> dict[str, str]:
    config = model.config
    ropes = [asdict(rope) for rope in config.ropes]
    return {
        "model": model_fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "shape": f"{config.num_layers} layers, {config.num_kv_heads} KV heads of {config.head_dim}",
        "windows": json.dumps(config.windows),
        "rope": hashlib.sha256(json.dumps(ropes).encode()).hexdigest(),
    }


def model_fingerprint(model: DecoderModel) -> str:
    """Of config and weights; of the config alone for a model that doesn't know its weights."""
    fingerprint = getattr(model, "fingerprint", None)
    return (
        fingerprint
        if isinstance(fingerprint, str)
        else hashlib.sha256(repr(model.config).encode()).hexdigest()
    )


def prefix_key(tokens: TokenArray, salt: str | None) -> str:
    """Stands for text and salt without telling the salt: a file is of use only to whoever knows it."""
    given = b"-" if salt is None else b"+" + salt.encode()
    return hashlib.sha256(hashlib.sha256(given).digest() + tokens.tobytes()).hexdigest()


def check(path: Path, snapshot: Snapshot, model: DecoderModel, salt: str | None) -> None:
    """Raises ``SnapshotError`` unless the layers have the model's shape and the file is of this salt.

    What a file says of itself in words is compared where it is read; its tensors may be others all the same.
    """
    config = model.config
    if len(snapshot.layers) != config.num_layers:
        raise SnapshotError(
            f"{path}: holds {len(snapshot.layers)} layers, the model has {config.num_layers}; save the prefix again"
        )
    for index, layer in enumerate(snapshot.layers):
        tokens = len(snapshot.token_ids) - layer.first
        shape = (tokens, config.num_kv_heads, config.head_dim)
        for name, tensor in (("keys", layer.keys), ("values", layer.values)):
            if tensor.shape != shape or tensor.dtype != model.dtype:
                raise SnapshotError(
                    f"{path}: layers.{index}.{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, the model's "
                    f"would be {model.dtype} of shape {shape}; save the prefix again"
                )
    if snapshot.identity.get("prefix") != prefix_key(snapshot.token_ids, salt):
        raise SnapshotError(
            f"{path}: was saved under another cache_salt; give the one that it was saved under"
        )


@torch.inference_mode()
def take(core: EngineCore, sample: Sample, salt: str | None) -> Snapshot:
    """As much of a sample's prompt as a lookup can find, copied to the CPU. When it has read the prompt and still runs, so that
    it holds all blocks of it: nothing needs to be waited for, and nothing can be evicted.

    Raises ``SnapshotError`` if that is nothing.
    """
    kv, runner, tokens = core.kv, core.runner, sample.request.prompt
    prefix = kv.held(sample.kv, len(tokens))
    if not prefix.num_tokens:
        raise SnapshotError(
            f"the prefix of {len(tokens)} tokens is too short: only whole blocks of {kv.block_size} can be reused"
        )
    held = tokens[: prefix.num_tokens]
    layers = []
    for index in range(len(runner.kv_caches)):
        table, first = _of_layer(runner, prefix, index)
        keys, values = runner.read_layer(index, table, first, prefix.num_tokens)
        layers.append(LayerKv(first, keys, values))
    known = identity(runner.model, kv.block_size) | {"prefix": prefix_key(held, salt)}
    return Snapshot(held, tuple(layers), known)


@torch.inference_mode()
def put_back(core: EngineCore, snapshot: Snapshot, salt: str | None) -> RestoredPrefix:
    """Write a snapshot into blocks and make them findable. Between two steps. Raises ``EngineMemoryError`` without room."""
    kv, prefix = core.kv, None
    tokens = _usable_tokens(kv, core.runner, snapshot)
    try:
        if not kv.settled:
            # A block that is on its way to others may never come, and all that is known as it is forgotten then.
            core.settle()
        prefix = kv.place(tokens, salt)
        if prefix is not None:
            kv.wait_until_safe([prefix.tables])
            _write(core.runner, prefix, snapshot)
    except BaseException as error:
        if prefix is not None:
            kv.abandon(prefix)
        kv.drop_cached()  # it may count on copies, of blocks that made room, which were never made
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise EngineMemoryError(
                f"restoring {len(tokens)} tokens ran out of memory ({type(error).__name__}: {error}); lower the number "
                "of KV blocks"
            ) from error
        raise
    if prefix is None:
        raise EngineMemoryError(
            f"a prefix of {len(tokens)} tokens doesn't fit what is free of the pool's {kv.pool_state().total} blocks "
            f"of {kv.block_size}; raise num_blocks, or restore when fewer requests run"
        )
    kv.placed(prefix)
    return RestoredPrefix(tokens, kv.locate(tokens, salt).num_tokens)


def _write(runner: ModelRunner, prefix: PlacedPrefix, snapshot: Snapshot) -> None:
    """What of ``prefix`` was not there before."""
    for index, layer in enumerate(snapshot.layers):
        table, first = _of_layer(runner, prefix, index)
        start = max(first, layer.first, prefix.num_reused)
        kept = slice(start - layer.first, prefix.num_tokens - layer.first)
        runner.write_layer(index, table, start, layer.keys[kept], layer.values[kept])


def _usable_tokens(kv: KvStore, runner: ModelRunner, snapshot: Snapshot) -> TokenArray:
    """The tokens that can be put back: all, or whole blocks where windowed layers keep the window before the end alone.

    There a text can be continued from its last whole block only if the window before that, not before the text's end, is
    there; and in whole blocks too, since other texts may find each block. Raises ``SnapshotError`` if the engine would need
    positions that the file left out.
    """
    tokens, size = snapshot.token_ids, kv.block_size
    if not kv.keeps_all_windows:
        tokens = tokens[: len(tokens) // size * size]
    for layer, window in zip(snapshot.layers, runner.model.config.windows, strict=True):
        if window is None or kv.keeps_all_windows:
            needed = 0
        else:
            needed = max(0, len(tokens) - window + 1) // size * size
        if layer.first > needed:
            raise SnapshotError(
                f"the snapshot holds a windowed layer from token {layer.first} on, this engine needs {needed}: save it "
                "with full_window_cache=True, or restore it without and with the block size that it was saved with"
            )
    return tokens


def _of_layer(runner: ModelRunner, prefix: PlacedPrefix, layer: int) -> tuple[BlockTable, int]:
    """The block table of a layer, and the first position that it holds."""
    group = runner.group_of_layer[layer]
    return prefix.tables[group], prefix.first_tokens[group]
