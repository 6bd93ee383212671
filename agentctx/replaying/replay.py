"""Replay: one recorded session under one policy, turn by turn.

At every model call the policy decides what of the history the model reads, the renderer makes the prompt, the cache
model says what a server would reuse, and the recorded reply is appended. With a server, each turn is run as well, and what
it reused stands beside the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentctx.backends.backend import Completion
from agentctx.caches.model import Arrival, CacheModel
from agentctx.history import History
from agentctx.messages import Message
from agentctx.policies import Policy, SideRequest
from agentctx.rendering.prompt import Prompt, Renderer, TokenIds, common_prefix_length
from agentctx.rendering.user_starts import UserStarts
from agentctx.replaying.live import Live
from agentctx.reports.ledger import Ledger, predicted_turn
from agentctx.reports.mismatch import observed_turn
from agentctx.reports.turn import SessionReport, TurnReport
from agentctx.session import arrival_of, generated_ids
from agentctx.traces import Session


class Replay:
    """Runs once: :meth:`turns` gives each turn when it is over, :attr:`report` all of them; :meth:`run` does both.

    ``session``: the recording; one that breaks the chat protocol was refused when it was read. ``cache``: advanced turn by
    turn, so give a fresh one, or with a server the one that stands for it. Without ``live`` the recorded reply counts as
    generated. With it, the server answers each turn with a token or so, and the recorded reply takes the answer's place.
    A server that takes token ids is then sent the prompt with the recorded reply behind it, so that its memory holds
    what it would if it had written that reply; on others later turns read the reply as new text.
    """

    def __init__(
        self,
        session: Session,
        policy: Policy,
        renderer: Renderer,
        cache: CacheModel,
        *,
        policy_name: str | None = None,
        live: Live | None = None,
    ) -> None:
        self.session = session
        self.policy = policy
        self.renderer = renderer
        self.cache = cache
        self.live = live
        self._policy_name = policy_name or policy.name
        self._ledger = Ledger()
        self._user_starts = UserStarts()
        self._turns: list[TurnReport] = []
        self._prompt: Prompt | None = None
        self._stand_in = False
        self._promptless = 0
        self._notes: list[str] = []

    def turns(self) -> Iterator[TurnReport]:
        """Run the turns. Raises the errors of policies, rendering and the server."""
        session = self.session
        history = History(system=session.system, tools=session.tools)
        for message, generated in zip(session.messages, session.generated, strict=True):
            if generated and not len(history):
                self._promptless += 1  # the recorder kept the reply and not what was asked
            elif generated:
                report = self._turn(history, message)
                if report is None:
                    return
                self._turns.append(report)
                yield report
            history.append(message)

    def run(self) -> SessionReport:
        """Run all turns. Raises as :meth:`turns` does."""
        for _ in self.turns():
            pass
        return self.report

    @property
    def report(self) -> SessionReport:
        """The turns so far."""
        notes = list(self._notes)
        if self._promptless:
            notes.append(f"{self._promptless} replies have no recorded prompt and were not counted as turns")
        return SessionReport(
            _title(self.session),
            self._policy_name,
            self.cache.name,
            self.renderer.name,
            tuple(self._turns),
            self._stand_in,
            notes=(*notes, *self.session.conversation.repairs),
        )

    def _turn(self, history: History, message: Message) -> TurnReport | None:
        """One turn; ``None`` when its prompt doesn't fit the server's context."""
        turn = self.policy.turn(history, self.renderer.count)
        self._stand_in = self._stand_in or turn.stand_in
        prompt = self.renderer.render(turn.request, self._prompt)
        reply_ids = self.renderer.reply_ids(prompt, message)
        if not self._fits(prompt, reply_ids):
            return None
        asked, asked_reused = self._ask(turn.asked)
        self._prompt = prompt
        arrival = self._arrival(prompt)
        account = self._ledger.account(prompt)
        rounded = self.cache.without_limits(prompt.token_ids, arrival)
        completion, generated = (None, reply_ids) if self.live is None else self._serve(self.live, prompt)
        served = self.cache.commit(prompt.token_ids, generated, arrival)
        report = predicted_turn(
            len(self._turns) + 1, turn, prompt, account, rounded=rounded, predicted=served.cached
        )
        report = replace(report, reply=len(reply_ids), asked=asked, asked_reused=asked_reused)
        if self.live is not None and not self.live.reads_replies:
            kept = common_prefix_length(generated, reply_ids)
            self._ledger.commit(prompt, reply_ids[:kept])
        else:
            if self.live is not None:
                self._read(self.live, prompt, reply_ids)
            self._ledger.commit(prompt, reply_ids, message)
        if completion is None:
            return report
        return observed_turn(report, account, served, completion, rounded=rounded)

    def _fits(self, prompt: Prompt, reply_ids: TokenIds) -> bool:
        """Whether the server's context has room for the prompt and its reply; a note says where the replay stopped."""
        limit = self.live.context if self.live is not None else None
        needed = len(prompt) + max(len(reply_ids), 1)
        if limit is None or needed < limit:
            return True
        self._notes.append(
            f"stopped before turn {len(self._turns) + 1}: {needed:,} tokens with its reply, and the server's context is {limit:,}"
        )
        return False

    def _arrival(self, prompt: Prompt) -> Arrival:
        if self.live is None:
            return Arrival()
        blind = self.live.backend.takes_tokens
        return arrival_of(prompt, self.live.options, takes_tokens=blind, user_starts=self._user_starts)

    def _serve(self, live: Live, prompt: Prompt) -> tuple[Completion, TokenIds]:
        """Run a prompt on the server: what it said, and the ids that it generated."""
        completion = live.backend.complete(prompt, live.options)
        return completion, generated_ids(self.renderer, prompt, completion)

    def _read(self, live: Live, prompt: Prompt, reply_ids: TokenIds) -> None:
        """Have the server read a reply that it did not write: all but the last token, which no server computes."""
        if len(reply_ids) < 2:
            return
        read = replace(
            prompt,
            token_ids=np.concatenate((prompt.token_ids, reply_ids[:-1])),
            spans=(),
            starts=None,
            state=None,
        )
        _, generated = self._serve(live, read)
        self.cache.commit(read.token_ids, generated, self._arrival(read))

    def _ask(self, requests: Sequence[SideRequest]) -> tuple[int, int]:
        """Serve a policy's requests for summaries on the same server: their prompt tokens, and those of them reused."""
        tokens = reused = 0
        for side in requests:
            prompt = self.renderer.render(side.request, self._prompt)
            reply_ids = self.renderer.reply_ids(prompt, side.reply)
            tokens += len(prompt)
            arrival = self._arrival(prompt)
            if self.live is None:
                reused += self.cache.commit(prompt.token_ids, reply_ids, arrival).cached
                continue
            completion, generated = self._serve(self.live, prompt)
            predicted = self.cache.commit(prompt.token_ids, generated, arrival).cached
            cached = completion.usage.cached
            reused += predicted if cached is None else cached
            if self.live.reads_replies:
                self._read(self.live, prompt, reply_ids)
        return tokens, reused


def _title(session: Session) -> str:
    """The file's name, with the session's id where that says more."""
    name = Path(session.file).name
    return name if session.id in name else f"{name} ({session.id})"
