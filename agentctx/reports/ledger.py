"""Ledger: which tokens of each prompt are new, which are paid again, and for what reason.

The ledger remembers everything that the conversation has put in front of the model. With
``ideal`` = the longest prefix that this prompt shares with any earlier prompt and its reply,
``rounded`` = what a cache of the given rules would reuse if it never lost anything,
and ``reused`` = what was reused, a turn's tokens fall apart without remainder::

    0 ........ reused ........ rounded ........ ideal ........................ prompt
      reused    |   server      |   rounding     |  broken (old) and new items  |

A server that others use too may hold more of a prompt than this conversation has sent: then ``reused`` reaches beyond
``ideal``, and what it covers there was not paid at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from agentctx.caches.seen import SeenPrefixes
from agentctx.messages import Message, Request
from agentctx.policies import Turn
from agentctx.rendering.prompt import Prompt, Span, TokenIds
from agentctx.reports.turn import Divergence, TurnReport


@dataclass(frozen=True, slots=True)
class Account:
    """Where the tokens of one prompt belong; ``new + broken + ideal = total``."""

    new: int
    broken: int
    ideal: int
    divergence: Divergence | None

    @property
    def total(self) -> int:
        return self.new + self.broken + self.ideal

    def scaled(self, total: int) -> Account:
        """The same parts of a prompt of ``total`` tokens. They add up to it, and what is nothing stays nothing."""
        if total == self.total:
            return self
        if not self.total:
            return replace(self, new=total)
        ideal = scaled(self.ideal, self.total, total)
        old = scaled(self.ideal + self.broken, self.total, total)
        return replace(self, new=total - old, broken=old - ideal, ideal=ideal)


def scaled(tokens: int, of: int, total: int) -> int:
    """``tokens`` of a prompt that has ``of`` of them, in another count by which it has ``total``."""
    return tokens * total // of if of else 0


class Split(NamedTuple):
    """What was not reused of a prompt, by why it had to be processed. The four add up to it."""

    new: int
    rounding: int
    broken: int
    server: int


def split(account: Account, *, rounded: int, reused: int) -> Split:
    """Split the ``account.total - reused`` tokens that were processed.

    ``rounded``: tokens that the cache's rules would reuse if it had lost nothing. What it holds beyond ``ideal`` others have
    put there: its loss is none of this conversation's, and where it was reused, tokens that were sent before come first.
    """
    rounded = min(rounded, account.ideal)
    beyond = max(0, reused - account.ideal)
    return Split(
        new=account.new - max(0, beyond - account.broken),
        rounding=max(0, account.ideal - max(rounded, reused)),
        broken=max(0, account.broken - beyond),
        server=max(0, rounded - reused),
    )


def predicted_turn(
    number: int, turn: Turn, prompt: Prompt, account: Account, *, rounded: int, predicted: int
) -> TurnReport:
    """The report of a turn that is not observed yet. ``rounded`` as of :func:`split`; ``predicted``: what will be reused."""
    return TurnReport(
        turn=number,
        prompt=len(prompt),
        predicted=predicted,
        cached=None,
        **split(account, rounded=rounded, reused=predicted)._asdict(),
        dropped=sum(item.tokens for item in turn.dropped),
        compacted=turn.compacted,
        exact=prompt.exact,
        divergence=account.divergence,
        problem=turn.problem,
    )


class Ledger:
    """The tokens of one conversation, turn by turn."""

    def __init__(self) -> None:
        self._seen = SeenPrefixes()
        self._items: set[bytes] = set()
        self._known_tools: tuple[object, ...] = ()
        self._known_messages: list[Message] = []
        self._longest = 0  # tokens of the last prompt with its reply

    def account(self, prompt: Prompt) -> Account:
        """Split a prompt's tokens. Changes nothing; call :meth:`commit` once the turn ran."""
        total = len(prompt)
        ideal = self._seen.longest_prefix(prompt.token_ids)
        if ideal >= self._longest:
            # Everything that was ever sent last is still there: what follows is new by definition, the
            # template's closing text of the last reply included.
            return Account(total - ideal, 0, ideal, None)
        new = self._new_tokens_after(prompt, ideal)
        return Account(new, total - ideal - new, ideal, _divergence(prompt, ideal))

    def commit(self, prompt: Prompt, reply_ids: TokenIds, reply: Message | None = None) -> None:
        """Remember a turn: its prompt, and the reply that was generated behind it."""
        self._seen.add(prompt.token_ids, reply_ids)
        self._longest = len(prompt) + len(reply_ids)
        self._remember_items(prompt.request)
        if reply is not None:
            self._items.add(reply.digest)

    def _remember_items(self, request: Request) -> None:
        if request.tools is not self._known_tools:
            self._items.update(tool.digest for tool in request.tools)
            self._known_tools = request.tools
        # An append-only turn shares its messages with the turn before: only the others need a digest.
        known = self._known_messages
        start = 0
        for old, message in zip(known, request.messages, strict=False):
            if old is not message:
                break
            start += 1
        del known[start:]
        for message in request.messages[start:]:
            self._items.add(message.digest)
            known.append(message)

    def _is_new(self, request: Request, span: Span) -> bool:
        if span.item is None:
            return False
        if span.zone == "tools":
            return request.tools[span.item].digest not in self._items
        return request.messages[span.item].digest not in self._items

    def _new_tokens_after(self, prompt: Prompt, ideal: int) -> int:
        """Tokens at or after ``ideal`` that belong to new items, with the template text before them."""
        new = 0
        follows_new = True  # the generation prompt at the end opens an item that no prompt has had
        newness: dict[tuple[bool, int], bool] = {}
        for span in reversed(prompt.spans):
            if span.end <= ideal:
                break
            if span.item is not None:
                key = (span.zone == "tools", span.item)
                if key not in newness:
                    newness[key] = self._is_new(prompt.request, span)
                follows_new = newness[key]
            if follows_new:
                new += span.end - max(span.start, ideal)
        return new


def _divergence(prompt: Prompt, token: int) -> Divergence | None:
    if token >= len(prompt):
        return None
    place = prompt.locate(token)
    return Divergence(place.zone, place.path, place.field, place.char, token)
