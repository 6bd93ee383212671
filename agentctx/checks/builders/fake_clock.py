"""A clock that a check sets: it stands in a builder's process instead of the real one, and notes who reads it.

Covered: ``time.time``, ``time_ns``, ``gmtime``, ``localtime``, ``ctime``, ``asctime``, ``strftime``, ``sleep`` (which moves this clock
and hardly waits), ``datetime.datetime.now``, ``utcnow``, ``today`` and ``datetime.date.today``. Not covered: ``time.monotonic`` and
``perf_counter`` (no dates come from them), other programs, and extension modules that ask the system themselves.
Reads of ``os.getcwd`` and draws of ``uuid`` and ``secrets`` are noted, too, and left as they are.
"""

from __future__ import annotations

import datetime as dates
import os
import secrets
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

_TICK = 0.001  # each look moves it, so that a loop which waits for it ends


class FakeClock:
    """``now`` is in seconds since the epoch. ``reads`` holds (kind, file, line) of the looks since it was emptied."""

    def __init__(self, start: float, step: float, root: str) -> None:
        self.now = start
        self.reads: list[tuple[str, str, int]] = []
        self._start, self._step, self._root = start, step, root

    def turn(self, number: int) -> None:
        """Go to the time of a turn, from 0. What was read before the first one belongs to it."""
        self.now = self._start + number * self._step
        if number:
            self.reads.clear()

    def look(self, kind: str = "clock") -> float:
        """The time, noting the line of the project that asks."""
        self.note(kind)
        self.now += _TICK
        return self.now

    def note(self, kind: str) -> None:
        """Note the nearest line of the project."""
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self._root):
                read = (kind, file, frame.f_lineno)
                if read not in self.reads and len(self.reads) < 50:
                    self.reads.append(read)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def install(self) -> None:
        """Put it in place of the real clock. Modules that are imported later get it."""
        self._time_functions()
        self._date_classes()
        os.getcwd = self._noted("cwd", os.getcwd)
        for module, names in (
            (uuid, ("uuid1", "uuid4")),
            (secrets, ("token_hex", "token_urlsafe", "token_bytes")),
        ):
            for name in names:
                setattr(module, name, self._noted("random", getattr(module, name)))

    def _noted(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.note(kind)
            return function(*arguments, **keywords)

        return noted

    def _time_functions(self) -> None:
        real_sleep = time.sleep
        look = self.look

        def sleep(seconds: float) -> None:
            self.now += max(0.0, seconds)
            real_sleep(min(max(0.0, seconds), 0.01))

        def filled(
            function: Callable[..., Any], place: int, make: Callable[[float], Any]
        ) -> Callable[..., Any]:
            """The function with the time filled in where the caller leaves it out."""

            def called(*arguments: Any) -> Any:
                if len(arguments) <= place or arguments[place] is None:
                    return function(*arguments[:place], make(look()))
                return function(*arguments)

            return called

        local = time.localtime
        patched: dict[str, Callable[..., Any]] = {
            "time": lambda: look(),
            "time_ns": lambda: int(look() * 1e9),
            "sleep": sleep,
            "gmtime": filled(time.gmtime, 0, float),
            "localtime": filled(time.localtime, 0, float),
            "ctime": filled(time.ctime, 0, float),
            "asctime": filled(time.asctime, 0, local),
            "strftime": filled(time.strftime, 1, local),
        }
        for name, function in patched.items():
            setattr(time, name, function)

    def _date_classes(self) -> None:
        real, real_date, look = dates.datetime, dates.date, self.look

        class Meta(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, real if issubclass(cls, real) else real_date)

            def __subclasscheck__(cls, other: type) -> bool:
                return type.__subclasscheck__(cls, other) or (
                    cls.__name__ in ("datetime", "date")
                    and type.__subclasscheck__(real if cls.__name__ == "datetime" else real_date, other)
                )

        class Datetime(dates.datetime, metaclass=Meta):
            @classmethod
            def now(cls, tz: dates.tzinfo | None = None) -> Any:
                return cls.fromtimestamp(look(), tz)

            @classmethod
            def utcnow(cls) -> Any:
                return cls.fromtimestamp(look(), dates.UTC).replace(tzinfo=None)

            @classmethod
            def today(cls) -> Any:
                return cls.fromtimestamp(look())

        class Date(dates.date, metaclass=Meta):
            @classmethod
            def today(cls) -> Any:
                return cls.fromtimestamp(look())

        for made, name in ((Datetime, "datetime"), (Date, "date")):
            made.__name__ = made.__qualname__ = name
            made.__module__ = "datetime"
            setattr(dates, name, made)
