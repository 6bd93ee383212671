"""Checks for CI: chat templates (and what builds their prompts) stay append-only."""
