"""The corner cases of slots, on the model of the server."""

from __future__ import annotations

from typing import Any

import pytest

from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ModelMemory

from .slot_scenarios import SCENARIOS, Scenario

MEMORIES = {
    "full attention": ModelMemory(),
    "sliding window": ModelMemory(window=64),
    "hybrid": ModelMemory(recurrent=True),
}


class ModelDriver:
    """Runs a scenario on SlotCache; replies count down from 255, so that they resemble no prompt."""

    def __init__(self, scenario: Scenario) -> None:
        self.cache = SlotCache(scenario.settings, MEMORIES[scenario.model])

    def __call__(
        self,
        prompt: list[int],
        *,
        reply: int,
        cache_n: int = 0,
        slot: int | None = None,
        refused: bool = False,
        **options: Any,
    ) -> list[int]:
        room = self.cache.server.settings.slot_ctx - len(prompt)
        output = [255 - i % 256 for i in range(min(reply, max(0, room)))]
        completions = options.pop("completions", 1)
        foreseen = self.cache.match(prompt, **options)
        lease = self.cache.serve(prompt, output, completions=completions, **options)
        self.cache.check()
        assert lease.match == foreseen or completions > 1
        assert lease.answer.refused == refused
        assert lease.match.hit_tokens + sum(tokens for _, tokens in lease.match.lost) == len(prompt)
        if not refused:
            assert lease.answer.cache_n == cache_n
            assert lease.answer.prompt_n == len(prompt) - cache_n
        assert slot is None or lease.answer.slot == slot
        return output


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_model_meets(scenario: Scenario) -> None:
    scenario.steps(ModelDriver(scenario))
