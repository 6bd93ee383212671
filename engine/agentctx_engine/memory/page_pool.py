"""Pages of a radix cache: a stack of free page ids, so that taking or giving back n pages is one copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]


class PagePool:
    """``num_pages`` pages, ids 0 … num_pages − 1. The lowest ids are taken first; a page given back is taken next."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}; it must be at least 1")
        self.num_pages = num_pages
        self._stack = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self.num_free = num_pages

    def take(self, num_pages: int) -> PageIds:
        """Take pages. Raises ``MemoryError``, taking none, if fewer are free."""
        if num_pages > self.num_free:
            raise MemoryError(f"{num_pages} pages wanted, {self.num_free} of {self.num_pages} free")
        top = self.num_free
        self.num_free = top - num_pages
        return self._stack[self.num_free : top][::-1].copy()

    def give_back(self, pages: PageIds) -> None:
        """Return pages that were taken, the first of them to be taken next."""
        if len(pages) == 0:
            return
        end = self.num_free + len(pages)
        if end > self.num_pages:
            raise RuntimeError(
                f"{len(pages)} pages given back to a pool that misses {self.num_pages - self.num_free}"
            )
        self._stack[self.num_free : end] = pages[::-1]
        self.num_free = end

    def free_pages(self) -> PageIds:
        """Ids of the free pages, the next one first."""
        return self._stack[: self.num_free][::-1].copy()
