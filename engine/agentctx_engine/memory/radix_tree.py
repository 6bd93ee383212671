"""A radix tree over token ids: equal prefixes are stored once, each with the pages that hold its keys and values.

    root ── [1 2 3 4 5 6] ─┬─ [10 11] ── [30 31]      an edge's tokens stand in the node below it
                           └─ [20 21 22]

The tree knows text and locks; who owns pages, and how many there are, is :mod:`radix_cache`'s business.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.radix_eviction import EvictionKey, EvictionOrder, eviction_key
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, common_tokens

PageIds = npt.NDArray[np.int32]
SplitRefresh = Literal["used", "run"]
NO_PAGES: PageIds = np.empty(0, dtype=np.int32)
NO_PAGES.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Namespace:
    """What besides the text must be equal. Two fields, so that ("bc", "a") and ("c", "ab") never meet."""

    extra_key: str | None = None
    salt: str | None = None


class RadixNode:
    """A run of tokens. ``pages`` holds one page id for each page of the run, or is ``None`` in a tree without pages."""

    __slots__ = (
        "children",
        "created",
        "hashes",
        "hits",
        "key",
        "last_used",
        "locks",
        "namespace",
        "pages",
        "parent",
        "priority",
        "queued",
    )

    def __init__(
        self, key: bytes, pages: PageIds | None, parent: RadixNode | None, namespace: Namespace
    ) -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        self.namespace = namespace
        self.hashes: list[bytes] | None = None  # one for each page, when events are published
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.hits = 0
        self.priority = 0
        self.created = 0
        self.last_used = 0
        self.queued = False  # stands in the tree's heap of evictable leaves

    @property
    def num_tokens(self) -> int:
        """Tokens of this run."""
        return len(self.key) // TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def path(self) -> list[RadixNode]:
        """The nodes from the first below the root down to this one."""
        nodes: list[RadixNode] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def prefix(self) -> bytes:
        """Packed tokens from the start of the text to the end of this run."""
        return b"".join(node.key for node in self.path())

    def prefix_pages(self) -> list[PageIds]:
        """Page ids from the start of the text to the end of this run, run by run; none in a tree without pages."""
        return [node.pages for node in self.path() if node.pages is not None]

    def __repr__(self) -> str:
        return f"RadixNode({self.num_tokens} tokens, {len(self.children)} children, {self.locks} locks)"


@dataclass(frozen=True, slots=True)
class Found:
    """How far a text is in the tree: ``num_tokens`` of it in whole pages, ``equal_tokens`` past their end too.

    ``node`` is the last node that holds one of the whole pages (the root for none, ``None`` in an unknown
    namespace). When the text leaves it in its middle, ``inside`` of its tokens belong to the text; otherwise 0.
    """

    node: RadixNode | None
    num_tokens: int
    inside: int
    equal_tokens: int


@dataclass(frozen=True, slots=True)
class Inserted:
    """``node`` ends the inserted text. The first ``known_tokens`` were in the tree already: the caller keeps the
    pages that it brought for them; those behind now belong to the tree.
    """

    node: RadixNode
    known_tokens: int


class RadixTree:
    """Find, claim, insert, lock, evict. Every length is a whole number of pages except ``Found.equal_tokens``.

    ``split_refresh``: when a text ends inside a run, ``used`` marks only the part that it uses as used now (SGLang's
    unified tree), ``run`` the rest of the run too (SGLang's older tree).
    """

    def __init__(
        self, page_size: int = 1, order: EvictionOrder = "lru", split_refresh: SplitRefresh = "used"
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; it must be at least 1 token")
        self.page_size = page_size
        self.order = order
        self.split_refresh = split_refresh
        self._page_bytes = page_size * TOKEN_BYTES
        self._key = eviction_key(order)
        self._clock = 0
        self._queue: list[tuple[EvictionKey, int, RadixNode]] = []
        self._queued = 0
        self.roots: dict[Namespace, RadixNode] = {}
        self.evictable_tokens = 0  # in runs that no lock protects
        self.protected_tokens = 0  # in locked runs

    @property
    def num_tokens(self) -> int:
        """Tokens stored, each shared prefix counted once."""
        return self.evictable_tokens + self.protected_tokens

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the roots, parents before children."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            if not node.is_root:
                yield node
            stack.extend(node.children.values())

    def find(self, text: bytes, namespace: Namespace) -> Found:
        """The longest prefix of ``text`` that is stored. Changes nothing."""
        node = self.roots.get(namespace)
        if node is None:
            return Found(None, 0, 0, 0)
        offset, page_bytes = 0, self._page_bytes
        while True:
            child = node.children.get(text[offset : offset + page_bytes])
            if child is None:
                equal = offset // TOKEN_BYTES + self._equal_in_page(node, text, offset)
                return Found(node, offset // TOKEN_BYTES, 0, equal)
            if not text.startswith(child.key, offset):
                # The first page is equal, so at least one whole page of the child belongs to the text.
                inside = common_tokens(text, child.key, offset)
                whole = inside - inside % self.page_size
                start = offset // TOKEN_BYTES
                return Found(child, start + whole, whole, start + inside)
            offset += len(child.key)
            node = child

    def _equal_in_page(self, node: RadixNode, text: bytes, offset: int) -> int:
        """Equal tokens of a page that no child shares wholly: the most that any child's first page has."""
        if self.page_size == 1 or offset >= len(text):
            return 0
        rest = text[offset : offset + self._page_bytes]
        return max((common_tokens(rest, first) for first in node.children), default=0)

    def claim(self, text: bytes, namespace: Namespace, limit: int | None = None) -> tuple[RadixNode, int]:
        """The node that ends the longest stored prefix of at most ``limit`` tokens, and its length; marks the path as used.

        A run that the prefix leaves in its middle is split, so that the node can be locked by itself.
        """
        if limit is not None:
            text = text[: limit * TOKEN_BYTES]
        text = text[: len(text) - len(text) % self._page_bytes]
        found = self.find(text, namespace)
        # A namespace's root enters the tree with its first text, so that asking leaves nothing behind.
        node = found.node or RadixNode(b"", None, None, namespace)
        self._clock += 1
        if found.inside:
            if self.split_refresh == "run":
                node.last_used = self._clock
            node = self._split(node, found.inside)
        for used in node.path():
            used.last_used = self._clock
        return node, found.num_tokens

    def insert(
        self,
        text: bytes,
        pages: PageIds | None,
        namespace: Namespace,
        *,
        priority: int = 0,
        counted_tokens: int = 0,
    ) -> Inserted:
        """Store ``text`` (whole pages) with one page id for each page. What is stored already keeps its own pages.

        Each run of the text counts one use, but for the first ``counted_tokens``: a request that inserts its text
        bit by bit uses it once.
        """
        if len(text) % self._page_bytes:
            raise ValueError(
                f"{len(text) // TOKEN_BYTES} tokens are no whole number of pages of {self.page_size}; cut the text first"
            )
        if pages is not None and len(pages) * self._page_bytes != len(text):
            raise ValueError(f"{len(pages)} pages for {len(text) // self._page_bytes} pages of text")
        node, known = self.claim(text, namespace)
        end = 0
        for used in node.path():
            end += used.num_tokens
            used.hits += end > counted_tokens
            used.priority = max(used.priority, priority)
        rest = text[known * TOKEN_BYTES :]
        if not rest:
            return Inserted(node, known)
        own = pages[known // self.page_size :].copy() if pages is not None else None
        leaf = RadixNode(rest, own, node, namespace)
        leaf.priority = priority
        self._clock += 1  # the new run is younger than the rest of a run that it was cut from
        leaf.created = leaf.last_used = self._clock
        leaf.hits = 1
        node.children[rest[: self._page_bytes]] = leaf
        if node.is_root:
            self.roots[namespace] = node
        self.evictable_tokens += leaf.num_tokens
        self._offer(leaf)
        return Inserted(leaf, known)

    def lock(self, node: RadixNode) -> None:
        """Protect the path to ``node`` from eviction, until as many :meth:`unlock` calls."""
        current = node
        while current.parent is not None:
            if current.locks == 0:
                self.evictable_tokens -= current.num_tokens
                self.protected_tokens += current.num_tokens
            current.locks += 1
            current = current.parent

    def unlock(self, node: RadixNode) -> None:
        """Take one lock off the path to ``node``."""
        current = node
        while current.parent is not None:
            if current.locks == 0:
                raise RuntimeError(f"{current!r} is not locked: a path was unlocked twice")
            current.locks -= 1
            if current.locks == 0:
                self.evictable_tokens += current.num_tokens
                self.protected_tokens -= current.num_tokens
                self._offer(current)
            current = current.parent

    def relock(self, held: RadixNode, node: RadixNode) -> None:
        """Move a lock from ``held`` further down its path, to ``node``."""
        current = node
        while current is not held:
            if current.parent is None:
                if held.is_root:  # of the same namespace: a root is replaced when its first text arrives
                    return
                raise RuntimeError(f"{held!r} is not on the path to {node!r}")
            if current.locks == 0:
                self.evictable_tokens -= current.num_tokens
                self.protected_tokens += current.num_tokens
            current.locks += 1
            current = current.parent

    def evict(self, num_tokens: int) -> list[RadixNode]:
        """Remove unlocked leaves, whole ones and in the tree's order, until ``num_tokens`` tokens are gone or none is left.

        Returns the removed nodes in that order, each with its parent still set, so that its text can be read.
        """
        removed: list[RadixNode] = []
        gone = 0
        while gone < num_tokens:
            leaf = self._pop_leaf()
            if leaf is None:
                break
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[: self._page_bytes]]
            gone += leaf.num_tokens
            self.evictable_tokens -= leaf.num_tokens
            removed.append(leaf)
            self._offer(parent)
            if parent.is_root and not parent.children:
                del self.roots[parent.namespace]
        return removed

    def clear(self) -> None:
        """Forget everything. Raises ``RuntimeError`` while a path is locked."""
        if self.protected_tokens:
            raise RuntimeError(f"{self.protected_tokens} tokens are locked; release their requests first")
        self.roots.clear()
        self._queue.clear()
        self.evictable_tokens = 0

    def _split(self, node: RadixNode, num_tokens: int) -> RadixNode:
        """Cut a run in two; returns the new upper part. The lower part stays the same object: leases point at it."""
        parent = node.parent
        assert parent is not None
        cut = num_tokens * TOKEN_BYTES
        pages = node.pages
        upper_pages = lower_pages = None
        if pages is not None:
            upper_pages, lower_pages = (
                part.copy() for part in np.split(pages, [num_tokens // self.page_size])
            )
        upper = RadixNode(node.key[:cut], upper_pages, parent, node.namespace)
        upper.locks, upper.hits, upper.priority = node.locks, node.hits, node.priority
        upper.last_used, upper.created = node.last_used, self._clock
        if node.hashes is not None:
            pages_above = num_tokens // self.page_size
            upper.hashes, node.hashes = node.hashes[:pages_above], node.hashes[pages_above:]
        parent.children[node.key[: self._page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], lower_pages, upper
        upper.children[node.key[: self._page_bytes]] = node
        return upper

    def _offer(self, node: RadixNode) -> None:
        """Queue a node for eviction if it is an unlocked leaf and not queued already."""
        if node.is_root or node.locks or node.children or node.queued:
            return
        node.queued = True
        self._push(node)

    def _push(self, node: RadixNode) -> None:
        self._queued += 1
        heapq.heappush(self._queue, (self._key(node), self._queued, node))

    def _pop_leaf(self) -> RadixNode | None:
        """The unlocked leaf that goes first. Entries are checked when they come up: keys only grow, so an outdated
        entry comes up early, never late, and is queued again with its present key.
        """
        while self._queue:
            key, _, node = heapq.heappop(self._queue)
            if node.locks or node.children:
                node.queued = False
            elif key != self._key(node):
                self._push(node)
            else:
                node.queued = False
                return node
        return None

    def check(self) -> None:
        """Integrity, for any idle moment: raises ``AssertionError`` that names the broken rule."""
        evictable = protected = 0
        queued = {id(node) for _, _, node in self._queue}
        for namespace, root in self.roots.items():
            assert root.is_root, "a root has a parent"
            assert root.namespace == namespace, "a root stands under another namespace"
            assert not root.key, "a root holds tokens"
        for node in self.nodes():
            assert node.parent is not None
            assert node.key, "a node holds no tokens"
            assert len(node.key) % self._page_bytes == 0, "a node ends inside a page"
            assert node.parent.children.get(node.key[: self._page_bytes]) is node, "a parent misses its child"
            assert node.namespace == node.parent.namespace, "a child stands in another namespace"
            assert node.locks >= sum(child.locks for child in node.children.values()), (
                "a lock misses its path"
            )
            assert node.pages is None or len(node.pages) * self.page_size == node.num_tokens, (
                "pages and tokens differ"
            )
            if node.locks:
                protected += node.num_tokens
            else:
                evictable += node.num_tokens
                assert node.children or node.queued, "an unlocked leaf can't be evicted"
            assert node.queued == (id(node) in queued), "the eviction queue and a node disagree"
        assert (evictable, protected) == (self.evictable_tokens, self.protected_tokens), (
            "token counts are wrong"
        )
