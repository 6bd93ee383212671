"""Token-in, token-out: replies stay in later prompts as the ids that were generated.

Text has many encodings and a model need not choose the tokenizer's. Where a server takes token ids, the next prompt is
therefore the last prompt's ids, the generated ids, and the encoding of the text behind them. Where the next prompt's
text does not continue with the reply, the template (or the client) changed it: that is drift, and it has a place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agentctx.common_ends import common_start
from agentctx.rendering.prompt import Prompt, Span, TokenIds
from agentctx.rendering.tokenizer import CharStarts, Tokenizer


@dataclass(frozen=True, slots=True)
class Sent:
    """What stands in the server's memory after a turn: its prompt and the reply as generated.

    ``starts``: for each token the character of ``text`` at which it begins, int32, shape [tokens]. ``rendered``: the
    prompt's spans as the renderer made them, ``spans``: the same over the ids that were sent.
    """

    token_ids: TokenIds
    text: str
    starts: CharStarts
    rendered: tuple[Span, ...] = ()
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, rendered: Prompt, prompt: Prompt, reply_ids: TokenIds, tokenizer: Tokenizer) -> Sent:
        """The prompt that was sent for ``rendered``, with the ids that were generated behind it."""
        starts = prompt.starts if prompt.starts is not None else tokenizer.encode_placed(prompt.text)[1]
        reply = tokenizer.decode(reply_ids)
        # A token that ends inside a character decodes to a replacement: exact but for such characters, where a token may
        # be placed one character off.
        lengths = np.fromiter(
            (len(tokenizer.decode(reply_ids[i : i + 1])) for i in range(len(reply_ids))), np.int32
        )
        reply_starts = np.minimum(np.cumsum(lengths) - lengths, len(reply)) + len(prompt.text)
        return cls(
            np.concatenate((prompt.token_ids, reply_ids)),
            prompt.text + reply,
            np.concatenate((starts, reply_starts.astype(np.int32))),
            rendered.spans,
            prompt.spans,
        )


@dataclass(frozen=True, slots=True)
class Continued:
    """``prompt`` with the generated ids kept; ``drift`` is the character at which its text leaves what was sent, or ``None``."""

    prompt: Prompt
    drift: int | None


def continued(prompt: Prompt, sent: Sent, tokenizer: Tokenizer) -> Continued:
    """Put the ids of what was sent in the place of the prompt's own, if its text continues what was sent.

    The text behind is encoded by itself: what was sent ends with an end token, or with what a model wrote before the
    server cut it off, and behind that an end token follows.
    """
    if not prompt.text.startswith(sent.text):
        return Continued(prompt, common_start(prompt.text, sent.text))
    rest, rest_starts = tokenizer.encode_placed(prompt.text[len(sent.text) :])
    ids = np.concatenate((sent.token_ids, rest))
    if np.array_equal(ids, prompt.token_ids):
        return Continued(prompt, None)
    starts = np.concatenate((sent.starts, rest_starts + np.int32(len(sent.text))))
    moved = replace(
        prompt, token_ids=ids, spans=_moved_spans(prompt, starts, sent), starts=starts, state=None
    )
    return Continued(moved, None)


def _moved_spans(prompt: Prompt, starts: CharStarts, sent: Sent) -> tuple[Span, ...]:
    """The prompt's spans over other ids of the same text: a token belongs to the span in which it begins.

    Spans that the prompt before had are where they were in what was sent, but for its last, which ended with its text.
    """
    kept = max(0, common_start(sent.rendered, prompt.spans) - 1)
    spans = list(sent.spans[:kept])
    start = spans[-1].end if spans else 0
    rest = prompt.spans[kept:]
    char_ends = np.array([span.char_end for span in rest], dtype=np.int32)
    ends = start + np.searchsorted(starts[start:], char_ends, side="left")
    for span, found in zip(rest, ends.tolist(), strict=True):
        end = max(start, found)
        spans.append(replace(span, start=start, end=end))
        start = end
    if spans:
        spans[-1] = replace(spans[-1], end=len(starts))
    return tuple(spans)
