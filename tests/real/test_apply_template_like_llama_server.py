"""What llama-server's ``/apply-template`` gives is what is rendered here, or the change that the server made has a name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentctx.backends.backend import Refused
from agentctx.backends.llama_server import LlamaServer as Endpoints
from agentctx.backends.server_renderer import as_served
from agentctx.errors import RenderError
from agentctx.interchange import openai_chat
from agentctx.messages import Message, Request, TextPart, Tool, ToolCall
from agentctx.rendering import Prompt
from agentctx.rendering.load import load_renderer, load_tokenizer
from agentctx.rendering.model_tokenizer import ModelTokenizer
from agentctx.rendering.server_template import ServerChange, ServerTemplateRenderer
from agentctx.rendering.sources import props_source
from agentctx.rendering.template_renderer import TemplateRenderer, renderer_of
from agentctx.rendering.tokenizer import embedded_tokenizer
from tests.rendering.tiling import assert_tiled

from .chat_models import CHAT_MODELS
from .conftest import ChatModelFile, StartServer, TinyModel
from .corpus_requests import corpus_prefixes
from .llama_server import LlamaServer

pytestmark = pytest.mark.real

MODELS = ("SmolLM2", "Gemma 3", *CHAT_MODELS)
COMPARED = 20
"""Conversations that a template supports, for each model: 280 in all."""


@pytest.mark.corpus
@pytest.mark.parametrize("name", MODELS)
def test_prefixes_of_real_sessions(
    name: str, chat_model: ChatModelFile, start_server: StartServer, shared_dir: Path, record_property: Any
) -> None:
    """The texts are equal, and so are the ids that the server makes of them."""
    server, own = served(name, chat_model, start_server, shared_dir)
    found: Counter[str] = Counter()
    with Endpoints(server.url) as endpoints:
        renderer = as_served(own, endpoints)
        for request in corpus_prefixes(shared_dir)[MODELS.index(name) :: 3]:
            outcome = compare(renderer, request, server)
            found[outcome] += 1
            if found["same"] == COMPARED:
                break
    record_property("outcomes", dict(found))
    print(name, dict(found))
    assert found["same"] == COMPARED
    assert ServerChange.UNKNOWN.name not in found


def served(
    name: str, chat_model: ChatModelFile, start_server: StartServer, shared: Path
) -> tuple[LlamaServer, TemplateRenderer]:
    """A model on a server, and the renderer of its GGUF. Gemma 3's file has no template: it gets one of its family."""
    path = chat_model(name)
    if name != "Gemma 3":
        own = load_renderer(str(path))
        assert isinstance(own, TemplateRenderer)
        return start_server(path, n_ctx=256, n_parallel=1), own
    template = (shared / "corpus/templates/mistralrs-gemma3n.jinja").read_text()
    server = start_server(path, n_ctx=256, n_parallel=1, chat_template=template)
    tokenizer = load_tokenizer(str(path))
    assert isinstance(tokenizer, ModelTokenizer)
    source = props_source(server.get("/props"), tokenizer=tokenizer)
    source = replace(source, add_bos=tokenizer.add_bos)
    return server, renderer_of(source, name=name, now=datetime.now())


def compare(renderer: ServerTemplateRenderer, request: Request, server: LlamaServer) -> str:
    """What became of a request: ``same``, ``refused`` by both, or the change that the server made."""
    try:
        prompt = renderer.render(request)
    except Refused as error:
        if not server_may_refuse(renderer.own, request):
            raise AssertionError("the server refuses what is rendered here") from error
        return "refused"
    text = server.post("/apply-template", openai_chat.write(request))["prompt"]
    assert prompt.text == renderer.own.with_beginning(text)
    body = {"content": text, "add_special": True, "parse_special": True}
    assert prompt.token_ids.tolist() == server.post("/tokenize", body)["tokens"]
    assert_tiled(prompt)
    return "+".join(change.name for change in renderer.changes_of(prompt)) or "same"


def server_may_refuse(own: TemplateRenderer, request: Request) -> bool:
    """The template refuses the request here too, or a call's arguments are no JSON, which llama.cpp doesn't take."""
    try:
        own.render(request)
    except RenderError:
        return True
    return any(not is_json(call.arguments) for message in request.messages for call in message.tool_calls)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


READ = Tool.of("read", "Read a file", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall(id="call00001", name="read", arguments='{"path": "a.py"}')
SYSTEM, USER = Message(role="system", content="Be brief."), Message(role="user", content="Hello there.")
ANSWER = Message(role="assistant", content="General answer.", reasoning="A thought.")
CALLS = Message(role="assistant", content="", tool_calls=(CALL,))
RESULT = Message(role="tool", content="def f(): ...", tool_call_id="call00001", name="read")
PARTS = Message(role="user", content=(TextPart(text="first part"), TextPart(text="second part")))
SPACED = Message(role="user", content="  indented question \n\n")

CHANGED = {
    ("Phi-4-reasoning", ServerChange.SYSTEM_MERGED): (SYSTEM, USER),
    ("LFM2.5-8B-A1B", ServerChange.PARTS_JOINED): (PARTS,),
    ("GigaChat3.1-10B-A1.8B", ServerChange.PARTS_JOINED): (SYSTEM, PARTS),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", ServerChange.EMPTY_CONTENT): (USER, CALLS, RESULT),
    ("StepFun3.5-Flash", ServerChange.WHITE_SPACE): (SPACED,),
    ("mistralai-Ministral-3-14B-Reasoning-2512", ServerChange.REASONING_AS_PART): (USER, ANSWER, USER),
    ("vllm-hunyuan_a13b", ServerChange.NO_THINKING): (USER,),
    ("meetkai-functionary-medium-v3.1", ServerChange.NO_ESCAPES): (SYSTEM, USER),
    ("CohereForAI-c4ai-command-r-plus-tool_use", ServerChange.REFUSED): (USER,),
}


@pytest.mark.corpus
@pytest.mark.parametrize(("template", "change"), list(CHANGED), ids=[f"{t}-{c.name}" for t, c in CHANGED])
def test_what_the_server_changes_has_a_name(
    template: str, change: ServerChange, tiny_model: TinyModel, start_server: StartServer, shared_dir: Path
) -> None:
    """Then the prompt is the server's text, and its spans still say where each text came from."""
    source = (shared_dir / f"corpus/templates/{template}.jinja").read_text()
    server = start_server(tiny_model("full attention"), n_ctx=256, n_parallel=1, chat_template=source)
    messages = CHANGED[template, change]
    tools = (READ,) if any(m.tool_calls for m in messages) or change is ServerChange.NO_ESCAPES else ()
    request = Request(tools=tools, messages=messages)
    own = renderer_of(
        props_source(server.get("/props"), tokenizer=embedded_tokenizer()), name=template, now=datetime.now()
    )
    with Endpoints(server.url) as endpoints:
        renderer = as_served(own, endpoints)
        prompt = renderer.render(request)
        assert renderer.changes_of(prompt) == (change,)
        assert prompt.text == server.post("/apply-template", openai_chat.write(request))["prompt"]
        assert_tiled(prompt)
        for index, message in enumerate(messages):
            for text in texts_of(message):
                assert text in attributed(prompt, index)
        longer = Request(tools=tools, messages=(*messages, ANSWER, USER))
        further = renderer.render(longer, prompt)
        again = renderer.render(longer)
        assert further.token_ids.tolist() == again.token_ids.tolist()
        assert (further.text, further.spans) == (again.text, again.spans)


def texts_of(message: Message) -> list[str]:
    parts = (
        [message.content]
        if isinstance(message.content, str)
        else [part.text for part in message.content if isinstance(part, TextPart)]
    )
    return [part.strip() for part in parts if part]


def attributed(prompt: Prompt, index: int) -> str:
    """The text that the spans give to a message."""
    spans = (span for span in prompt.spans if span.item == index and span.zone not in ("tools", "template"))
    return "".join(prompt.text[span.char_start : span.char_end] for span in spans)


@pytest.mark.parametrize("arguments", ['{"path": ', "not json"])
def test_arguments_that_are_no_json_are_refused_with_the_servers_words(
    arguments: str, chat_model: ChatModelFile, start_server: StartServer
) -> None:
    path = chat_model("Llama 3.2")
    server = start_server(path, n_ctx=256, n_parallel=1)
    own = load_renderer(str(path))
    assert isinstance(own, TemplateRenderer)
    broken = CALLS.model_copy(update={"tool_calls": (CALL.model_copy(update={"arguments": arguments}),)})
    with Endpoints(server.url) as endpoints, pytest.raises(Refused, match="arguments as JSON"):
        as_served(own, endpoints).render(Request(tools=(READ,), messages=(USER, broken, RESULT)))


def test_the_date_is_the_servers(chat_model: ChatModelFile) -> None:
    """llama.cpp tells each template the day; transformers leaves it to the template's own default."""
    path = chat_model("Llama 3.2")
    prompt = load_renderer(str(path), now=datetime(2026, 3, 5)).render(Request(messages=(USER,)))
    assert "05 Mar 2026" in prompt.text
