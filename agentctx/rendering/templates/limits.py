"""Limits on what a template may cost, and the meter that keeps them.

A template is data from outside. Everything it does passes through the meter: each loop pass, call, comparison, filter and output
is a step; each value that it makes is charged before or as it is made, so that no single operation can run away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sized
from dataclasses import dataclass

from agentctx.errors import RenderError
from agentctx.rendering.templates.tracing import Traced


class LimitError(RenderError):
    """A template ran over a limit."""


class DepthError(LimitError):
    """A template went too deep. Unlike too long or too large, that may be one conversation's doing: it took next to no time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rendering may cost. The allowances per message and per byte keep long conversations out of their reach.

    ``seconds``: CPU time of the rendering thread. ``bytes_made``: bytes of all values made. ``output``: characters.
    ``depth``: nested macro calls. ``number``: magnitude of any width, count or exponent. ``source``: characters of the template; ``words``: tokens of its language, which compiling takes time for.
    ``bits``: size of an integer.
    """

    source: int = 131_072
    words: int = 24_000
    seconds: float = 1.0
    seconds_per_message: float = 0.01
    bytes_made: int = 64_000_000
    bytes_made_per_input_byte: int = 64
    output: int = 8_000_000
    output_per_input_byte: int = 8
    depth: int = 60
    number: int = 100_000
    bits: int = 65_536


_CLOCK_EVERY = 64
PIECE_BYTES = 60  # a short string or number in a list
_RUN_BYTES = 128  # one origin inside a traced string


class Meter:
    """Counts what one rendering costs and raises ``LimitError`` when it is too much."""

    __slots__ = (
        "_deadline",
        "_forgiven",
        "_free",
        "_input",
        "_input_bytes",
        "_seen",
        "_steps",
        "depth",
        "limits",
        "made",
    )

    def __init__(self, limits: Limits, messages: list[dict[str, object]], tools: object) -> None:
        self.limits = limits
        self.made = 0
        self.depth = 0
        self._input = (messages, tools)
        self._input_bytes: int | None = None
        self._steps = 0
        self._free = limits.bytes_made
        self._seen = time.thread_time()
        self._deadline = self._seen + limits.seconds + limits.seconds_per_message * len(messages)
        self._forgiven = False

    def step(self) -> None:
        """One loop pass, call, comparison, filter or output."""
        self._steps += 1
        if self._steps % _CLOCK_EVERY == 0:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """Refuse to go on after the deadline.

        Once, half of the limit gone since the last look is taken for a pause that isn't the template's: a collection of garbage
        in a large program, or a machine that stood still, which some systems count as time of the thread.
        """
        now = time.thread_time()
        passed, self._seen = now - self._seen, now
        if not self._forgiven and passed > self.limits.seconds / 2:
            self._forgiven = True
            self._deadline += passed
        if now > self._deadline:
            raise LimitError(f"the template takes more than {self.limits.seconds} s of CPU time")

    def charge(self, size: int) -> None:
        """``size`` bytes are about to be made."""
        self.made += size
        self._steps += size >> 16
        if size > 1 << 20 or self._steps % _CLOCK_EVERY == 0:
            self._steps |= _CLOCK_EVERY - 1
            self.step()
        if self.made > self.limits.bytes_made and self.made > self._allowance(
            self.limits.bytes_made, self.limits.bytes_made_per_input_byte
        ):
            raise LimitError(f"the template makes more than {self.limits.bytes_made} bytes of values")

    def spend(self, size: int) -> None:
        """``step`` and ``charge`` at once: most operations are one step that makes little."""
        steps, made = self._steps + 1, self.made + size
        if steps % _CLOCK_EVERY and size < 1 << 16 and made <= self._free:
            self._steps, self.made = steps, made
        else:
            self.step()
            self.charge(size)

    def check_output(self, size: int) -> None:
        """``size`` characters of output in all."""
        limits = self.limits
        if size > limits.output and size > self._allowance(limits.output, limits.output_per_input_byte):
            raise LimitError(f"the template writes more than {limits.output} characters")

    def number(self, *values: object) -> None:
        """Refuse widths, counts and exponents that make a value out of proportion."""
        for value in values:
            if isinstance(value, int) and abs(value) > self.limits.number:
                raise LimitError(
                    f"a number of {value.bit_length()} bits is too large here (limit {self.limits.number})"
                )

    def integer(self, *values: object) -> None:
        """Refuse integers on which arithmetic takes long."""
        for value in values:
            if isinstance(value, int) and value.bit_length() > self.limits.bits:
                raise LimitError(f"an integer of the template has more than {self.limits.bits} bits")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > self.limits.depth:
            raise DepthError(f"macros call one another more than {self.limits.depth} levels deep")

    def leave(self) -> None:
        self.depth -= 1

    def _allowance(self, base: int, per_byte: int) -> int:
        """The limit with the input's share: only worked out when the base is used up."""
        if self._input_bytes is None:
            self._input_bytes = text_size(self._input, self, limit=1 << 40)
        return base + per_byte * self._input_bytes


def size_of(value: object) -> int:
    """Bytes of a value's own storage, roughly: what making a copy of it costs."""
    if isinstance(value, str):
        size = len(value) if value.isascii() else 4 * len(value)
        return size + _RUN_BYTES * len(value.runs) if type(value) is Traced else size
    if isinstance(value, int):
        return value.bit_length() >> 3
    if isinstance(value, Sized):
        return 8 * len(value)
    return 8


def text_size(value: object, meter: Meter, limit: int | None = None) -> int:
    """Bytes of the value written out as text, roughly; raises when it is out of all proportion.

    Shared parts count as often as they would be written, and the walk stops at the limit.
    """
    most = meter.limits.bytes_made if limit is None else limit
    total = visited = 0
    stack = [value]
    while stack:
        item = stack.pop()
        visited += 1
        total += 8
        if isinstance(item, str):
            total += size_of(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        elif isinstance(item, int):
            total += item.bit_length() >> 1
        if total > most or len(stack) * 8 > most:
            raise LimitError(f"the template writes out a value of more than {most} bytes")
        if limit is None and visited % 1024 == 0:
            meter.step()
    return total


def nesting(value: object, meter: Meter) -> int:
    """Levels of lists and dicts inside a value that ``text_size`` let pass."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, level = stack.pop()
        if isinstance(item, Mapping):
            stack.extend((inner, level + 1) for inner in item.values())
        elif isinstance(item, list | tuple):
            stack.extend((inner, level + 1) for inner in item)
        else:
            continue
        deepest = max(deepest, level)
        meter.step()
    return deepest
