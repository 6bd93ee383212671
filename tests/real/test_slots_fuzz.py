"""Slots: every prediction of a random conversation forest holds on a live llama-server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import StartServer
from .slot_fuzz import MODELS, SETTINGS, run

pytestmark = pytest.mark.real

REQUESTS = 18  # for each of the 51 pairs of a model and a setting
FILLING = {
    "RAM cache full": 60,
    "RAM cache unlimited": 60,
    "unified cells full": 60,
}  # more, where memory must fill


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_slot_and_cache_n_are_predicted(
    model: str, setting: str, tiny_model: Callable[[str], Path], start_server: StartServer
) -> None:
    seed = 1000 * list(MODELS).index(model) + list(SETTINGS).index(setting)
    requests = FILLING.get(setting, REQUESTS)
    tally = run(
        tiny_model(model),
        MODELS[model].memory,
        SETTINGS[setting],
        requests=requests,
        seed=seed,
        start=start_server,
    )
    assert not tally.mistakes
    assert tally.requests == requests
    assert setting not in FILLING or tally.evicted_tokens, "the setting is there to fill the memory"
