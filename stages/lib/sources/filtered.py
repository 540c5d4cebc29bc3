"""What is left out of a source: counted by reason, with examples, and refused where it is too much."""

from collections import Counter, defaultdict

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources.documents import Dropped

EXAMPLES, EXAMPLE_CHARACTERS = 3, 200  # of documents left out for one reason
LOOKED_AT = 10_000  # records after which it is asked again whether most are unreadable


def is_empty(document, tokenizer=None):
    """Whether a document has only white space, or no ids: none besides BOS and EOS at its ends, by its `tokenizer`."""
    if document.ids is None:
        return not document.text.strip()
    if tokenizer is None or len(document.ids) > 2:
        return len(document.ids) == 0
    bos, eos = tokenizer.bos, tokenizer.eos
    return document.ids.tolist() in ([], [bos], [eos], [bos, eos])


class LeftOut:
    """Counts the documents that are left out, by reason, and keeps examples; `log`: the examples are logged as well.

    `tokenizer`: a Tokenizer, by which a document of no ids but BOS and EOS is empty; None where it is not known.
    Raises UserError where more than a share of `limit` of all records is unreadable.
    """

    def __init__(self, name, limit, tokenizer=None, log=True):
        self.name, self.limit, self.tokenizer, self.log = name, limit, tokenizer, log
        self.counts, self.examples = Counter(), defaultdict(list)
        self.records = self.unreadable = 0

    def look(self, entry):
        """Count a Document or a Dropped; returns the Document where it is one with text."""
        self.records += 1
        if self.records % LOOKED_AT == 0 and self.unreadable > self.records / 2:
            self.check()  # what begins so badly needs no reading to its end
        if isinstance(entry, Dropped):
            self.unreadable += entry.text is None
            return self._leave(entry, entry.reason)
        if is_empty(entry, self.tokenizer):
            return self._leave(entry, "empty")
        return entry

    def _leave(self, entry, reason):
        self.counts[reason] += 1
        if len(self.examples[reason]) < EXAMPLES:
            self.examples[reason].append({"id": entry.id, "text": (entry.text or "")[:EXAMPLE_CHARACTERS]})
            if self.log:
                logger.info("dropped %s: %s", entry.id, reason)

    def check(self):
        """Raise UserError where too many records are unreadable."""
        if self.unreadable > self.limit * self.records:
            counted = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
            raise UserError(
                f"sources.{self.name}.max_malformed must be at least the share of records that cannot be read, "
                f"{self.unreadable} of {self.records} ({counted}), got {self.limit:g}"
            )

    def record(self):
        """What the manifest's record says: how many were dropped why, and which, for example."""
        counts = dict(sorted(self.counts.items()))
        return {"dropped": counts, "dropped_examples": {reason: self.examples[reason] for reason in counts}}
