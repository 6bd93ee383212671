"""What a server is, what it says about its cache, and what would make it say more.

A server is known by endpoints that only it has, each documented:

- llama-server: ``/props`` with ``total_slots`` (its README);
- SGLang: ``/get_model_info`` with ``model_path``, ``/server_info`` (before 0.5.9 ``/get_server_info``) with the server's switches
  (docs.sglang.io, "SGLang Native APIs", seen 2026-11-30);
- vLLM: ``/v1/models`` with ``owned_by: vllm`` and ``max_model_len``, ``/version``, ``/tokenize`` (docs.vllm.ai, "OpenAI-Compatible Server", seen
  2026-11-30);
- anything else that answers ``/v1/models`` is OpenAI-style.

Whether cached tokens are reported is not taken from switches but tried: one question, asked twice, one token each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentctx.backends.backend import BackendError, BadResponse, Refused
from agentctx.backends.llama_server import Endpoints, LlamaServer
from agentctx.backends.secrecy import NO_ACCESS
from agentctx.backends.server_address import root_of
from agentctx.errors import AgentctxError
from agentctx.rendering.tokenizer import Tokenizer
from agentctx.usage import usage_from_response

Kind = Literal["llama-server", "vLLM", "SGLang", "OpenAI-style"]
Level = Literal["ok", "note", "finding"]

SWITCHES: dict[str, str] = {
    "vLLM": "start it with --enable-prompt-tokens-details",
    "SGLang": "start it with --enable-cache-report",
    "llama-server": "update it: releases of the last year report timings.cache_n",
    "OpenAI-style": "look for a switch that fills usage.prompt_tokens_details.cached_tokens",
}

# Texts in which vocabularies differ: spaces, digits, case, accents, scripts, code, emoji.
SAMPLES = (
    "Hello, world!",
    "  two spaces,\ttab\n\n  new line ",
    "def f(x: int) -> int:\n    return x // 2  # half\n",
    "1234567890 3.14159 0xFF 2026-11-30T10:05:00Z",
    "Größe, naïve, ﬁne, İstanbul, e\u0301",
    "日本語のテキスト 中文 한국어 العربية हिन्दी",
    "🙂 👩‍💻 ✓ → ∑",
    '{"name": "read", "arguments": {"path": "src/main.py"}}',
    "I'll, you've, DON'T, can't",
)


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that was looked at. A ``finding`` has a remedy."""

    level: Level
    subject: str
    text: str
    remedy: str | None = None


@dataclass(slots=True)
class Examination:
    """What was learnt about a server. ``None`` where it could not be learnt. ``reports_cached``: it says how many tokens it reused."""

    url: str
    kind: Kind
    version: str | None = None
    model: str | None = None
    context: int | None = None
    slots: int | None = None
    reports_cached: bool | None = None
    has_template: bool | None = None
    tokenizer_matches: bool | None = None
    remarks: list[Remark] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return all(remark.level != "finding" for remark in self.remarks)

    def add(self, level: Level, subject: str, text: str, remedy: str | None = None) -> None:
        self.remarks.append(Remark(level, subject, text, remedy))

    def to_json(self) -> dict[str, Any]:
        """The examination as JSON data; ``schema`` 1."""
        return {"schema": 1, **asdict(self), "clean": self.clean}

    def lines(self) -> list[str]:
        """The examination as text, one line a fact; findings begin with ``!``."""
        what = " ".join(filter(None, (self.kind, self.version)))
        lines = [f"{self.url}  {what}"]
        for name, value in (("model", self.model), ("context", self.context), ("slots", self.slots)):
            if value is not None:
                lines.append(f"  {name:<16}{f'{value:,}' if isinstance(value, int) else value}")
        marks: dict[Level, str] = {"ok": " ", "note": "?", "finding": "!"}
        for remark in self.remarks:
            lines.append(f"{marks[remark.level]} {remark.subject:<16}{remark.text}")
            if remark.remedy:
                lines.append(f"    remedy: {remark.remedy}")
        return lines


def examine(
    url: str,
    *,
    api_key: str | None = None,
    tokenizer: Tokenizer | None = None,
    model: str | None = None,
    ask: bool = True,
    timeout: float = 30.0,
) -> Examination:
    """Examine the server at ``url`` (with or without ``/v1``).

    ``tokenizer``: our own reading of its vocabulary, compared with the server's. ``model``: the name to ask for (default: the first that the
    server lists). ``ask`` False sends no question to the model. Raises ``ConnectionFailed``, ``TimedOut``, and ``Refused`` where the
    server wants a key.
    """
    with LlamaServer(root_of(url), api_key=api_key, timeout=timeout) as server:
        found = _identified(server)
        found.model = model or found.model
        if ask:
            _try_cached(server, found)
        _compare_tokenizer(server, found, tokenizer)
    return found


def _answer(server: Endpoints, path: str) -> Mapping[str, Any] | None:
    """The object at a path; ``None`` where there is none. Only a server that can't be reached, or wants a key, ends the examination."""
    try:
        body = server.ask("GET", path)
    except Refused as error:
        if error.status in NO_ACCESS:
            raise
        return None
    except BadResponse:
        return None
    return body if isinstance(body, Mapping) else None


def _identified(server: LlamaServer) -> Examination:
    props = _answer(server, "/props")
    if props is not None and "total_slots" in props:
        return _llama(server, props)
    models = _answer(server, "/v1/models") or {}
    listed = models.get("data")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], Mapping) else {}
    name = _text(first.get("id"))
    info = _answer(server, "/get_model_info") or _answer(server, "/model_info")
    if (info is not None and "model_path" in info) or first.get("owned_by") == "sglang":
        return _sglang(server, name or _text((info or {}).get("model_path")), first)
    version = _answer(server, "/version")
    if first.get("owned_by") == "vllm" or (version is not None and "max_model_len" in first):
        found = Examination(server.address, "vLLM", _text((version or {}).get("version")), name)
        found.context = _count(first.get("max_model_len"))
        _no_template(found)
        return found
    found = Examination(server.address, "OpenAI-style", model=name)
    if not first:
        found.add("finding", "models", "/v1/models lists no model", "check the address, or name a model")
    _no_template(found)
    return found


def _llama(server: LlamaServer, props: Mapping[str, Any]) -> Examination:
    settings = props.get("default_generation_settings")
    found = Examination(
        server.address, "llama-server", _text(props.get("build_info")), _text(props.get("model_alias"))
    )
    found.context = _count(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
    found.slots = _count(props.get("total_slots"))
    template = _text(props.get("chat_template"))
    found.has_template = bool(template)
    if template:
        found.add("ok", "template", f"{len(template):,} characters in /props: prompts are rendered exactly")
    else:
        found.add("finding", "template", "no chat template", "give the server one with --chat-template-file")
    if found.slots is not None and found.slots > 1:
        found.add(
            "note",
            "slots",
            f"{found.slots} slots, chosen by similarity: pin a conversation with Options(slot=N)",
        )
    try:
        server.slots()
        found.add("ok", "/slots", "says what each slot is doing")
    except Refused:
        found.add("note", "/slots", "is off", "start the server without --no-slots")
    if props.get("endpoint_metrics") is False:
        found.add("note", "/metrics", "is off", "start the server with --metrics")
    return found


def _sglang(server: Endpoints, name: str | None, first: Mapping[str, Any]) -> Examination:
    info = _answer(server, "/server_info") or _answer(server, "/get_server_info") or {}
    found = Examination(server.address, "SGLang", _text(info.get("version")), name)
    found.context = _count(info.get("context_length")) or _count(first.get("max_model_len"))
    page = _count(info.get("page_size"))
    if page is not None:
        found.add("ok", "page size", f"{page} tokens: predict with --cache radix:page={page}")
    if info.get("disable_radix_cache") is True:
        found.add("finding", "cache", "prefix reuse is off", "start it without --disable-radix-cache")
    _no_template(found)
    return found


def _no_template(found: Examination) -> None:
    found.add(
        "note",
        "template",
        "this server doesn't show its chat template",
        "name the model's folder as the target",
    )


def _try_cached(server: Endpoints, found: Examination) -> None:
    """Ask the same twice, for one token each, and see what the usage says."""
    question = "This question is asked twice to see whether the second time is reported as cached. " * 8
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 1, "temperature": 0}
    if found.model is not None and found.kind != "llama-server":
        body["model"] = found.model
    usage = None
    try:
        for _ in range(2):
            answer = server.ask("POST", "/v1/chat/completions", body)
            usage = usage_from_response(answer) if isinstance(answer, Mapping) else None
    except BackendError as error:
        found.add("note", "cached tokens", f"could not be tried: {error}")
        return
    found.reports_cached = usage is not None and usage.cached is not None
    if usage is None or usage.cached is None:
        found.add("finding", "cached tokens", "are not reported", SWITCHES[found.kind])
    elif usage.cached == 0:
        text = f"are reported: 0 of {usage.prompt} of a question that was asked twice"
        found.add(
            "finding",
            "cached tokens",
            text,
            "see whether prefix caching is on, and whether a router sent them apart",
        )
    else:
        found.add(
            "ok",
            "cached tokens",
            f"are reported: {usage.cached} of {usage.prompt} of a question that was asked twice",
        )


def _compare_tokenizer(server: LlamaServer, found: Examination, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        found.add("note", "tokenizer", "not compared", "name the model's file or folder with --tokenizer")
        return
    try:
        for sample in SAMPLES:
            theirs, ours = _their_ids(server, found, sample), tokenizer.encode(sample).tolist()
            if theirs != ours:
                at = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), min(len(theirs), len(ours)))  # fmt: skip
                found.tokenizer_matches = False
                found.add(
                    "finding",
                    "tokenizer",
                    f"{tokenizer.name} differs from the server's on {sample!r} at token {at}: "
                    f"{ours[at : at + 4]}, the server has {theirs[at : at + 4]}",
                    "name the file that the server runs",
                )
                return
    except AgentctxError as error:
        found.add("note", "tokenizer", f"could not be compared: {error}")
        return
    found.tokenizer_matches = True
    found.add("ok", "tokenizer", f"{tokenizer.name} gives the server's ids on all {len(SAMPLES)} samples")


def _their_ids(server: LlamaServer, found: Examination, text: str) -> list[int]:
    if found.kind == "llama-server":
        return server.tokenize(text)
    body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
    if found.model is not None:
        body["model"] = found.model
    answer = server.ask("POST", "/tokenize", body)
    tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise AgentctxError("/tokenize answered without a list of token ids")
    return tokens


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
