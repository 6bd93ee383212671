"""A builder that leaves it to agentctx: the history is append-only by construction, volatile text goes to its end."""

import os
from datetime import datetime

from agentctx import History
from agentctx.interchange import read_request

SYSTEM = "You are a careful coding agent."


class Builder:
    """Takes what is new of the messages, and builds the request of the next turn."""

    def __init__(self):
        self.history = None

    def __call__(self, messages, tools):
        given = read_request("openai.chat", {"messages": messages, "tools": tools})
        if self.history is None:
            self.history = History(SYSTEM, given.tools)
        self.history.extend(given.messages[len(self.history.messages) :])
        # The clock and the folder belong to the newest message, and stay there once they were sent.
        self.history.note(f"[{datetime.now():%H:%M}, in {os.getcwd()}]", key="state")
        return self.history.request()
