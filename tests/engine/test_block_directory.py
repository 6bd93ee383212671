"""A directory of blocks that others put things into: what is no block's file is passed over and left alone."""

from __future__ import annotations

from pathlib import Path

import torch

from agentctx_engine.runtime.block_directory import BlockDirectory

from .test_engine_tiers import ANSWER, ask, engine_of, texts

SOME, OTHER = "ab" * 32, "cd" * 32
STRAYS = {
    "of a group that there is not": f"9-{SOME}.kv",
    "of a huge group": f"{10**30}-{SOME}.kv",
    "a number written otherwise": f"00-{SOME}.kv",
    "a digit of another script": f"٠-{SOME}.kv",
    "a negative group": f"-1-{SOME}.kv",
    "a hash cut off": f"0-{SOME[1:]}.kv",
    "another ending": f"0-{SOME}.kv.old",
    "anything": "notes.txt",
}


def add_strays(folder: Path) -> None:
    for name in STRAYS.values():
        (folder / name).write_bytes(b"x")
    (folder / f"0-{SOME}.kv").mkdir()
    (folder / f"0-{OTHER}.kv").symlink_to(folder / "nowhere")


def test_strays_are_no_blocks(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, {"model": "a"}, {0: (1, 2, 4), 1: (2, 2, 4)}, torch.float32)
    blocks = [(bytes([number]) * 32, number % 2) for number in range(4)]
    for digest, group in blocks:
        directory.write(digest, group, torch.full((group + 1, 2, 4), float(group)))
    add_strays(directory.path)
    assert sorted(directory.files()) == sorted(blocks)
    assert len(directory.trim(2)) == 2
    assert len(directory.files()) == 2
    assert len(list(directory.path.iterdir())) == 2 + len(STRAYS) + 2


def test_an_engine_opens_beside_strays(tmp_path: Path) -> None:
    prompts = texts(3, 41)
    options = {"disk_dir": tmp_path, "host_blocks": 1, "num_blocks": 12}
    with engine_of(**options) as engine:
        for prompt in prompts:
            engine.generate(prompt, ANSWER)
    [folder] = tmp_path.iterdir()
    add_strays(folder)
    with engine_of(**options) as engine:
        cached, _, from_disk = ask(engine, prompts[0])
        assert 0 < from_disk <= cached
    assert {path.name for path in folder.iterdir()} > {*STRAYS.values(), f"0-{SOME}.kv", f"0-{OTHER}.kv"}
