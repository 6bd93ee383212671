"""RadixCache: reuse at the granularity of a token (or a page), with a radix tree over everything computed.

A running request's tokens, and who owns their pages:

    0 ........ tree_tokens ........ num_tokens
    [   in the tree, locked   ][ the request's own ]

:meth:`RadixCache.checkpoint` moves the boundary right before the request ends, so that others can hit what it
has computed so far; :meth:`RadixCache.release` moves it to the end and takes the lock off.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from agentctx_engine.memory.explain import HitFacts, explain
from agentctx_engine.memory.kv_events import EventLog
from agentctx_engine.memory.page_pool import PagePool
from agentctx_engine.memory.prefix_cache import CacheStats, Lease, Lost, Match, TokenIds
from agentctx_engine.memory.radix_events import PageEvents
from agentctx_engine.memory.radix_eviction import EvictionOrder
from agentctx_engine.memory.radix_tree import NO_PAGES, Namespace, PageIds, RadixNode, RadixTree, SplitRefresh
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, pack, unpack

_OTHER_NAMESPACES = 64  # at most so many, the newest, are searched to tell "salt" from "first difference"


class RadixLease:
    """What one admitted request holds: a locked path of the tree, and pages of its own behind it."""

    __slots__ = (
        "cache",
        "counted_tokens",
        "match",
        "namespace",
        "node",
        "num_pages",
        "page_buffer",
        "priority",
        "text",
        "tree_tokens",
    )

    def __init__(
        self,
        cache: RadixCache,
        match: Match,
        namespace: Namespace,
        priority: int,
        text: bytes,
        node: RadixNode,
    ) -> None:
        self.cache: RadixCache | None = cache  # None once released
        self.match = match
        self.namespace = namespace
        self.priority = priority
        self.text = bytearray(text)
        self.node = node
        self.tree_tokens = match.hit_tokens
        self.counted_tokens = 0  # of tree_tokens, those whose use the tree has counted
        self.page_buffer: PageIds = NO_PAGES  # grows ahead of need, so that a decode step copies nothing
        self.num_pages = 0

    @property
    def pages(self) -> PageIds:
        """Page ids of all tokens, shape [pages]: the tree's, then the request's own. A view: copy it to keep it."""
        return self.page_buffer[: self.num_pages]

    @pages.setter
    def pages(self, pages: PageIds) -> None:
        self.page_buffer = pages
        self.num_pages = len(pages)

    def add_pages(self, pages: PageIds) -> None:
        """Append page ids."""
        end = self.num_pages + len(pages)
        if end > len(self.page_buffer):
            grown = np.empty(end + end // 2 + 16, dtype=np.int32)
            grown[: self.num_pages] = self.pages
            self.page_buffer = grown
        self.page_buffer[self.num_pages : end] = pages
        self.num_pages = end

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of what :meth:`RadixCache.extend` added."""
        return len(self.text) // TOKEN_BYTES


class RadixCache:
    """A :class:`~agentctx_engine.memory.prefix_cache.PrefixCache` over a radix tree.

    ``page_size``: tokens in a page; 1 reuses to the token. ``capacity_tokens``: ``None`` keeps everything and counts
    no pages: a ledger of all that was ever computed. ``order``: which unlocked leaf is evicted first; ``split_refresh``:
    what counts as used when a text ends inside a stored run (see :class:`RadixTree`).
    ``remember_tokens``: how much evicted text is remembered (text only) to tell "evicted" from "first difference";
    ``None`` means four times the capacity. ``events``: told of every page that enters or leaves.
    """

    def __init__(
        self,
        page_size: int = 1,
        *,
        capacity_tokens: int | None = None,
        order: EvictionOrder = "lru",
        split_refresh: SplitRefresh = "used",
        remember_tokens: int | None = None,
        events: EventLog | None = None,
    ) -> None:
        self.events = PageEvents(events, page_size) if events is not None else None
        self.tree = RadixTree(page_size, order, split_refresh)
        self.page_size = page_size
        self.pool: PagePool | None = None
        self._remembered: RadixTree | None = None
        if capacity_tokens is not None:
            if capacity_tokens < page_size:
                raise ValueError(
                    f"capacity_tokens is {capacity_tokens}; it must hold a page of {page_size} tokens"
                )
            self.pool = PagePool(capacity_tokens // page_size)
            self._remembered = RadixTree(page_size)
            self._remember_tokens = 4 * capacity_tokens if remember_tokens is None else remember_tokens
        self._leases: dict[int, RadixLease] = {}
        self._requests = self._prompt_tokens = self._hit_tokens = self._evicted_tokens = 0

    def match(
        self,
        token_ids: TokenIds,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
        limit: int | None = None,
    ) -> Match:
        """The longest reusable prefix of a prompt and why it stops there. Changes nothing, not even an access time.

        ``extra_key``: an adapter, an image's hash: anything else that must be equal. ``limit``: reuse at most so many tokens.
        """
        return self._match(pack(token_ids), Namespace(extra_key, salt), limit)

    def _match(self, text: bytes, namespace: Namespace, limit: int | None) -> Match:
        num_tokens = len(text) // TOKEN_BYTES
        if num_tokens == 0:
            return Match(0)
        live = self.tree.find(text, namespace).equal_tokens
        once = other = live
        if live < num_tokens:
            if self._remembered is not None:
                once = max(live, self._remembered.find(text, namespace).equal_tokens)
            for space in islice(reversed(self.tree.roots), _OTHER_NAMESPACES):
                if space != namespace:
                    other = max(other, self.tree.find(text, space).equal_tokens)
        facts = HitFacts(num_tokens, self._usable(live, num_tokens), self.page_size, 0, once, other)
        match = explain(facts)
        return match if limit is None else self._limited(match, limit)

    def pages_of(self, token_ids: TokenIds, *, salt: str | None = None) -> PageIds:
        """Pages of the longest prefix of a text, its last token included, that the tree holds. Changes nothing."""
        found = self.tree.find(pack(token_ids), Namespace(None, salt))
        held = found.node.prefix_pages() if found.node else []
        whole = found.equal_tokens // self.page_size
        return np.concatenate(held)[:whole] if held else np.empty(0, dtype=np.int32)

    def _usable(self, equal_tokens: int, num_tokens: int) -> int:
        """Whole pages of the equal tokens, of which the last token of the prompt is none: it must be computed."""
        usable = min(equal_tokens, num_tokens - 1)
        return usable - usable % self.page_size

    def _limited(self, match: Match, limit: int) -> Match:
        """The match of a request that may reuse at most ``limit`` tokens."""
        allowed = max(0, limit) // self.page_size * self.page_size
        if match.hit_tokens <= allowed:
            return match
        forbidden = (Lost.DISABLED, match.hit_tokens - allowed)
        return Match(allowed, (forbidden, *match.lost), Lost.DISABLED)

    def commit(
        self,
        token_ids: TokenIds,
        *,
        salt: str | None = None,
        extra_key: str | None = None,
        priority: int = 0,
        limit: int | None = None,
        reserve_tokens: int = 0,
    ) -> RadixLease:
        """Admit a prompt: lock what it hits, take pages for the rest, evicting what no request holds.

        ``priority``: for eviction order ``priority``; higher stays longer. ``reserve_tokens``: so many more must fit behind
        the prompt, else it is refused. Raises ``MemoryError`` if it can't fit, changing nothing.
        """
        text = pack(token_ids)
        namespace = Namespace(extra_key, salt)
        match = self._match(text, namespace, limit)
        self._require_room(text, namespace, match.hit_tokens, reserve_tokens)
        node, hit_tokens = self.tree.claim(text, namespace, match.hit_tokens)
        assert hit_tokens == match.hit_tokens
        self.tree.lock(node)
        lease = RadixLease(self, match, namespace, priority, text, node)
        if self.pool is not None:
            own = self._take(self._pages_for(lease.num_tokens) - hit_tokens // self.page_size)
            lease.pages = np.concatenate([*node.prefix_pages(), own])
        self._leases[id(lease)] = lease
        self._requests += 1
        self._prompt_tokens += lease.num_tokens
        self._hit_tokens += match.hit_tokens
        return lease

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _require_room(self, text: bytes, namespace: Namespace, hit_tokens: int, reserve_tokens: int) -> None:
        if self.pool is None:
            return
        need = self._pages_for(len(text) // TOKEN_BYTES + reserve_tokens) - hit_tokens // self.page_size
        # What the prompt itself hits can't make room for it.
        found = self.tree.find(text[: hit_tokens * TOKEN_BYTES], namespace)
        hit_unlocked = 0
        if found.node is not None and hit_tokens:
            path = found.node.path()
            hit_unlocked = sum(node.num_tokens for node in path if not node.locks)
            if found.inside and not found.node.locks:
                hit_unlocked -= found.node.num_tokens - found.inside
        room = self.pool.num_free + (self.tree.evictable_tokens - hit_unlocked) // self.page_size
        if need > room:
            raise MemoryError(
                f"a prompt of {len(text) // TOKEN_BYTES} tokens needs {need} more pages of {self.page_size}; "
                f"{room} of {self.pool.num_pages} are free or can be freed"
            )

    def _take(self, num_pages: int) -> PageIds:
        assert self.pool is not None
        missing = num_pages - self.pool.num_free
        if missing > 0:
            self.evict(missing * self.page_size)
        return self.pool.take(num_pages)

    def evict(self, num_tokens: int) -> int:
        """Evict whole unlocked leaves until ``num_tokens`` tokens are gone or none is left; returns how many went."""
        gone = 0
        for node in self.tree.evict(num_tokens):
            gone += node.num_tokens
            if self.pool is not None and node.pages is not None:
                self.pool.give_back(node.pages)
            if self.events is not None:
                self.events.removed(node)
            self._remember(node)
        self._evicted_tokens += gone
        return gone

    def _remember(self, node: RadixNode) -> None:
        remembered = self._remembered
        if remembered is None or not self._remember_tokens:
            return
        remembered.insert(node.prefix(), None, node.namespace)
        remembered.evict(remembered.num_tokens - self._remember_tokens)

    def extend(self, lease: RadixLease, token_ids: TokenIds) -> None:
        """Append tokens that the request is about to compute; takes pages for them. ``MemoryError`` changes nothing."""
        self._require_open(lease)
        text = pack(token_ids)
        if self.pool is not None:
            want = self._pages_for(lease.num_tokens + len(text) // TOKEN_BYTES) - lease.num_pages
            if want > 0:
                lease.add_pages(self._take(want))
        lease.text += text

    def checkpoint(self, lease: RadixLease, num_computed: int | None = None) -> None:
        """Put the first ``num_computed`` tokens (all, by default) into the tree while the request runs on.

        Only whole pages enter. Where another request was first, its pages replace the lease's own, which are freed.
        """
        self._require_open(lease)
        computed = lease.num_tokens if num_computed is None else min(num_computed, lease.num_tokens)
        whole = computed - computed % self.page_size
        if whole <= lease.tree_tokens:
            return
        pages = None if self.pool is None else lease.pages[: whole // self.page_size]
        inserted = self.tree.insert(
            bytes(lease.text[: whole * TOKEN_BYTES]),
            pages,
            lease.namespace,
            priority=lease.priority,
            counted_tokens=lease.counted_tokens,
        )
        lease.counted_tokens = whole
        self.tree.relock(lease.node, inserted.node)
        if self.events is not None and inserted.known_tokens < whole:
            self.events.stored(inserted.node)
        if self.pool is not None:
            known = slice(lease.tree_tokens // self.page_size, inserted.known_tokens // self.page_size)
            if known.stop > known.start:
                self.pool.give_back(lease.pages[known])
                own = lease.pages[whole // self.page_size :]
                lease.pages = np.concatenate([*inserted.node.prefix_pages(), own])
        lease.node = inserted.node
        lease.tree_tokens = whole

    def fork(self, lease: RadixLease) -> tuple[RadixLease, list[tuple[int, int]]]:
        """A second lease on the same tokens, and the copies (source page, target page) to make before either writes on.

        What stands in the tree is shared, the pages behind it are copied. ``MemoryError`` changes nothing but what was evicted.
        """
        self._require_open(lease)
        twin = RadixLease(self, lease.match, lease.namespace, lease.priority, bytes(lease.text), lease.node)
        twin.tree_tokens = lease.tree_tokens
        copies: list[tuple[int, int]] = []
        if self.pool is not None:
            shared = lease.tree_tokens // self.page_size
            own = self._take(lease.num_pages - shared)
            twin.pages = np.concatenate([lease.pages[:shared], own])
            copies = list(zip(lease.pages[shared:].tolist(), own.tolist(), strict=True))
        self.tree.lock(twin.node)
        self._leases[id(twin)] = twin
        return twin, copies

    def release(self, lease: Lease, output_ids: TokenIds = ()) -> None:
        """End a request that generated ``output_ids`` behind the lease's tokens; all of it but the last token stays cached.

        The prompt and the output stand in separate nodes, so that the output can be evicted alone. Output for which
        there is no memory is left out.
        """
        assert isinstance(lease, RadixLease)
        self.checkpoint(lease)
        computed = output_ids[:-1]
        if len(computed):
            room = len(computed)
            if self.pool is not None:
                free = self.pool.num_free + self.tree.evictable_tokens // self.page_size
                room = min(room, (lease.num_pages + free) * self.page_size - lease.num_tokens)
            self.extend(lease, computed[:room])
            self.checkpoint(lease)
        self._close(lease)

    def abort(self, lease: RadixLease) -> None:
        """End a request without keeping more than its checkpoints: it was aborted, or must be computed again."""
        self._require_open(lease)
        self._close(lease)

    def _close(self, lease: RadixLease) -> None:
        self.tree.unlock(lease.node)
        if self.pool is not None:
            self.pool.give_back(lease.pages[lease.tree_tokens // self.page_size :])
        del self._leases[id(lease)]
        lease.cache = None
        lease.pages = NO_PAGES

    def _require_open(self, lease: RadixLease) -> None:
        if lease.cache is not self:
            raise RuntimeError("this lease was released already, or belongs to another cache")

    def reset(self) -> bool:
        """Forget everything. Refused (``False``) while a request runs."""
        if self._leases:
            return False
        if self.pool is not None:
            for node in self.tree.nodes():
                if node.pages is not None:
                    self.pool.give_back(node.pages)
        self.tree.clear()
        if self._remembered is not None:
            self._remembered.clear()
        if self.events is not None:
            self.events.cleared()
        self._requests = self._prompt_tokens = self._hit_tokens = self._evicted_tokens = 0
        return True

    @property
    def evictable_tokens(self) -> int:
        """Cached tokens that no running request holds."""
        return self.tree.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        """Cached tokens that a running request holds."""
        return self.tree.protected_tokens

    def stats(self) -> CacheStats:
        return CacheStats(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            cached_tokens=self.tree.num_tokens,
            capacity_tokens=None if self.pool is None else self.pool.num_pages * self.page_size,
            evicted_tokens=self._evicted_tokens,
        )

    def check(self) -> None:
        """Integrity, for any idle moment: every page has one owner, every lease a locked path with its own text."""
        self.tree.check()
        if self._remembered is not None:
            self._remembered.check()
        for lease in self._leases.values():
            path = lease.node.path()
            assert all(node.locks for node in path), "a lease's path is not locked"
            assert lease.text.startswith(lease.node.prefix()), "a lease's path holds another text"
            assert self.pool is None or lease.num_pages == self._pages_for(lease.num_tokens), (
                "a lease's pages are too few"
            )
            assert sum(node.num_tokens for node in path) == lease.tree_tokens, (
                "a lease's path has another length"
            )
        if self.pool is None:
            return
        owned = [node.pages for node in self.tree.nodes() if node.pages is not None]
        own = [lease.pages[lease.tree_tokens // self.page_size :] for lease in self._leases.values()]
        pages = np.concatenate([self.pool.free_pages(), *owned, *own])
        assert len(pages) == self.pool.num_pages, "free + cached + in use is not the pool's size"
        assert len(np.unique(pages)) == len(pages), "a page has two owners"


def stored_texts(cache: RadixCache) -> dict[Namespace, list[list[int]]]:
    """The token ids of every leaf from the root on, per namespace: for tests and inspection."""
    texts: dict[Namespace, list[list[int]]] = {}
    for node in cache.tree.nodes():
        if not node.children:
            texts.setdefault(node.namespace, []).append(unpack(node.prefix()).tolist())
    return texts
