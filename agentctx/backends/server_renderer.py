"""A renderer whose prompts are a running llama-server's own: where its text differs from the template's, the server's is taken."""

from __future__ import annotations

from agentctx.backends.llama_server import LlamaServer
from agentctx.interchange import openai_chat
from agentctx.messages import Request
from agentctx.rendering.server_template import ServerTemplateRenderer
from agentctx.rendering.template_renderer import TemplateRenderer


def as_served(own: TemplateRenderer, server: LlamaServer) -> ServerTemplateRenderer:
    """``own`` is the renderer of the server's template. Each prompt asks ``/apply-template``; a refusal is raised as ``Refused``."""

    def apply(request: Request) -> str:
        return server.apply_template(openai_chat.write(request))

    return ServerTemplateRenderer(own, apply)
