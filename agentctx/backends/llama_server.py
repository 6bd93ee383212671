"""llama-server's native API: token ids in, token ids out, and the endpoints that say what it is.

Source: the server's README (``/completion``, ``/slots``, ``/props``, ``/tokenize``, ``/apply-template``).
Token ids go both ways, so what the next prompt carries is what was generated: re-tokenizing can't break the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Self

import httpx
import numpy as np

from agentctx.backends.adapter import Call, count_or_none, need
from agentctx.backends.affinity import NO_AFFINITY, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, Refused, StreamBroken
from agentctx.backends.http_errors import NEVER_SENT, failed, refusal
from agentctx.backends.http_request import built
from agentctx.backends.secrecy import discreet, secrets_in, shown
from agentctx.backends.server_address import authorization, endpoint, need_address, need_headers
from agentctx.errors import UsageError
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt
from agentctx.usage import usage_from_llama

_API = "llama-server /completion"


def _completion(body: Mapping[str, Any], text: str, tokens: list[int]) -> Completion:
    usage = usage_from_llama(body)
    # A stream has no event for a token that ends inside a character: ids with gaps would be taken for what was generated.
    whole = tokens and usage.output in (None, len(tokens))
    return Completion(
        message=Message(role="assistant", content=text),
        usage=usage,
        reply_ids=np.asarray(tokens, np.int32) if whole else None,
        finish_reason=body.get("stop_type"),
        slot=count_or_none(body.get("id_slot")),
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


class _Parser:
    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._last: Mapping[str, Any] | None = None

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        if event == "error" or "error" in data:
            error = data.get("error", data)
            message = error.get("message") if isinstance(error, Mapping) else error
            raise StreamBroken(
                f"llama-server ended the reply with an error: {message}", partial="".join(self._text)
            )
        text = data.get("content")
        if not isinstance(text, str):
            raise BadResponse(f"a stream event of {_API} has no content field")
        self._text.append(text)
        self._tokens.extend(data.get("tokens") or ())
        if data.get("stop"):
            self._last = data
        return text

    def finish(self) -> Completion:
        text = "".join(self._text)
        if self._last is None:
            raise StreamBroken(
                f"the stream ended after {len(text)} characters, before the reply did", partial=text
            )
        return _completion(self._last, text, self._tokens)


class LlamaCompletion:
    """Adapter for ``POST /completion`` with token ids. ``affinity`` is for several servers behind one address."""

    name = "llama-server"
    takes_tokens = True

    def __init__(self, affinity: Affinity = NO_AFFINITY) -> None:
        self.affinity = affinity

    def call(self, prompt: Prompt, options: Options, *, stream: bool) -> Call:
        body: dict[str, Any] = {
            "prompt": prompt.token_ids.tolist(),
            "cache_prompt": options.cache_prompt,
            "return_tokens": True,
            "stream": stream,
            **options.extra,
        }
        if options.max_tokens is not None:
            body["n_predict"] = options.max_tokens
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.seed is not None:
            body["seed"] = options.seed
        if options.stop:
            body["stop"] = list(options.stop)
        if options.slot is not None:
            body["id_slot"] = options.slot
        fields, headers = self.affinity.fields(options.conversation)
        return Call("/completion", {**body, **fields}, headers)

    def completion(self, body: Mapping[str, Any]) -> Completion:
        text = need(body, "content", str, _API)
        return _completion(body, text, list(body.get("tokens") or ()))

    def parser(self) -> _Parser:
        return _Parser()


class Endpoints:
    """The JSON endpoints of a server, one call at a time. Close it, or use it as a context manager.

    Raises :class:`ConnectionFailed`, :class:`TimedOut`, :class:`Refused` or :class:`BadResponse`, and ``UsageError`` for what is no address.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float = 30.0) -> None:
        need_address(base_url)
        headers = authorization(api_key)
        need_headers(headers)
        self.base_url = endpoint(base_url, "")
        self.address = shown(self.base_url)
        """Where it is, as reports and errors may say it: without user, password and query."""
        self._client = httpx.Client(headers=headers, timeout=timeout)
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What the server answers at a path, parsed."""
        with self._answered(method, path, body) as response:
            try:
                return response.json()
            except (ValueError, RecursionError):
                raise BadResponse(f"{self.address}{path} did not answer with JSON") from None

    @contextmanager
    def _answered(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[httpx.Response]:
        """The response at a path, read, its status good."""
        url = endpoint(self.base_url, path)
        request = built(self._client, method, url, body)
        known = self._client.headers  # in what is sent, a password in the address takes the key's place
        with discreet(lambda: secrets_in(known, url) + secrets_in(request.headers)):
            try:
                response = self._client.send(request)
            except httpx.RequestError as error:
                where = self.address if isinstance(error, NEVER_SENT) else self.address + path
                raise failed(error, where, self._timeout) from error
            if not response.is_success:
                raise refusal(response, self.address + path)
            yield response


class LlamaServer(Endpoints):
    """The endpoints of a running llama-server beside the completion: properties, slots, template, tokenizer."""

    def props(self) -> Mapping[str, Any]:
        """``/props``: build, slots, context, chat template."""
        body = self.ask("GET", "/props")
        if not isinstance(body, Mapping):
            raise BadResponse(f"{self.address}/props did not answer with an object")
        return body

    def slots(self) -> list[Mapping[str, Any]]:
        """``/slots``: what each slot is doing."""
        body = self.ask("GET", "/slots")
        if not isinstance(body, list):
            raise BadResponse(f"{self.address}/slots did not answer with a list")
        return body

    def metrics(self) -> str:
        """``/metrics`` as Prometheus text. The server must run with ``--metrics``."""
        try:
            with self._answered("GET", "/metrics") as response:
                return response.text
        except Refused as error:
            if error.status not in (404, 501):
                raise
            raise Refused(
                f"{self.address} has no /metrics; start it with --metrics", status=error.status
            ) from error

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of a text, by the server's own tokenizer."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        tokens: list[int] = need(
            self.ask("POST", "/tokenize", body), "tokens", list, "llama-server /tokenize"
        )
        return tokens

    def tokenize_pieces(self, text: str, parse_special: bool = True) -> list[tuple[int, bytes]]:
        """Token ids of a text, each with the bytes that it stands for."""
        body = {"content": text, "add_special": False, "parse_special": parse_special, "with_pieces": True}
        tokens = need(self.ask("POST", "/tokenize", body), "tokens", list, "llama-server /tokenize")
        pieces: list[tuple[int, bytes]] = []
        for token in tokens:
            number = need(token, "id", int, "llama-server /tokenize")
            piece = need(token, "piece", (str, list), "llama-server /tokenize")
            # A piece that is no valid text by itself comes as a list of bytes.
            pieces.append((number, piece.encode() if isinstance(piece, str) else bytes(piece)))
        return pieces

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        body = {"tokens": list(ids)}
        text: str = need(self.ask("POST", "/detokenize", body), "content", str, "llama-server /detokenize")
        return text

    def apply_template(self, body: Mapping[str, Any]) -> str:
        """The text that the server makes of a chat request (``messages``, ``tools``, template keywords)."""
        text: str = need(
            self.ask("POST", "/apply-template", body), "prompt", str, "llama-server /apply-template"
        )
        return text

    def save_slot(self, slot: int, filename: str) -> Mapping[str, Any]:
        """Save a slot's memory in the server's ``--slot-save-path``. The name must be a plain file name."""
        return self._slot_action(slot, "save", filename)

    def restore_slot(self, slot: int, filename: str) -> Mapping[str, Any]:
        """Bring a saved slot back."""
        return self._slot_action(slot, "restore", filename)

    def erase_slot(self, slot: int) -> Mapping[str, Any]:
        """Forget what a slot holds."""
        body: Mapping[str, Any] = self.ask("POST", f"/slots/{slot}?action=erase", {})
        return body

    def _slot_action(self, slot: int, action: str, filename: str) -> Mapping[str, Any]:
        if not filename or filename in (".", "..") or PurePath(filename).name != filename or "\\" in filename:
            raise UsageError(f"slot file name {filename!r} must be a plain file name without path separators")
        body: Mapping[str, Any] = self.ask("POST", f"/slots/{slot}?action={action}", {"filename": filename})
        return body
