"""Fixtures of the transports' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .faulty_server import FaultyServer


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    """A loopback server that answers as its ``script`` says."""
    server = FaultyServer()
    yield server
    server.close()
