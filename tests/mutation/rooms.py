"""What is mutated, and which tests are to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Room:
    """A package whose modules are mutated, and the tests that judge."""

    package: str
    tests: str
    left_out: tuple[str, ...] = ()  # tests that take a minute and more

    def files(self, root: Path) -> list[Path]:
        return sorted(file for file in (root / self.package).glob("*.py") if file.name != "__init__.py")


ROOMS = {
    "memory": Room("engine/agentctx_engine/memory", "tests/memory", ("test_memory_exhaustive.py",)),
    "history": Room("agentctx/history", "tests/history"),
    "diagnosis": Room(
        "agentctx/diagnosis", "tests/diagnosis", ("test_client_mutations.py", "test_corpus_findings.py")
    ),
}
