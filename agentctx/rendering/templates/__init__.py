"""Chat templates: Jinja as model servers render it, with limits, provenance and resumption."""

from agentctx.rendering.templates.limits import Limits
from agentctx.rendering.templates.template import ChatTemplate, Rendering

__all__ = ["ChatTemplate", "Limits", "Rendering"]
