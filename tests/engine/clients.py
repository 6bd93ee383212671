"""Requests for a bare core, numbered as the facade does, and prompts that are easy to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.request import Request
from agentctx_engine.runtime.sampling_params import SamplingParams


class Clients:
    """Numbers requests as the facade does."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.next_id = 0

    def add(self, prompt: Sequence[int], max_tokens: int = 4, n: int = 1, **options: Any) -> Request:
        params = SamplingParams(max_tokens=max_tokens, n=n, stop_token_ids=options.pop("stop", ()))
        request = Request(
            id=self.next_id, prompt=np.array(prompt, dtype=np.int32), params=params, seed=0, **options
        )
        self.next_id += 1
        self.core.add(request)
        return request


def distinct(first: int, count: int) -> list[int]:
    return [1 + (first + i) % 90 for i in range(count)]
