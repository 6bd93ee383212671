"""A process that writes for ever, and is killed while it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path


def kill_while_writing(program: str, folder: Path, begun: Callable[[], bool], delay_s: float) -> None:
    """Run Python source with the folder as its argument, from the checkout; kill it ``delay_s`` after ``begun`` says so.

    The program prints ``ready`` when it begins to write.
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    while not begun():
        time.sleep(0.01)
    time.sleep(delay_s)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
