"""The planted builders: every test fails."""

import pytest
from conversation import agent
from prompts import planted

from agentctx.checks import assert_stable_builder

BUILDERS = ["with_clock", "with_tools", "with_calls", "with_results"]


@pytest.mark.parametrize("name", ["with_calls", "with_results"])
def test_the_agent_s_prompts_are_append_only(name, prefix_guard):
    build = getattr(planted, name)
    agent(build() if isinstance(build, type) else build, prefix_guard)


@pytest.mark.parametrize("name", BUILDERS)
def test_fresh_processes_build_the_same_prefix(name):
    assert_stable_builder(f"prompts.planted:{name}")
