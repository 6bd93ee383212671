"""How fast the engine is: SmolLM2-135M in float32 with one thread, beside transformers and llama.cpp with the same.

    python tests/bench/engine.py            # the table of engine/README.md: about four minutes on a quiet core
    python tests/bench/engine.py --rounds 3

Ours and transformers run in this process, llama.cpp (``xllamacpp``, its own server) in a process of its own on a GGUF
that holds the same weights as float32. With one thread each, a contestant's processor time is what it takes on an idle machine, and
stays so beside other load; what memory and caches lose to neighbours, the contestants share by taking turns within each
round. A figure is the median of its rounds. Ours is the whole engine: scheduling, blocks and sampling are in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from agentctx_engine.models import Model, load_model  # noqa: E402
from agentctx_engine.runtime.build import build_core  # noqa: E402
from agentctx_engine.runtime.config import EngineConfig  # noqa: E402
from agentctx_engine.runtime.core import EngineCore  # noqa: E402
from agentctx_engine.runtime.request import Request  # noqa: E402
from agentctx_engine.runtime.sampling_params import SamplingParams  # noqa: E402
from tests.model_files import NO_SMOLLM2, smollm2_file  # noqa: E402
from tests.real.float32_gguf import write_float32  # noqa: E402
from tests.real.llama_server import LlamaServer  # noqa: E402

ROUNDS = 5
PROMPTS = (512, 2048)
DECODE_CONTEXT = 1024
DECODE_TOKENS = 12  # timed per round
TOGETHER, TOGETHER_CONTEXT = 8, 256
HISTORY, TURN = 4096, 64


def random_prompt(random: Random, length: int) -> list[int]:
    return random.choices(range(100, 40_000), k=length)


class Contestant(Protocol):
    name: str

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from a prompt it hasn't seen to the token that follows it."""
        ...

    def decode(self, prompt: list[int], tokens: int) -> float:
        """Seconds per token of a greedy continuation. The prompt's own cost isn't counted."""
        ...


class Ours:
    """The engine in its default settings, stepped without its thread."""

    name = "agentctx"

    def __init__(self, model: Model, **config: Any) -> None:
        self.core: EngineCore = build_core(model, EngineConfig(**config))
        self._next_id = 0

    def add(self, prompt: Sequence[int], max_tokens: int) -> Request:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=())
        tokens = np.array(prompt, dtype=np.int32)
        request = Request(self._next_id, tokens, params, seed=0, arrival=time.perf_counter())
        self._next_id += 1
        self.core.add(request)
        return request

    def finish(self) -> None:
        while self.core.has_work:
            self.core.step()

    def first_token(self, prompt: list[int]) -> tuple[float, Request]:
        start = time.process_time()
        request = self.add(prompt, 1)
        self.finish()
        return time.process_time() - start, request

    def prefill(self, prompt: list[int]) -> float:
        seconds, request = self.first_token(prompt)
        assert request.computed_tokens == len(prompt)
        return seconds

    def decode(self, prompt: list[int], tokens: int) -> float:
        return self.decode_together([prompt], tokens)

    def decode_together(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds of a step in which every prompt's sample decodes one token. Several prompts must be cached."""
        requests = [self.add(prompt, tokens + len(prompts) + 2) for prompt in prompts]
        while not all(request.samples[0].output for request in requests):
            self.core.step()
        start = time.process_time()
        for _ in range(tokens):
            report = self.core.step()
            assert report.step.num_tokens == len(prompts)
        seconds = (time.process_time() - start) / tokens
        self.finish()
        return seconds


class Transformers:
    """The same file read by transformers, float32, its default attention (PyTorch's fused one)."""

    name = "transformers"

    def __init__(self, gguf: Path) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache

        self._new_cache = DynamicCache
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        ).eval()
        self._caches: dict[tuple[int, ...], Any] = {}

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        ids = torch.tensor([prompt])
        start = time.process_time()
        int(self._model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
        return time.process_time() - start

    @torch.inference_mode()
    def decode(self, prompt: list[int], tokens: int) -> float:
        key = tuple(prompt)
        if key not in self._caches:
            self._caches[key] = self._new_cache()
            self._model(torch.tensor([prompt[:-1]]), cache=self._caches[key], logits_to_keep=1)
        cache = self._caches[key]
        token = prompt[-1]
        for step in range(tokens + 1):
            if step == 1:  # the prompt's last token went before
                start = time.process_time()
            out = self._model(torch.tensor([[token]]), cache=cache)
            token = int(out.logits[0, -1].argmax())
        seconds = (time.process_time() - start) / tokens
        cache.crop(-(tokens + 1))
        return seconds


class LlamaCpp:
    """llama.cpp's own server, one request at a time."""

    name = "llama.cpp"

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._clock = (~server.pid << 3) | 2  # clock_getcpuclockid(3): processor time of another process

    def _complete(self, prompt: list[int], tokens: int, reuse: bool) -> tuple[float, Any]:
        body = {
            "prompt": prompt, "n_predict": tokens, "cache_prompt": reuse, "temperature": 0.0, "ignore_eos": True,
        }  # fmt: skip
        start = time.clock_gettime(self._clock)
        timings = self._server.post("/completion", body)["timings"]
        seconds = time.clock_gettime(self._clock) - start
        assert timings["predicted_n"] == tokens
        return seconds, timings

    def prefill(self, prompt: list[int]) -> float:
        seconds, timings = self._complete(prompt, 1, reuse=False)
        assert timings["prompt_n"] == len(prompt)
        return seconds

    def decode(self, prompt: list[int], tokens: int) -> float:
        self._complete(prompt, 1, reuse=True)
        before, _ = self._complete(prompt, 1, reuse=True)
        seconds, _ = self._complete(prompt, tokens + 1, reuse=True)
        return (seconds - before) / tokens


@dataclass(frozen=True)
class Row:
    """One claim: ours against a baseline. Figures are medians in ``unit``; ``ratio`` is how many times better ours is."""

    name: str
    ours: float
    baseline: str
    other: float
    unit: str
    least: float | None  # what the ratio must be; None: told, not claimed

    @property
    def ratio(self) -> float:
        return self.other / self.ours if self.unit == "s" else self.ours / self.other

    @property
    def holds(self) -> bool:
        return self.least is None or self.ratio >= self.least


class Bench:
    """All contestants, ready; close it to end the server. Each method measures one group of rows."""

    def __init__(self, gguf: Path, *, rounds: int = ROUNDS) -> None:
        torch.set_num_threads(1)
        self.rounds = rounds
        self.random = Random(11)
        self.model = load_model(gguf)
        self.ours = Ours(self.model, num_blocks=1024)
        self._folder = tempfile.TemporaryDirectory()
        self._float32 = write_float32(gguf, Path(self._folder.name, "float32.gguf"))
        self._server = LlamaServer(self._float32, n_parallel=1, n_ctx=PROMPTS[-1] + 256)
        self.transformers = Transformers(gguf)
        self._server.start()
        self.llama = LlamaCpp(self._server)

    def close(self) -> None:
        self._server.stop()
        self._folder.cleanup()

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        return self.ours, self.transformers, self.llama

    def prefill(self, length: int) -> list[Row]:
        """Tokens per second of a prompt that nobody has seen."""
        least = {self.transformers.name: 1.0, self.llama.name: 1.2}
        for contestant in self.contestants:
            contestant.prefill(random_prompt(self.random, 64))
        prompts = [random_prompt(self.random, length) for _ in range(self.rounds)]
        seconds = [median(times) for times in self._in_turns(lambda c, i: c.prefill(prompts[i]))]
        return self._against_both(f"prefill of {length:,}", [length / s for s in seconds], least)

    def decode(self) -> list[Row]:
        """Tokens per second of one sequence at ``DECODE_CONTEXT``."""
        least = {self.transformers.name: 2.0, self.llama.name: 0.9}
        prompt = random_prompt(self.random, DECODE_CONTEXT)
        for contestant in self.contestants:
            contestant.decode(prompt, 1)
        times = self._in_turns(lambda c, i: c.decode(prompt, DECODE_TOKENS))
        return self._against_both(f"decode at {DECODE_CONTEXT:,}", [1 / median(t) for t in times], least)

    def together(self) -> list[Row]:
        """Tokens per second of eight sequences that decode together, against one of them alone."""
        rows = []
        for context, least in ((TOGETHER_CONTEXT, 3.0), (DECODE_CONTEXT, None)):
            prompts = [random_prompt(self.random, context) for _ in range(TOGETHER)]
            for prompt in prompts:  # cached, so that all start decoding in the same step
                self.ours.first_token(prompt)
            one, many = [], []
            for _ in range(self.rounds):
                one.append(self.ours.decode_together(prompts[:1], DECODE_TOKENS))
                many.append(self.ours.decode_together(prompts, DECODE_TOKENS))
            figures = TOGETHER / median(many), 1 / median(one)
            rows.append(
                Row(f"decode, {TOGETHER} at {context:,}", figures[0], "one", figures[1], "tokens/s", least)
            )
        return rows

    def turn(self) -> list[Row]:
        """Seconds of a turn of ``TURN`` new tokens with ``HISTORY`` cached, against the same with nothing cached."""
        history = random_prompt(self.random, HISTORY)
        cold, request = self.ours.first_token([*history, *random_prompt(self.random, TURN)])
        assert request.computed_tokens == HISTORY + TURN
        warm = []
        for _ in range(self.rounds):
            seconds, request = self.ours.first_token([*history, *random_prompt(self.random, TURN)])
            assert (request.cached_tokens, request.computed_tokens) == (HISTORY, TURN)
            warm.append(seconds)
        return [Row(f"turn of {TURN} on {HISTORY:,} cached", median(warm), "cold", cold, "s", 20.0)]

    def _in_turns(self, measure: Callable[[Contestant, int], float]) -> list[list[float]]:
        rounds = [[measure(c, i) for c in self.contestants] for i in range(self.rounds)]
        return [list(times) for times in zip(*rounds, strict=True)]

    def _against_both(self, name: str, rates: Sequence[float], least: dict[str, float]) -> list[Row]:
        others = zip(self.contestants[1:], rates[1:], strict=True)
        return [Row(name, rates[0], o.name, rate, "tokens/s", least[o.name]) for o, rate in others]


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    **{f"prefill {length}": lambda bench, length=length: bench.prefill(length) for length in PROMPTS},
    "decode": Bench.decode,
    "together": Bench.together,
    "turn": Bench.turn,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=GROUPS, nargs="*", default=list(GROUPS))
    arguments = parser.parse_args()
    gguf = smollm2_file()
    if gguf is None:
        raise SystemExit(f"{NO_SMOLLM2} is not here")
    bench = Bench(gguf, rounds=arguments.rounds)
    try:
        print(f"kernels: {bench.model.kernels}\n")
        print("| | agentctx | | beside | ratio | bound |\n|---|---:|---|---:|---:|---:|")
        for name in arguments.only:
            for row in GROUPS[name](bench):
                bound = "" if row.least is None else f"≥ {row.least:.3g}"
                print(
                    f"| {row.name} | {row.ours:.3g} {row.unit} | {row.baseline} | {row.other:.3g} {row.unit} | "
                    f"{row.ratio:.2f} | {bound} |",
                    flush=True,
                )
    finally:
        bench.close()


if __name__ == "__main__":
    main()
