"""Last merges: whether tiktoken's rule gives what a merge list gives, and with which ranks.

A merge list says which *pairs* may merge, those listed first before the others; tiktoken merges any two neighbours whose bytes together
are a token, those of the lowest rank first. Lists are written in two ways: one pair for each token, or all pairs that make it.

Take a stretch of text that becomes the token T. Nothing reaches over its ends before, so what happens inside is what happens to T's own
bytes: under either rule T always comes of the same two pieces. Under the list's these are T's *last merge*. Where each token that the list makes
has one, no other pair ever merges, and tiktoken can choose no other two neighbours either (the first time that it did, T's own
bytes would have come to the same two pieces). So both rules merge the same pairs, in the order in which the last merges stand in the list.

A pair is the last merge of T when both its pieces come of last merges that stand before it, and no listed pair takes an end of the left
piece and a beginning of the right one while the two stand side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max
# Bytes of a token: vocabularies of models have a few of 128, longer ones are made to take time.
_LONGEST = 512


def last_merges(left: Numbers, right: Numbers, made: Numbers, lengths: Numbers) -> Places | None:
    """Place in the list of each token's last merge, int64, shape [tokens]: -1 for single bytes, the largest number for what no merge makes.

    ``left``/``right``/``made``: the tokens that each merge joins and the one that it makes, by number. ``lengths``: bytes of each token.
    ``None`` when something that merges make has no last merge, or is longer than the tokens of any model.
    """
    if lengths.max(initial=0) > _LONGEST:
        return None
    search = _Search(left, right, lengths)
    candidates = search.first[np.argsort(lengths[made[search.first]], kind="stable")]
    ends = np.flatnonzero(np.diff(lengths[made[candidates]])) + 1
    for place in np.split(candidates, ends):  # pieces are shorter than what they make
        a, b, token = left[place], right[place], made[place]
        fits = np.maximum(search.born[a], search.born[b]) < place
        a, b, token, place = a[fits], b[fits], token[fits], place[fits]
        last = ~search.crossed(a, b, place)
        token = token[last]
        search.born[token] = place[last]
        search.left[token], search.right[token] = a[last], b[last]
    return None if (search.born[made] == _NEVER).any() else search.born


class _Search:
    """The last merges that were found so far. ``born``: their places; ``left``/``right``: the pieces."""

    def __init__(self, left: Numbers, right: Numbers, lengths: Numbers) -> None:
        self.size = len(lengths)
        keys = left.astype(np.int64) * self.size + right
        self.keys, self.first = np.unique(keys, return_index=True)
        self.born = np.where(lengths == 1, np.int64(-1), _NEVER)
        self.left = np.zeros(self.size, dtype=np.int32)
        self.right = np.zeros(self.size, dtype=np.int32)

    def place(self, left: Numbers, right: Numbers) -> Places:
        """Place of each pair in the list."""
        keys = left.astype(np.int64) * self.size + right
        at = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.first[at], _NEVER)

    def crossed(self, left: Numbers, right: Numbers, place: Places) -> npt.NDArray[np.bool_]:
        """Whether some listed pair joins an end of ``left`` with a beginning of ``right`` before merge ``place`` joins the two whole.

        Seen backwards in time: two pieces stand side by side from the merge that makes the later of them on until the next merge
        uses one of them up. A pair that is listed earlier than its pieces are made is taken as soon as they are there.
        """
        found = np.zeros(len(place), dtype=np.bool_)
        at = np.arange(len(place))
        end, beginning = left.copy(), right.copy()
        end_used, beginning_used = place.copy(), place.copy()
        while len(at):
            end_born, beginning_born = self.born[end], self.born[beginning]
            pair = self.place(end, beginning)
            # Of equal merges the leftmost goes first: inside ``left`` before the crossing, the crossing before inside ``right``.
            there = (end_born <= beginning_used) & (beginning_born < end_used)
            taken = there & (pair < place[at]) & (pair < end_used) & (pair <= beginning_used)
            found[at[taken]] = True
            rest = ~taken & (np.maximum(end_born, beginning_born) >= 0)
            at, end, beginning = at[rest], end[rest], beginning[rest]
            end_used, beginning_used = end_used[rest], beginning_used[rest]
            end_born, beginning_born = end_born[rest], beginning_born[rest]
            back = end_born > beginning_born
            end_used = np.where(back, end_born, end_used)
            end = np.where(back, self.right[end], end)
            beginning_used = np.where(back, beginning_used, beginning_born)
            beginning = np.where(back, beginning, self.left[beginning])
        return found
