"""Rendering: a Request in, the exact Prompt out."""
