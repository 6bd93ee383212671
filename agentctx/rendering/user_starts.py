"""Where user messages start in a prompt: places at which some servers keep the state of their memory."""

from __future__ import annotations

from agentctx.common_ends import common_start
from agentctx.messages import Request
from agentctx.rendering.prompt import Prompt, Span


class UserStarts:
    """Token positions at which user messages start, template opening included where the spans tell.

    For the prompts of one conversation, one after the other: a prompt's spans begin with those of the prompt before, as the
    same objects, and only what follows them is walked.
    """

    def __init__(self) -> None:
        self._spans: tuple[Span, ...] = ()
        self._request: Request | None = None
        self._starts: list[int] = []
        # Before each span: how many starts there were, the last item, the end of its last span.
        self._marks: list[tuple[int, int | None, int]] = [(0, None, 0)]

    def of(self, prompt: Prompt) -> tuple[int, ...]:
        """The starts in this prompt, ascending."""
        kept = self._kept(prompt)
        del self._marks[kept + 1 :]
        count, last_item, previous_end = self._marks[kept]
        del self._starts[count:]
        messages = prompt.request.messages
        for span in prompt.spans[kept:]:
            if span.item is not None and span.zone != "tools":
                if span.item != last_item and messages[span.item].role == "user":
                    self._starts.append(previous_end)
                last_item, previous_end = span.item, span.end
            self._marks.append((len(self._starts), last_item, previous_end))
        self._spans, self._request = prompt.spans, prompt.request
        return tuple(self._starts)

    def _kept(self, prompt: Prompt) -> int:
        """Leading spans that are those of the last prompt, if all of its messages are still there."""
        known = self._request.messages if self._request is not None else ()
        if common_start(known, prompt.request.messages) < len(known):
            return 0
        return common_start(self._spans, prompt.spans)
