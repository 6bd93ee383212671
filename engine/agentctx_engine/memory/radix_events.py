"""Events of a radix cache: its pages announced under the same hashes as the blocks of a paged cache."""

from __future__ import annotations

from agentctx_engine.memory.block_hash import Adapter, BlockHasher, ExtraKeys
from agentctx_engine.memory.kv_events import AllBlocksCleared, BlockRemoved, BlocksStored, EventLog
from agentctx_engine.memory.radix_tree import Namespace, RadixNode
from agentctx_engine.memory.token_bytes import unpack


class PageEvents:
    """Publishes what enters and leaves a tree. A page's hash stands for the whole text up to its end, salt and extra key
    included, so that the same tokens elsewhere have another; a split leaves the hashes as they are.
    """

    def __init__(self, log: EventLog, page_size: int, hasher: BlockHasher | None = None) -> None:
        self.log = log
        self.page_size = page_size
        self.hasher = hasher or BlockHasher()

    def stored(self, node: RadixNode) -> None:
        """A new run entered the tree: hash its pages behind its parent's and announce them in one event."""
        parent_node = node.parent
        assert parent_node is not None
        parent = parent_node.hashes[-1] if parent_node.hashes else None
        keys = _keys(node.namespace)
        tokens = unpack(node.key)
        node.hashes = self.hasher.chain(
            tokens,
            self.page_size,
            parent=parent,
            every=keys.every_block(),
            single=keys.single_blocks(self.page_size, len(tokens)) if parent is None else None,
        )
        self.log.publish(
            BlocksStored(
                hashes=tuple(node.hashes),
                parent=parent,
                token_ids=tuple(tokens.tolist()),
                block_size=self.page_size,
                adapter=node.namespace.extra_key,
            )
        )

    def removed(self, node: RadixNode) -> None:
        """A run left the tree: one event a page, the last page first, as a prefix may have no hole."""
        for digest in reversed(node.hashes or []):
            self.log.publish(BlockRemoved(digest))

    def cleared(self) -> None:
        """Everything was forgotten."""
        self.log.publish(AllBlocksCleared())


def page_hashes(node: RadixNode) -> list[bytes]:
    """Hashes of the pages from the start of the text to the end of this run."""
    return [digest for part in node.path() for digest in part.hashes or []]


def _keys(namespace: Namespace) -> ExtraKeys:
    adapter = Adapter(namespace.extra_key) if namespace.extra_key is not None else None
    return ExtraKeys(cache_salt=namespace.salt, adapter=adapter)
