"""Backends: who runs the turn (bundled engine, llama-server, OpenAI-style, Anthropic)."""
