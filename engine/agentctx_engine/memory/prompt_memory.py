"""PromptMemory: the texts that were computed, so that known text is never hashed twice and every miss has a reason.

A radix tree over tokens, beside the block pool and not in charge of it: a node remembers the hashes of the blocks that
end in it and where those blocks were last seen. What it says about blocks is a hint, checked against the pool's
generations; what it says about text is exact, for as long as it remembers it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from .block_hash import ExtraKeys
from .token_bytes import TOKEN_BYTES, common_tokens

Int32Array = npt.NDArray[np.int32]
UInt32Array = npt.NDArray[np.uint32]

# An image's stand-in tokens carry 31 bits each; from eight on, two images meet as rarely as two SHA-256 digests.
_TRUSTED_IMAGE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class BlockHints:
    """Where leading blocks of a text were last seen: still true of block i iff the pool's generation is unchanged.

    ``ids`` and ``blocks`` are the same numbers: as a list they go into tables, as an array they are checked.
    """

    ids: list[int]
    blocks: Int32Array
    generations: UInt32Array

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int) -> BlockHints:
        """Of blocks ``start … end - 1``, in memory of its own."""
        return BlockHints(
            self.ids[start:end], self.blocks[start:end].copy(), self.generations[start:end].copy()
        )


NO_HINTS = BlockHints([], np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint32))


def _joined(parts: list[BlockHints]) -> BlockHints:
    if len(parts) == 1:
        return parts[0]
    return BlockHints(
        [block for part in parts for block in part.ids],
        np.concatenate([part.blocks for part in parts]),
        np.concatenate([part.generations for part in parts]),
    )


class _Node:
    """A run of text. ``digests[i]`` belongs to block ``start // block_size + i``, which ends inside the run."""

    __slots__ = ("children", "digests", "hints", "key", "last_used", "parent", "queued", "start")

    def __init__(self, key: bytes, start: int, digests: list[bytes], parent: _Node | None) -> None:
        self.key = key
        self.start = start  # tokens before this run
        self.digests = digests
        self.hints = NO_HINTS
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.last_used = 0
        self.queued = False

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class KnownText:
    """How much of a text is remembered: ``num_tokens`` of it, with the hashes of the blocks full by then."""

    num_tokens: int
    digests: list[bytes]
    hints: BlockHints


class PromptMemory:
    """Computed texts by namespace (salt and adapter). ``max_tokens`` bounds what is remembered, least recently used
    texts going first; None remembers everything.
    """

    def __init__(self, block_size: int, max_tokens: int | None) -> None:
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.num_tokens = 0  # remembered, shared prefixes counted once
        self.version = 0  # rises whenever an answer of `equal_tokens` may have changed
        self._roots: dict[bytes, _Node] = {}
        self._clock = 0
        self._leaves: list[tuple[int, int, _Node]] = []
        self._pushes = 0

    def find(self, text: bytes, namespace: bytes) -> KnownText:
        """What is remembered of ``text`` (see :func:`memory_text`). Changes nothing."""
        path = self._walk(text, namespace)
        if not path:
            return KnownText(0, [], NO_HINTS)
        digests: list[bytes] = []
        parts: list[BlockHints] = []
        hinted = 0
        for node, count in path:
            ended = (node.start + count) // self.block_size - node.start // self.block_size
            digests += node.digests if ended == len(node.digests) else node.digests[:ended]
            # Hints are of use only as an unbroken run from the start of the text.
            if hinted == node.start // self.block_size:
                parts.append(node.hints if ended >= len(node.hints) else node.hints.part(0, ended))
                hinted += len(parts[-1])
        last, count = path[-1]
        return KnownText(last.start + count, digests, _joined(parts))

    def equal_tokens(self, text: bytes, namespace: bytes) -> int:
        """Length of the longest remembered prefix of ``text``, in tokens."""
        path = self._walk(text, namespace)
        return path[-1][0].start + path[-1][1] if path else 0

    def equal_tokens_elsewhere(self, text: bytes, namespace: bytes, *, most_namespaces: int) -> int:
        """The same over the other namespaces, the newest ``most_namespaces`` of them."""
        others = (space for space in islice(reversed(self._roots), most_namespaces + 1) if space != namespace)
        return max((self.equal_tokens(text, space) for space in others), default=0)

    def insert(self, text: bytes, namespace: bytes, digests: list[bytes], hints: BlockHints) -> None:
        """Remember ``text``. ``digests`` and ``hints`` are of its leading full blocks, in order.

        Costs time in the number of runs on its path, plus what is new.
        """
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(b"", 0, [], None)
        self._clock += 1
        node, known = root, 0
        for run, count in self._walk(text, namespace):
            node = self._split(run, count) if count < run.num_tokens else run
            node.last_used = self._clock
            known = node.start + count
            self._set_hints(node, hints)
        added = text[known * TOKEN_BYTES :]
        if added:
            self.version += 1
            self.num_tokens += len(added) // TOKEN_BYTES
            first = known // self.block_size
            if node.children or node.parent is None:
                leaf = _Node(added, known, digests[first:], node)
                leaf.last_used = self._clock
                node.children[added[:TOKEN_BYTES]] = leaf
                node = leaf
            else:
                # A conversation that goes on lengthens its run: its path stays as short as its branches are few.
                node.key += added
                node.digests += digests[first:]
            self._set_hints(node, hints)
        if node.parent is not None and not node.children:
            self._offer(node)
        if self.max_tokens is not None and self.num_tokens > self.max_tokens:
            self._forget_oldest()

    def clear(self) -> None:
        """Forget everything."""
        self.version += 1
        self.num_tokens = 0
        self._roots.clear()
        self._leaves.clear()

    def _walk(self, text: bytes, namespace: bytes) -> list[tuple[_Node, int]]:
        """The runs that ``text`` follows from the start, each with the number of its tokens that are equal."""
        path: list[tuple[_Node, int]] = []
        node = self._roots.get(namespace)
        offset = 0
        while node is not None:
            node = node.children.get(text[offset : offset + TOKEN_BYTES])
            if node is None:
                break
            if text.startswith(node.key, offset):
                path.append((node, node.num_tokens))
                offset += len(node.key)
                continue
            path.append((node, common_tokens(text, node.key, offset)))
            break
        return path

    def _set_hints(self, node: _Node, hints: BlockHints) -> None:
        first = node.start // self.block_size
        end = (node.start + node.num_tokens) // self.block_size
        node.hints = hints.part(first, end)

    def _split(self, node: _Node, count: int) -> _Node:
        """Cut a run after ``count`` tokens; returns the upper part."""
        parent = node.parent
        assert parent is not None
        cut = count * TOKEN_BYTES
        ended = (node.start + count) // self.block_size - node.start // self.block_size
        upper = _Node(node.key[:cut], node.start, node.digests[:ended], parent)
        upper.last_used = node.last_used
        parent.children[upper.key[:TOKEN_BYTES]] = upper
        node.key, node.digests, node.parent = node.key[cut:], node.digests[ended:], upper
        node.start += count
        upper.hints, node.hints = node.hints.part(0, ended), node.hints.part(ended, len(node.hints))
        upper.children[node.key[:TOKEN_BYTES]] = node
        return upper

    def _offer(self, leaf: _Node) -> None:
        """Queue a leaf for being forgotten, unless it is queued; its place is put right when it comes up."""
        if not leaf.queued:
            leaf.queued = True
            self._pushes += 1
            heapq.heappush(self._leaves, (leaf.last_used, self._pushes, leaf))

    def _forget_oldest(self) -> None:
        assert self.max_tokens is not None
        while self.num_tokens > self.max_tokens and self._leaves:
            queued_at, _, leaf = heapq.heappop(self._leaves)
            leaf.queued = False
            if leaf.children:
                continue
            if queued_at != leaf.last_used:
                self._offer(leaf)
                continue
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[:TOKEN_BYTES]]
            self.num_tokens -= leaf.num_tokens
            self.version += 1
            if parent.children:
                continue
            if parent.parent is not None:
                self._offer(parent)
            else:
                self._roots = {space: root for space, root in self._roots.items() if root is not parent}

    def texts(self) -> Iterator[tuple[bytes, bytes]]:
        """(namespace, text) of every remembered leaf. O(memory): for tests."""
        for namespace, root in self._roots.items():
            stack = [(child, b"") for child in root.children.values()]
            while stack:
                node, before = stack.pop()
                if not node.children:
                    yield namespace, before + node.key
                stack.extend((child, before + node.key) for child in node.children.values())


def memory_text(token_ids: Int32Array, keys: ExtraKeys) -> bytes:
    """Token ids as native int32 bytes, an image's tokens replaced by ones made from its content hash, id and place.

    So that two prompts which show different images differ as text, from the image on.
    """
    if not keys.images:
        return token_ids.tobytes()
    tokens = token_ids.copy()
    for image in keys.images:
        span = tokens[image.start : image.start + image.length]
        for placeholder in np.unique(span):
            source = image.content_hash.encode() + placeholder.tobytes()
            stand_ins = np.frombuffer(hashlib.shake_256(source).digest(span.nbytes), dtype=np.int32)
            # Negative, as no token id is.
            np.copyto(span, stand_ins | np.int32(-(2**31)), where=span == placeholder)
    return tokens.tobytes()


def trusted_tokens(num_tokens: int, keys: ExtraKeys) -> int:
    """Of ``num_tokens`` remembered tokens, those whose hashes may be taken over.

    An image of which only a few stand-in tokens were compared might be another one: its blocks are hashed again.
    """
    trusted = num_tokens
    for image in keys.images:
        if image.start < num_tokens < image.start + _TRUSTED_IMAGE_TOKENS or (
            image.start < num_tokens and image.length < _TRUSTED_IMAGE_TOKENS
        ):
            trusted = min(trusted, image.start)
    return trusted
