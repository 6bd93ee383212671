"""``python -m agentctx``."""

from agentctx.cli import main

main()
