"""A loopback server that answers each connection as a script says, down to the bytes: the faults of a real network.

Every connection is remembered until its client has closed it, so a test can say that none was left.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Answer = Callable[["Connection"], None]
Event = tuple[str | None, dict[str, Any] | str]


class Connection:
    """One accepted connection, its request read."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.target = ""
        self.body: dict[str, Any] = {}
        self.headers: dict[str, str] = {}

    def read_request(self) -> bool:
        """Read one request; False when the client has closed."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.raw.recv(65536)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.target = first.split(" ")[1]
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        while len(body) < int(self.headers.get("content-length", 0)):
            body += self.raw.recv(65536)
        self.body = json.loads(body) if body else {}
        return True

    def head(self, status: str = "200 OK", **headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self.raw.sendall("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.raw.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def whole(
        self, body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str
    ) -> None:
        self.head(status, Content_Type=kind, Content_Length=str(len(body)), **headers)
        self.raw.sendall(body)

    def events(self, events: list[Event]) -> None:
        self.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
        for event in events:
            self.chunk(sse(event))

    def stall(self) -> None:
        """Say nothing for half a minute, unless the client leaves before."""
        self.raw.settimeout(30)
        self.raw.recv(1)

    def reset(self) -> None:
        """End the connection as a killed process ends it."""
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()


def sse(event: Event) -> bytes:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()


class FaultyServer:
    """Answers connection after connection from ``script``. ``timeout_s``: how long a connection may stay open at the end."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.targets: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(raw,), daemon=True)
            self._open.add(thread)
            thread.start()

    def _serve(self, raw: socket.socket) -> None:
        connection = Connection(raw)
        try:
            while connection.read_request():
                self.requests.append(connection.body)
                self.headers.append(connection.headers)
                self.targets.append(connection.target)
                self.script.pop(0)(connection)
                if raw.fileno() < 0:
                    return
        except OSError:
            pass  # the client went away, as some tests want
        finally:
            raw.close()
            self._open.discard(threading.current_thread())

    def wait_until_all_are_closed(self, timeout_s: float = 5.0) -> bool:
        """Whether every client has closed its connections."""
        for thread in list(self._open):
            thread.join(timeout_s)
        return not self._open

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()


@dataclass(frozen=True)
class Api:
    """One API: a whole reply and the same reply as a stream."""

    name: str
    body: dict[str, Any]
    events: tuple[Event, ...]

    def healthy(self, connection: Connection) -> None:
        """As asked for: whole or streamed."""
        if connection.body.get("stream"):
            connection.events(list(self.events))
            connection.raw.sendall(b"0\r\n\r\n")
        else:
            connection.whole(json.dumps(self.body).encode())

    # -- faults ------------------------------------------------------------------------------------------

    def killed(self, connection: Connection) -> None:
        """The server dies in the middle of its reply."""
        if connection.body.get("stream"):
            connection.events(list(self.events[:2]))
        else:
            data = json.dumps(self.body).encode()
            connection.head(Content_Type="application/json", Content_Length=str(len(data)))
            connection.raw.sendall(data[: len(data) // 2])
        connection.reset()

    def ends_early(self, connection: Connection) -> None:
        """A stream that is closed in good order before the reply was at its end."""
        connection.events(list(self.events[:2]))
        connection.raw.sendall(b"0\r\n\r\n")

    def malformed(self, connection: Connection) -> None:
        """A chunk that is no JSON, and a body that is none."""
        if connection.body.get("stream"):
            connection.events([*self.events[:2], (None, '{"choices": [')])
            connection.raw.sendall(b"0\r\n\r\n")
        else:
            connection.whole(b'{"choices": [')

    def another_shape(self, connection: Connection) -> None:
        """JSON, but not of this API."""
        if connection.body.get("stream"):
            connection.events([(None, '["no", "object"]'), *self.events])
            connection.raw.sendall(b"0\r\n\r\n")
        else:
            connection.whole(b'{"hello": 1}')

    def wrong_type(self, connection: Connection) -> None:
        """A page of some proxy."""
        connection.whole(b"<html>Sign in</html>", kind="text/html")

    def badly_encoded(self, connection: Connection) -> None:
        """Says gzip and sends something else."""
        kind = "text/event-stream" if connection.body.get("stream") else "application/json"
        connection.whole(gzip.compress(b"{}")[:6] + b"xxxxxxxxxxxx", kind=kind, Content_Encoding="gzip")

    def stalls_at_once(self, connection: Connection) -> None:
        """Says nothing for half a minute."""
        connection.stall()

    def stalls_inside(self, connection: Connection) -> None:
        """Begins a reply and says nothing for half a minute."""
        if connection.body.get("stream"):
            connection.events(list(self.events[:2]))
        else:
            connection.head(Content_Type="application/json", Content_Length="1000")
            connection.raw.sendall(b"{")
        connection.stall()

    def hangs_up(self, connection: Connection) -> None:
        """Takes the request and closes."""
        connection.raw.close()


def busy(status: str, **headers: str) -> Answer:
    """An error status, with headers such as Retry_After."""
    return lambda connection: connection.whole(b'{"error": {"message": "not now"}}', status, **headers)


_CHAT = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def _chat_chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
    return None, {**_CHAT, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


_CHAT_USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 2,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 16},
}
_RESPONSE = {
    "id": "resp-1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "id": "msg-1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "yes sir", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 16},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 42,
    },
}
_MESSAGE = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "content": [{"type": "text", "text": "yes sir"}],
    "usage": {
        "input_tokens": 20,
        "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 1},
        "output_tokens": 2,
    },
}
_TIMINGS = {"cache_n": 16, "prompt_n": 24, "predicted_n": 2}

APIS = {
    api.name: api
    for api in (
        Api(
            "openai-chat",
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "yes sir"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": _CHAT_USAGE,
            },
            (
                _chat_chunk({"role": "assistant", "content": ""}),
                _chat_chunk({"content": "yes"}),
                _chat_chunk({"content": " sir"}),
                _chat_chunk({}, "stop"),
                (None, {**_CHAT, "choices": [], "usage": _CHAT_USAGE}),
                (None, "[DONE]"),
            ),
        ),
        Api(
            "openai-responses",
            _RESPONSE,
            (
                ("response.created", {"type": "response.created", "response": {"id": "resp-1"}}),
                ("response.output_text.delta", {"type": "response.output_text.delta", "delta": "yes"}),
                ("response.output_text.delta", {"type": "response.output_text.delta", "delta": " sir"}),
                ("response.completed", {"type": "response.completed", "response": _RESPONSE}),
            ),
        ),
        Api(
            "anthropic",
            _MESSAGE,
            (
                (
                    "message_start",
                    {
                        "type": "message_start",
                        "message": {**_MESSAGE, "content": [], "stop_reason": None},
                    },
                ),
                (
                    "content_block_start",
                    {
                        "type": "content_block_start",
                        "index": 0,
                        "content_block": {"type": "text", "text": ""},
                    },
                ),
                (
                    "content_block_delta",
                    {
                        "type": "content_block_delta",
                        "index": 0,
                        "delta": {"type": "text_delta", "text": "yes sir"},
                    },
                ),
                ("content_block_stop", {"type": "content_block_stop", "index": 0}),
                (
                    "message_delta",
                    {
                        "type": "message_delta",
                        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                        "usage": {"output_tokens": 2},
                    },
                ),
                ("message_stop", {"type": "message_stop"}),
            ),
        ),
        Api(
            "llama-server",
            {
                "content": "yes sir",
                "tokens": [],
                "stop": True,
                "stop_type": "eos",
                "id_slot": 0,
                "model": "m",
                "timings": _TIMINGS,
            },
            (
                (None, {"content": "", "tokens": [], "stop": False}),
                (None, {"content": "yes", "tokens": [], "stop": False}),
                (None, {"content": " sir", "tokens": [], "stop": False}),
                (None, {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "timings": _TIMINGS}),
            ),
        ),
    )
}
