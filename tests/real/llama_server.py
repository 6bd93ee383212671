"""A real llama-server (llama.cpp's own HTTP server, out of the package ``xllamacpp``) in a process of its own.

    with LlamaServer(model, n_parallel=1) as server:
        server.post("/completion", {"prompt": [1, 2, 3], "n_predict": 4})

The process computes with one thread: several spin against each other on a small, busy machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

_START_SECONDS = 60.0
_ANSWER_SECONDS = 300.0  # a prompt of hundreds of tokens on a busy core


class LlamaServer:
    """Starts on entry and ends, by its process id, on exit. ``switches``: fields of ``xllamacpp.CommonParams`` by name;
    a dot reaches into a field (``"sampling.seed"``).
    """

    def __init__(self, model: Path, *, log: Path | None = None, **switches: Any) -> None:
        self.model = model
        self.log = log
        self.switches = switches
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None

    def __enter__(self) -> LlamaServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until ``/health`` answers 200."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {"model.path": str(self.model), "port": port, **self.switches}
        with open(self.log, "ab") if self.log else nullcontext(subprocess.DEVNULL) as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._client = httpx.Client(base_url=self.url, timeout=_ANSWER_SECONDS)
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        assert self._client is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with code {self._process.returncode} while starting")
            try:
                if self._client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"llama-server was not healthy within {_START_SECONDS:.0f} s")

    def stop(self) -> None:
        """End the process; more than once does no harm."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def get(self, path: str) -> Any:
        """GET, parsed; raises on an error status."""
        assert self._client is not None, "the server is not running"
        answer = self._client.get(path)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST, parsed; raises on an error status."""
        assert self._client is not None, "the server is not running"
        answer = self._client.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def status_of(self, path: str, body: dict[str, Any]) -> int:
        """POST, for its status code only."""
        assert self._client is not None, "the server is not running"
        return self._client.post(path, json=body).status_code


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serve(settings: dict[str, Any]) -> None:
    """The child process: run the server until its standard input closes, so that it never outlives its parent."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    defaults: dict[str, Any] = {
        "cpuparams.n_threads": 1,
        "cpuparams_batch.n_threads": 1,
        "n_threads_http": 2,
        "warmup": False,
        "fit_params": False,
        "endpoint_slots": True,
        "endpoint_props": True,
        "use_jinja": True,
    }
    for name, value in {**defaults, **settings}.items():
        target: Any = params
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        if not hasattr(target, last):
            raise AttributeError(f"CommonParams has no {name}")
        setattr(target, last, value)
    server = xllamacpp.Server(params)
    sys.stdin.buffer.read()
    del server


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
