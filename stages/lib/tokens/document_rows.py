"""The rows of a source whose documents are packed: every document, all of it, once an epoch.

    document -> group: a permutation of all documents, cut in groups of 65,536
    (group, epoch) -> rows: the group's documents in another order each epoch, packed
    epoch -> order of the groups: a permutation keyed by seed, source and epoch

So a row is found without packing what comes before it: the rows of a group follow from the lengths of its documents
alone, and are as many in every epoch. They are counted once at the start, in the order in which the documents lie in
the shards, since the permutation can be undone: document -> group needs no table. Counting takes 0.08 us a document,
and 0.11 us for `best_fit`: one second for 10 million documents, two minutes for a billion. It keeps 24 bytes a group,
and for `best_fit` 4 * seq_len while it counts. Laying a group out takes 10 ms, and 70 ms for `best_fit`; the last four
groups of a source are held, about 2 MB each.

`concat` lays the documents of a group end to end. Rows come in order, so the pieces of a document follow each
other. All but the last row of a group are full.

`best_fit` cuts only documents of more than `seq_len` + 1 tokens. What is left free in its rows (about 0.3%) is filled
up with EOS, and no target. Nor is the first token of a document: nothing of its own comes before it. The rows of a
group come in a random order, so that of a document of several pieces any may come first.
"""

import numpy as np

from stages.lib.tokens.documents import Documents
from stages.lib.tokens.permutation import permute, positions_of
from stages.lib.tokens.segments import Segments

GROUP = 1 << 16
"""Documents that are packed together. More would take longer to lay out, fewer would fill rows less well."""

HELD = 4  # groups that are laid out, and epochs whose order is known


class DocumentRows:
    """The rows of a source's documents. `packing`: an entry of packing.PACKINGS. `key` (text) names their order.

    `rows`, `targets`: rows, and tokens that are targets, an epoch.
    """

    def __init__(self, stream, seq_len, key, packing):
        self.documents, self.seq_len, self.key = Documents(stream), seq_len, key
        counting, self._lay_out = packing
        counts = counting(-(-len(self.documents) // GROUP), seq_len)
        for first, bounds in self.documents.all():
            documents = np.arange(first, first + len(bounds) - 1)
            places = positions_of(documents, len(self.documents), f"{key}/groups")
            counts.add(places // GROUP, np.diff(bounds))
        self._group_rows, self._group_targets = counts.rows(), counts.targets()
        self.rows, self.targets = int(self._group_rows.sum()), int(self._group_targets.sum())
        self._orders, self._groups = {}, {}

    def rows_at(self, _epoch, positions):
        """The row at each position of an epoch: they are numbered as they come."""
        return positions

    def segments(self, epoch, rows):
        """The `Pieces` of some rows of an epoch."""
        order, ends = self._order(epoch)
        numbers = np.searchsorted(ends, rows, side="right")  # in the epoch's order of the groups
        parts = []
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            group = int(order[number])
            found = self._group(epoch, group).segments(rows[chosen] - ends[number] + self._group_rows[group])
            parts.append((chosen[found.rows], found.starts, found.counts, found.places))
        return Segments(*map(np.concatenate, zip(*parts, strict=True)), closed=found.closed)

    def targets_before(self, epoch, position):
        """How many targets the first `position` rows of an epoch have."""
        order, ends = self._order(epoch)
        number = int(np.searchsorted(ends, position, side="right"))
        before = int(self._group_targets[order[:number]].sum())
        if number == len(order):
            return before
        group = int(order[number])
        row = position - int(ends[number]) + int(self._group_rows[group])
        return before + (self._group(epoch, group).targets_before(row) if row else 0)

    def _order(self, epoch):
        """(the groups in the order of an epoch, how many rows there are up to the end of each)."""
        made = self._orders.get(epoch)
        if made is None:
            order = permute(np.arange(len(self._group_rows)), len(self._group_rows), f"{self.key}/{epoch}")
            made = order, np.cumsum(self._group_rows[order])
            _hold(self._orders, epoch, made)
        return made

    def _group(self, epoch, group):
        made = self._groups.get((epoch, group))
        if made is None:
            total = len(self.documents)
            places = np.arange(group * GROUP, min(total, group * GROUP + GROUP))
            documents = permute(places, total, f"{self.key}/groups")
            made = self._lay_out(*self.documents.places(documents), self.seq_len, f"{self.key}/{epoch}/{group}")
            _hold(self._groups, (epoch, group), made)
        return made


def _hold(held, key, value):
    # rows are read ahead in one thread and counted in another: what one holds, the other may let go
    for oldest in list(held)[: max(0, 1 + len(held) - HELD)]:
        held.pop(oldest, None)
    held[key] = value
