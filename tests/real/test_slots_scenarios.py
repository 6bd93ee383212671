"""The corner cases of slots, on a live llama-server: the same literal numbers as on the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.memory.slot_scenarios import SCENARIOS, Scenario

from .conftest import StartServer
from .llama_server import LlamaServer
from .slot_fuzz import switches

pytestmark = pytest.mark.real


class LiveDriver:
    """Runs a scenario on a server. Replies are random, but never end early: the end token is forbidden."""

    def __init__(self, server: LlamaServer) -> None:
        self.server = server
        self.seed = 0

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
        self.seed += 1
        completions = options.pop("completions", 1)
        body = {
            "prompt": prompt,
            "n_predict": reply,
            "n_cmpl": completions,
            "return_tokens": True,
            "ignore_eos": True,
            "seed": self.seed,
            **options,
        }
        if refused:
            assert self.server.status_of("/completion", body) == 400
            return []
        answer = self.server.post("/completion", body)
        if isinstance(answer, list):
            answer = answer[0]
        assert answer["timings"]["cache_n"] == cache_n
        assert answer["timings"]["prompt_n"] == len(prompt) - cache_n
        assert slot is None or answer["id_slot"] == slot
        tokens: list[int] = answer["tokens"]
        return tokens


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_server_meets(
    scenario: Scenario, tiny_model: Callable[[str], Path], start_server: StartServer
) -> None:
    scenario.steps(LiveDriver(start_server(tiny_model(scenario.model), **switches(scenario.settings))))
