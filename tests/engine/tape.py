"""TapeRecorder: what a CUDA graph does, on the CPU. Operations are written down with the tensors that they read and wrote;
running the tape does them again on those tensors, and no line of Python that chose them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, plays: list[Callable[[], None]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plays = plays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.name().split(".")[0] not in WAITS, f"{func.name()} waits for what only the host knows"
        kwargs = kwargs or {}
        result = func(*args, **kwargs)

        def play() -> None:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)  # not of a view, nor of what was changed in place

        self.plays.append(play)
        return result


@contextmanager
def _launches(plays: list[Callable[[], None]]) -> Iterator[None]:
    """Kernels in Triton's interpreter are no operations of torch's: written down when they are launched."""
    try:
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError:
        yield
        return
    run = InterpretedFunction.run

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        def play() -> None:
            with _disable_current_modes():
                run(self, *args, **kwargs)

        play()
        plays.append(play)

    with mock.patch.object(InterpretedFunction, "run", launch):
        yield


class TapeRecorder:
    """A ``Recorder``. ``runs`` counts how often a tape was run."""

    def __init__(self) -> None:
        self.runs = 0

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        plays: list[Callable[[], None]] = []
        with _Tape(plays), _launches(plays):
            answer = work()
        assert plays

        def replay() -> Tensor:
            self.runs += 1
            with torch.inference_mode():
                for play in plays:
                    play()
            return answer

        return replay
