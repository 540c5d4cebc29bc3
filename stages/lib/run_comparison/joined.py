"""The samples of two logs of a task, joined by document."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.lib.scoring.aggregations import DocumentScores, document_scores
from stages.lib.scoring.sample_logs import Document, SampleLog


class Joined:
    """The samples of two logs, by document."""

    def __init__(self, reference: SampleLog, other: SampleLog, metric: str) -> None:
        """Join the samples that have the same number and the same hash."""
        self.metric = metric
        self.origins = reference.origins
        self.found = [log.values(metric) for log in (reference, other)]
        shared = sorted(self.found[0].keys() & self.found[1].keys())
        self.changed = [at for at in shared if self.found[0][at][0] != self.found[1][at][0]]
        self.documents = [at for at in shared if self.found[0][at][0] == self.found[1][at][0]]

    def reason_to_leave_out(self) -> str | None:
        """Return why the logs are of two tasks with one name; None if they are of one."""
        if self.changed:
            count = len(self.changed) + len(self.documents)
            return f"{len(self.changed)} of {count} documents have another hash: the task or its data changed"
        return None if self.documents else "the logs have no document in common"

    def reason_not_to_pair(self, values: Sequence[float]) -> str | None:
        """Return why the score cannot be computed from samples; None if it can. `values`: those of the manifests."""
        whole = [self._scores(number, [*found]) for number, found in enumerate(self.found)]
        if whole[0] is None or whole[1] is None or whole[0].of_ratio is not whole[1].of_ratio:
            return f"{self.metric} is no function of a sum over documents, or is missing for one"
        for scores, value in zip(whole, values, strict=True):
            if scores is not None and not math.isclose(scores.score(), value, rel_tol=1e-6, abs_tol=1e-9):
                return f"{self.metric} of its samples is {scores.score():.6g}, and its score is {value:.6g}"
        return None

    def scores(self) -> tuple[DocumentScores, DocumentScores]:
        """Return the scores of the joined documents, in the same order."""
        first, second = self._scores(0, self.documents), self._scores(1, self.documents)
        assert first is not None and second is not None  # checked by reason_not_to_pair
        return first, second

    def _scores(self, number: int, documents: Sequence[Document]) -> DocumentScores | None:
        values = [self.found[number][document][1] for document in documents]
        # samples that are cut from one document of a corpus are not independent
        origins = [self.origins.get(document, str(document)) for document in documents]
        return document_scores(self.metric, values, origins)

    def notes(self) -> list[str]:
        """Return a note if one log has more documents than the other."""
        counts = [len(found) for found in self.found]
        if counts == [len(self.documents)] * 2:
            return []
        return [f"{len(self.documents)} documents are in both logs, which have {counts[0]} and {counts[1]}"]
