"""Properties on few examples, always the same: where all tests run many times, or slowly. A pytest plugin, too."""

from __future__ import annotations

from typing import Any

import hypothesis

EXAMPLES = 20


def limit_examples(examples: int) -> None:
    """Draw at most ``examples`` per property, whatever it asks for itself; shrink and replay nothing."""
    profile = {
        "derandomize": True,
        "database": None,
        "max_examples": examples,
        "deadline": None,
        "phases": (hypothesis.Phase.explicit, hypothesis.Phase.generate),
        "suppress_health_check": list(hypothesis.HealthCheck),
    }
    hypothesis.settings.register_profile("few", hypothesis.settings(**profile))
    hypothesis.settings.load_profile("few")
    made = hypothesis.settings.__init__

    def smaller(self: hypothesis.settings, *args: Any, **given: Any) -> None:
        if isinstance(given.get("max_examples"), int):
            given["max_examples"] = min(given["max_examples"], examples)
        made(self, *args, **given)

    hypothesis.settings.__init__ = smaller  # type: ignore[method-assign]


def pytest_configure() -> None:
    limit_examples(EXAMPLES)
