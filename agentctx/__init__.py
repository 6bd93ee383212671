"""agentctx: keep an LLM agent's prompts cache-friendly, and prove it."""

__version__ = "0.1.0"
