"""Train the embedded byte-level BPE vocabulary (agentctx/rendering/data/agentctx-32k.bpe.gz).

Usage: python scripts/train_vocabulary.py [--check]

The text is what a development environment already holds: the standard library of the running Python and the
packages of ``SOURCES``, all under permissive licences. Everything is read in a fixed order, so the same Python and the
same package versions (``constraints.txt``) give the same bytes. ``PROVENANCE.md`` beside the vocabulary
names versions, licences, byte counts and the digest of what was read.

``--check`` trains without writing and fails when the result differs from the file that ships.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentctx.rendering.embedded import DATA_FILE, PATTERN, SIZE, SPECIAL_TOKENS

STDLIB = "Python standard library"
LICENCES = {
    STDLIB: "PSF-2.0",
    "anthropic": "MIT",
    "httpx": "BSD-3-Clause",
    "huggingface_hub": "Apache-2.0",
    "matplotlib": "PSF-based (matplotlib licence)",
    "mypy": "MIT",
    "networkx": "BSD-3-Clause",
    "numpy": "BSD-3-Clause",
    "openai": "Apache-2.0",
    "pydantic": "MIT",
    "pytest": "MIT",
    "rich": "MIT",
    "setuptools": "MIT",
    "starlette": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "torch": "BSD-3-Clause",
    "transformers": "Apache-2.0",
    "typer": "MIT",
    "uvicorn": "BSD-3-Clause",
}
SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt", ".json", ".h", ".js", ".html", ".css")
# One package must not drown the others; headers of torch repeat one another.
BYTES_PER_SOURCE = 1_500_000
BYTES_PER_FILE = 150_000
# Prose is what an agent's messages mostly are, and source trees hold little of it.
PROSE_WEIGHT = 3


@dataclass
class Source:
    """What was read of one package."""

    name: str
    version: str
    licence: str
    files: int = 0
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)


def files_of(name: str) -> tuple[str, list[Path]]:
    """Version and text files of one source, sorted by their path relative to its root."""
    if name == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        skip = ("site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "encodings", "config")
        found = [
            p for p in root.rglob("*") if not any(x.startswith(skip) for x in p.relative_to(root).parts[:-1])
        ]
        return sys.version.split()[0], sorted(p for p in found if p.suffix in SUFFIXES and p.is_file())
    dist = importlib.metadata.distribution(name)
    paths = [Path(str(dist.locate_file(f))) for f in dist.files or () if "__pycache__" not in f.parts]
    return dist.version, sorted(p for p in paths if p.suffix in SUFFIXES and p.is_file())


def thin(paths: list[Path]) -> list[Path]:
    """Every n-th file, so that a large package is sampled over its whole tree."""
    total = sum(min(p.stat().st_size, BYTES_PER_FILE) for p in paths)
    return paths[:: max(1, round(total / BYTES_PER_SOURCE))]


def prose(text: str) -> str:
    """Docstrings of a Python module, without their indentation."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, holders))


def read(sources: list[Source]) -> Iterator[str]:
    """The training text; fills ``sources`` on the way."""
    for name, licence in LICENCES.items():
        version, paths = files_of(name)
        source = Source(name, version, licence)
        sources.append(source)
        for path in thin(paths):
            data = path.read_bytes()[:BYTES_PER_FILE]
            text = data.decode("utf-8", errors="ignore")
            source.files += 1
            source.size += len(data)
            source.digest.update(data)
            yield text
            if path.suffix == ".py":
                told = prose(text)
                for _ in range(PROSE_WEIGHT):
                    yield told
            elif path.suffix in (".md", ".rst", ".txt"):
                for _ in range(PROSE_WEIGHT):
                    yield text


def train(sources: list[Source]) -> list[bytes]:
    """Tokens in rank order: the 256 bytes, then one per merge."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(read(sources), trainer=trainer)
    letters = byte_letters()
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    learned = [bytes(letters[c] for c in text) for text, _ in by_id]
    # Ranks 0..255 are the byte values, so that a token's first 256 ids need no table.
    return [bytes([b]) for b in range(256)] + [token for token in learned if len(token) > 1]


def byte_letters() -> dict[str, int]:
    """The letters with which byte-level BPE files write bytes: printable Latin-1 as itself, the rest from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def pack(tokens: list[bytes]) -> bytes:
    """One length byte, then the token, for each; gzip without a time stamp."""
    return gzip.compress(b"".join(bytes([len(t)]) + t for t in tokens[256:]), compresslevel=9, mtime=0)


def provenance(sources: list[Source], tokens: list[bytes], packed: bytes) -> str:
    rows = "\n".join(
        f"| {s.name} | {s.version} | {s.licence} | {s.files} | {s.size} | {s.digest.hexdigest()[:16]} |"
        for s in sources
    )
    return f"""# Where the embedded vocabulary comes from

`{DATA_FILE}` holds {len(tokens)} byte-level BPE tokens ({len(packed)} bytes, SHA-256 `{hashlib.sha256(packed).hexdigest()}`),
to which the layout adds {len(SPECIAL_TOKENS)} special tokens. `scripts/train_vocabulary.py` trained it on the text below, all under
permissive licences; docstrings and documents counted {1 + PROSE_WEIGHT} times. The same versions give the same file
(`python scripts/train_vocabulary.py --check`).

| source | version | licence | files | bytes | SHA-256 of what was read (first 16 digits) |
|---|---|---|---:|---:|---|
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the shipped file; write nothing")
    check = parser.parse_args().check
    sources: list[Source] = []
    tokens = train(sources)
    packed = pack(tokens)
    folder = Path(__file__).resolve().parent.parent / "agentctx" / "rendering" / "data"
    target = folder / DATA_FILE
    print(f"{len(tokens)} tokens, {len(packed)} bytes from {sum(s.size for s in sources)} bytes of text")
    if check:
        same = gzip.decompress(target.read_bytes()) == gzip.decompress(packed)
        print("equal to the shipped vocabulary" if same else "differs from the shipped vocabulary")
        return 0 if same else 1
    target.write_bytes(packed)
    (folder / "PROVENANCE.md").write_text(provenance(sources, tokens, packed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
