"""Sampler: a step's logits in, one token per row out.

Each row is a function of its own logits, parameters, seed, sample index and position alone. The rows of
a step are worked on together where that can't show: every operation below reduces along the vocabulary
only, and the two sizes that decide how a row is sorted (``SORTED_HEAD`` or the whole vocabulary) are
chosen per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentctx_engine.attention.uploads import upload, upload_index
from agentctx_engine.runtime.sampling_params import SamplingParams

SORTED_HEAD = 1024
"""Top-k and top-p first look at this many most likely tokens: selecting them costs a tenth of sorting a
vocabulary of 49,152, and top-p needs more only for nearly flat distributions."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler must know about one row of logits."""

    params: SamplingParams
    seed: int
    sample_index: int
    position: int  # index of the new token among the sample's output tokens
    seen_ids: Sequence[int] = ()  # distinct ids of prompt and output; read only with a repetition penalty


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One new token; ``logprob`` and ``top`` are ``None`` unless the request asked for logprobs."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None  # (token id, log-probability), most likely first


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1) that belongs to this (seed, sample, position): Philox, counted by position."""
    key = np.array([seed, sample_index], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw()
    return (int(raw) >> 11) * 2.0**-53


class Sampled:
    """A step's tokens, chosen where the logits are and on their way to the host, which can do something else meanwhile."""

    def __init__(self, ids: torch.Tensor, broken: torch.Tensor, logprobs: Sequence[RowLogprobs]) -> None:
        """ids: [rows] int64; broken: [rows] bool, the logits were no numbers. ``logprobs`` of the rows that asked for them."""
        self.ids = ids
        self._ids_and_broken = torch.stack([ids, broken.long()])
        self._logprobs = logprobs
        self._arrived: torch.cuda.Event | None = None
        if ids.device.type == "cuda":
            target = torch.empty(self._ids_and_broken.shape, dtype=torch.int64, pin_memory=True)
            self._ids_and_broken = target.copy_(self._ids_and_broken, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> tuple[list[SampledToken], list[bool]]:
        """(the token, whether it means nothing because the logits were no numbers) of each row, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        token_ids, broken = self._ids_and_broken.tolist()
        tokens = [SampledToken(token_id) for token_id in token_ids]
        for found in self._logprobs:
            top = tuple(zip(found.top_ids.tolist(), found.top.tolist(), strict=True))
            tokens[found.row] = SampledToken(token_ids[found.row], found.sampled.item(), top)
        return tokens, list(map(bool, broken))


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities of one row: of its token [], and of the most likely ones, with their ids, each [count]."""

    row: int
    sampled: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Choose a token for each row of ``logits`` ``[rows, vocabulary]`` (any float type; left unchanged)."""
    return choose(logits, rows).wait()[0]


def choose(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    """``sample`` without waiting."""
    logits = logits.float()
    scores = _apply_repetition_penalty(logits, rows)
    ids = _most_likely(scores)
    random_rows = [i for i, row in enumerate(rows) if not row.params.greedy]
    if random_rows:
        index = upload_index(random_rows, logits.device)
        ids[index] = _draw(scores[index], [rows[i] for i in random_rows])
    # The maximum of a row with a NaN is NaN. Where it is infinite, there is nothing to draw from either.
    broken = ~logits.amax(dim=-1).isfinite()
    return Sampled(ids, broken, _logprobs(logits, ids, rows))


def _most_likely(scores: torch.Tensor) -> torch.Tensor:
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # Twelve times as fast as torch's argmax for a vocabulary of 49,152.
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def _apply_repetition_penalty(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Divide positive and multiply negative logits of seen tokens by the penalty."""
    penalised = [(i, row) for i, row in enumerate(rows) if row.params.penalises and row.seen_ids]
    if not penalised:
        return logits
    scores = logits.clone()
    for i, row in penalised:
        seen = upload(row.seen_ids, logits.device, torch.long)
        values = scores[i, seen]
        penalty = row.params.repetition_penalty
        scores[i, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return scores


def _draw(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Draw one id per row of ``scores`` ``[rows, vocabulary]``, all with temperature above 0."""
    device = scores.device
    temperature = upload([r.params.temperature for r in rows], device)
    # The maximum goes first so that a tiny temperature can't overflow to infinity.
    scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature[:, None]
    uniforms = upload([uniform(r.seed, r.sample_index, r.position) for r in rows], device, torch.float64)
    filtered = [r.params.top_k > 0 or r.params.top_p < 1.0 for r in rows]
    ids = torch.empty(len(rows), dtype=torch.long, device=device)
    for kind, draw in ((False, _draw_unsorted), (True, _draw_sorted)):
        chosen = [i for i, f in enumerate(filtered) if f is kind]
        if chosen:
            index = upload_index(chosen, device)
            ids[index] = draw(scaled[index], uniforms[index], [rows[i].params for i in chosen])
    return ids


def _draw_unsorted(
    scaled: torch.Tensor, uniforms: torch.Tensor, params: Sequence[SamplingParams]
) -> torch.Tensor:
    """No top-k, no top-p: min-p needs no order, so nothing is sorted."""
    return _invert(_drop_below_min_p(torch.softmax(scaled, dim=-1), params), uniforms)


def _draw_sorted(
    scaled: torch.Tensor, uniforms: torch.Tensor, params: Sequence[SamplingParams]
) -> torch.Tensor:
    """Top-k, top-p and min-p over the tokens in descending order; the whole vocabulary only where it must be."""
    vocabulary = scaled.shape[-1]
    ids = torch.empty(len(params), dtype=torch.long, device=scaled.device)
    short = [i for i, p in enumerate(params) if 0 < p.top_k <= SORTED_HEAD]
    head = min(SORTED_HEAD, vocabulary)
    values, order = torch.topk(scaled, head, dim=-1)
    whole = []
    if len(short) < len(params):
        mass = values.exp().sum(dim=-1, dtype=torch.float64) / scaled.exp().sum(dim=-1, dtype=torch.float64)
        # The margin keeps rows whose cut falls at the head's very end away from rounding.
        enough = [
            head == vocabulary or m > p.top_p + 1e-6 for m, p in zip(mass.tolist(), params, strict=True)
        ]
        whole = [i for i, p in enumerate(params) if i not in short and (p.top_k > 0 or not enough[i])]
    in_head = [i for i in range(len(params)) if i not in whole]
    total = torch.logsumexp(scaled, dim=-1)
    for chosen, by_sort in ((in_head, False), (whole, True)):
        if not chosen:
            continue
        index = upload_index(chosen, scaled.device)
        if by_sort:
            row_values, row_order = torch.sort(scaled[index], dim=-1, descending=True, stable=True)
        else:
            row_values, row_order = values[index], order[index]
        kept = _keep_top([params[i] for i in chosen], row_values, total[index])
        column = _invert(kept, uniforms[index])
        ids[index] = row_order.gather(-1, column[:, None])[:, 0]
    return ids


def _keep_top(params: Sequence[SamplingParams], values: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Probabilities (not normalised) of descending ``values``, zero where top-k, top-p or min-p drop the token."""
    rank = torch.arange(values.shape[-1], device=values.device)
    top_k = upload([p.top_k or values.shape[-1] for p in params], values.device)
    top_p = upload([p.top_p for p in params], values.device, torch.float64)
    probs = torch.where(rank < top_k[:, None], (values - total[:, None]).exp(), 0.0).double()
    limited = upload([p.top_k > 0 for p in params], values.device)
    mass = torch.where(limited, probs.sum(dim=-1), 1.0)  # top-p counts within what top-k kept
    before = probs.cumsum(dim=-1) - probs
    probs = torch.where(before < (top_p * mass)[:, None], probs, 0.0)
    return _drop_below_min_p(probs, params)


def _drop_below_min_p(probs: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Zero what is less likely than ``min_p`` times the most likely."""
    if all(p.min_p == 0.0 for p in params):
        return probs
    min_p = upload([p.min_p for p in params], probs.device, probs.dtype)
    return torch.where(probs >= min_p[:, None] * probs.amax(dim=-1, keepdim=True), probs, 0.0)


def _invert(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The column where the running sum of ``probs`` passes ``uniform`` × the row's sum. Never a column with probability 0."""
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms * cumulative[:, -1]
    column = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    # Rounding can put the target on the final sum: the last token with any probability is then meant.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())[:, 0]
    # A row that holds no numbers gets some token, since another one of its step may hold some.
    return torch.minimum(column, last).clamp_(max=probs.shape[-1] - 1)


def _logprobs(logits: torch.Tensor, ids: torch.Tensor, rows: Sequence[SamplingRow]) -> list[RowLogprobs]:
    """Of the rows that ask for them."""
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    if not wanted:
        return []
    index = upload_index(wanted, logits.device)
    logprobs = torch.log_softmax(logits[index], dim=-1)
    sampled = logprobs.gather(-1, ids[index][:, None])[:, 0]
    found = []
    for j, i in enumerate(wanted):
        count = min(rows[i].params.logprobs or 0, logits.shape[-1])
        values, order = torch.topk(logprobs[j], count)
        found.append(RowLogprobs(i, sampled[j], values, order))
    return found
