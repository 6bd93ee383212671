"""Rendering: a Request in, the exact Prompt out."""

from agentctx.rendering.load import load_renderer
from agentctx.rendering.prompt import Place, Prompt, Renderer, Span, TokenIds, common_prefix_length

__all__ = ["Place", "Prompt", "Renderer", "Span", "TokenIds", "common_prefix_length", "load_renderer"]
