"""A running llama-server: what it will reuse, said before each turn and seen after it, and a prefix that outlives its slot.

    llama-server -m model.gguf -np 1 --cache-ram 0 --slot-save-path ./slots --port 8080   # started by you
    python examples/llama_server.py http://127.0.0.1:8080

The server is asked for its chat template, its tokenizer and its slots; prompts go to it as token ids. Three turns of a
conversation, then the slot is saved to a file, another conversation takes its place, and the file brings the prefix back.
Without ``--slot-save-path`` the server refuses to save: the example says so and stops there.
"""

from __future__ import annotations

import argparse
import sys

from agentctx.backends.backend import Options, Refused
from agentctx.backends.llama_server import LlamaServer
from agentctx.caches.llama_server import LlamaServerModel
from agentctx.caches.model import Arrival
from agentctx.errors import AgentctxError
from agentctx.history import History
from agentctx.messages import Tool
from agentctx.replaying.live import Live, connect

SLOT = 0
OPTIONS = Options(max_tokens=8, temperature=0.0, slot=SLOT)
QUESTIONS = ("The tests fail. Why?", "And the other test?", "Mend both.")


class Conversation:
    """A history on a server: each turn is predicted, sent, and compared."""

    def __init__(self, live: Live, name: str, history: History) -> None:
        self.live, self.name, self.history = live, name, history
        self.wrong = 0

    def ask(self, question: str) -> None:
        self.history.user(question)
        prompt = self.live.renderer.render(self.history.request())
        predicted = self.live.cache.predict(prompt.token_ids, Arrival(slot=SLOT)).cached
        answer = self.live.backend.complete(prompt, OPTIONS)
        observed, reply_ids = answer.usage.cached, answer.reply_ids
        assert reply_ids is not None, "a llama-server tells the ids of its reply"
        self.live.cache.commit(prompt.token_ids, reply_ids, Arrival(slot=SLOT))
        self.history.assistant(answer.message.text)
        self.wrong += observed != predicted
        print(f"{self.name:<12}{len(prompt):>8}{predicted:>11}{observed:>10}")


def history() -> History:
    tools = [
        Tool.of("read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    ]
    return History(system="You fix bugs. Look before you change anything.", tools=tools)


def main() -> int:
    parser = argparse.ArgumentParser(description="Predicted and observed reuse on a llama-server.")
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument(
        "--file", default="agentctx-example.bin", help="name in the server's --slot-save-path"
    )
    parser.add_argument("--cache", help="the server's cache, such as llama-server:slots=1,ram=0")
    given = parser.parse_args()
    try:
        with connect(given.url, cache=given.cache) as live, LlamaServer(given.url) as server:
            return run(live, server, given.file)
    except AgentctxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def run(live: Live, server: LlamaServer, file: str) -> int:
    cache = live.cache
    assert isinstance(cache, LlamaServerModel), "a llama-server has this cache model"
    live.forget()
    print(f"{'':<12}{'prompt':>8}{'predicted':>11}{'observed':>10}")
    agent = Conversation(live, "agent", history())
    for question in QUESTIONS:
        agent.ask(question)
    try:
        saved = server.save_slot(SLOT, file)
    except Refused as refused:
        print(f"not saved: {refused}; start the server with --slot-save-path")
        return int(agent.wrong > 0)
    entry = cache.save(SLOT)
    print(f"saved {saved['n_saved']} tokens, {saved['n_written']:,} bytes")
    other = Conversation(live, "another", History(system="You translate."))
    other.ask("Good morning")
    restored = server.restore_slot(SLOT, file)
    cache.restore(SLOT, entry)
    print(f"restored {restored['n_restored']} tokens")
    agent.ask("Are you done?")
    wrong = agent.wrong + other.wrong
    print("predicted = observed on every turn" if not wrong else f"{wrong} turns not as predicted")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
