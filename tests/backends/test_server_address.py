"""Addresses as users write them: with and without /v1, slashes, a path of a gateway, a query, a password."""

from __future__ import annotations

import pytest

from agentctx.backends.server_address import below, openai_base, root_of, says_openai


@pytest.mark.parametrize(
    ("given", "root", "base", "openai"),
    [
        ("http://h:8080", "http://h:8080", "http://h:8080/v1", False),
        ("http://h:8080/", "http://h:8080", "http://h:8080/v1", False),
        ("http://h:8080/v1", "http://h:8080", "http://h:8080/v1", True),
        ("http://h:8080/v1/", "http://h:8080", "http://h:8080/v1", True),
        ("https://gate/models/a/v1", "https://gate/models/a", "https://gate/models/a/v1", True),
        ("https://gate/models/a/", "https://gate/models/a", "https://gate/models/a/v1", False),
        (
            "http://me:word@[::1]:1/v1?k=2",
            "http://me:word@[::1]:1?k=2",
            "http://me:word@[::1]:1/v1?k=2",
            True,
        ),
        ("http://h/v10", "http://h/v10", "http://h/v10/v1", False),
    ],
)
def test_every_way_to_write_it(given: str, root: str, base: str, openai: bool) -> None:
    assert root_of(given) == root
    assert openai_base(given) == base
    assert says_openai(given) is openai
    assert root_of(base) == root


def test_an_endpoint_keeps_the_query_at_its_end() -> None:
    assert below("http://h/v1?k=2", "/props") == "http://h/props?k=2"
