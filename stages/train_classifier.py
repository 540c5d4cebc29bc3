"""Train a classifier that tells good text from bad, for `filters.quality` of sources, and measure it on held-out text.

    python -m stages.train_classifier --lists results/sources/books/list.json results/sources/crawl/list.json \\
        --recipe '{"good": ["books"], "bad": ["crawl"]}' --output results/classifiers/main/manifest.json

A logistic regression over hashed n-grams of words (stages/lib/sources/classifier.py), balanced between the classes. A
document that stands in a class several times counts once, and the held-out documents are chosen by the hashes of
their texts, so that no copy of one is trained on. The manifest has the accuracy, the area under the ROC curve, the
shares of both classes above each threshold, and the words with the largest weights.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import ClassifierIdentity
from stages.lib.recipe import identity
from stages.lib.sources import classifier, documents, source, spans, storage
from stages.lib.sources.classifier import Classifier
from stages.lib.sources.documents import FilterCounts
from stages.lib.sources.entries import TRAIN, Document

CLASSES = ("good", "bad")
FEWEST = 10
"""Documents of each class that must be held out, and that must be trained on."""

THRESHOLDS = [round(at / 20, 2) for at in range(1, 20)]
NUM_WORDS = 20
"""Words with the largest weights of each class in the manifest."""

MOST_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class ClassifierRecipe:
    """A classifier that tells good text from bad."""

    good: list[str] = identity(entries=1, unique=True)
    """The sources of good text. Their training documents are read, after their own filters."""

    bad: list[str] = identity(entries=1, unique=True)
    """The sources of bad text, or of text as it comes, most of which is bad."""

    ngram_words: int = identity(2, minimum=1, maximum=5)
    """The most words of an n-gram; shorter ones count as well."""

    num_features: int = identity(1 << 18, minimum=1 << 10, maximum=1 << 26)
    """The number of weights, to which n-grams are hashed."""

    max_documents: int = identity(50_000, minimum=20)
    """The most documents of a class; of more, a sample is drawn by the hashes of their texts. 50,000 of 2 kB each take
    about 1 GB of memory."""

    held_out: float = identity(0.1, above=0, maximum=0.9)
    """The share of the documents on which the classifier is measured and not trained."""

    seed: int = identity(0, minimum=0)
    """Seed of the sample, and of the choice of held-out documents."""

    def check(self, where: str) -> None:
        """Raise UserError if a source is of both classes."""
        if both := [name for name in self.good if name in self.bad]:
            raise UserError(f"{where}.good and {where}.bad must share no source, got {both[0]!a} in both")


def run(arguments: argparse.Namespace, recipe: ClassifierRecipe) -> None:
    """Train the classifier, measure it, and write the manifest."""
    clock = manifest.Clock(arguments.code)
    lists = {source.read_list(path)[1]: path for path in arguments.lists}
    for name in (*recipe.good, *recipe.bad):
        if name not in lists:
            raise UserError(f"train_classifier: {name} must be one of the sources in --lists: {', '.join(lists)}")
    files.make_parent(arguments.output)  # before the work, not after it
    for name in (arguments.output.name, classifier.WEIGHTS):
        files.clear_leftovers(arguments.output.parent / name)
    digests: dict[str, str] = {}
    train: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    for kind in CLASSES:
        sample = Sample(recipe)
        for name in getattr(recipe, kind):
            digests[name] = sample.add_source(lists[name])
        train[kind], held[kind] = sample.split(kind)
    model = fit(train, recipe)
    path = arguments.output.parent / classifier.WEIGHTS
    classifier.save(model, path)
    measured = measures(*(model.scores(held[kind]) for kind in CLASSES))
    logger.info("held-out accuracy %.3f, ROC AUC %.3f", measured["accuracy"], measured["roc_auc"])
    identity_: ClassifierIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "ngram_words": model.ngram_words,
        "trained_on": digests,
        "outputs": {path.name: manifest.describe(path)},
    }
    numbers = {kind: {"trained_on": len(train[kind]), "held_out": len(held[kind])} for kind in CLASSES}
    words = telling_words(model, [*held["good"], *held["bad"]])
    record = {**clock.record(), "documents": numbers, **measured, "words": words}
    manifest.write(arguments.output, arguments.stage_name, identity_, record)


class Sample:
    """Different training documents of a class, those with the lowest hashes if there are too many."""

    def __init__(self, recipe: ClassifierRecipe) -> None:
        self.recipe = recipe
        self._texts: dict[bytes, str] = {}
        self._highest: list[int] = []  # a heap of negative hashes

    def add_source(self, path: Path) -> str:
        """Read a source by its list; return the digest of its content.

        Raises UserError if it has no text, too many of its records are malformed, or its filters leave nothing.
        """
        listed, name, recipe = source.read_list(path)
        if recipe.token_ids_field is not None:
            raise UserError(f"sources.{name} must hold text to train a classifier on, and holds token ids")
        names = [file["name"] for file in listed.identity["files"]]
        chosen = spans.whole(names)
        before = source.states_of(recipe, listed, chosen)
        described = source.described_inputs(recipe, listed, chosen)
        counts = FilterCounts(name, recipe.max_malformed, log=False)
        for entry in documents.read(recipe, chosen, names, before):
            document = counts.keep(entry)
            if document is not None and document.split == TRAIN:
                self._add(document)
        counts.check()
        counts.check_rest()
        storage.check_unchanged(before)
        logger.info("source %s: %s records", name, f"{counts.num_records:,}")
        return source.digest_of_examples(listed, recipe, described)

    def _add(self, document: Document) -> None:
        text = document.text or ""
        key = hashlib.sha256(f"classifier/{self.recipe.seed}/{text}".encode(errors="surrogatepass")).digest()
        number = int.from_bytes(key, "big")
        is_full = len(self._texts) == self.recipe.max_documents
        if key in self._texts or (is_full and number > -self._highest[0]):
            return
        if is_full:
            del self._texts[(-heapq.heappop(self._highest)).to_bytes(len(key), "big")]
        heapq.heappush(self._highest, -number)
        self._texts[key] = text

    def split(self, kind: str) -> tuple[list[str], list[str]]:
        """Return (texts to train on, held-out texts), in the order of their hashes.

        Raises UserError if there are too few. `kind`: the class.
        """
        texts = [self._texts[key] for key in sorted(self._texts)]
        is_held = classifier.drawn(texts, f"held out/{self.recipe.seed}") < self.recipe.held_out
        train, held = ([text for text, at in zip(texts, is_held, strict=True) if at == side] for side in (False, True))
        if min(len(train), len(held)) < FEWEST:
            raise UserError(
                f"train_classifier.{kind} must have at least {FEWEST} documents to train on and {FEWEST} held out, got "
                f"{len(train)} and {len(held)} of {len(texts)} different ones; add text, or change held_out"
            )
        return train, held


def fit(train: dict[str, list[str]], recipe: ClassifierRecipe) -> Classifier:
    """Return the logistic regression with the least loss, each class of which has half of the weight."""
    import threadpoolctl
    from sklearn.linear_model import LogisticRegression

    texts = [text for kind in CLASSES for text in train[kind]]
    labels = np.repeat([1, 0], [len(train[kind]) for kind in CLASSES])
    matrix = classifier.matrix_of(texts, recipe.ngram_words, recipe.num_features)
    regression = LogisticRegression(class_weight="balanced", max_iter=MOST_STEPS)
    with threadpoolctl.threadpool_limits(1):  # sums of several threads differ in their last bits
        regression.fit(matrix, labels)
    if regression.n_iter_[0] >= MOST_STEPS:
        logger.warning("the classifier did not converge in %s steps", MOST_STEPS)
    return Classifier(regression.coef_[0].astype(np.float32), float(regression.intercept_[0]), recipe.ngram_words)


def measures(good: np.ndarray, bad: np.ndarray) -> dict[str, Any]:
    """Return the accuracy at 0.5 as the mean over both classes, the area under the ROC curve, and the curve:
    [threshold, share of the good that is kept, share of the bad]. `good`, `bad`: scores of held-out documents.
    """
    ordered = np.sort(bad)
    below = np.searchsorted(ordered, good, "left") + np.searchsorted(ordered, good, "right")
    return {
        "accuracy": _rounded((np.mean(good >= 0.5) + np.mean(bad < 0.5)) / 2),
        "roc_auc": _rounded(below.mean() / (2 * len(bad))),  # of equal scores, half
        "curve": [[at, _rounded(np.mean(good >= at)), _rounded(np.mean(bad >= at))] for at in THRESHOLDS],
    }


def _rounded(value: Any) -> float:
    return round(float(value), 4)


def telling_words(model: Classifier, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return for each class the words with the largest weights among those of at least three texts."""
    counts = Counter(word for text in texts for word in set(re.findall(r"[^\W_]{1,40}", text.lower())))
    words = sorted(word for word, number in counts.items() if number >= 3)
    # a word of which `words_of` makes several, as in scripts without spaces, has no weight of its own
    features, numbers = next(classifier.ngrams_of(words, 1, len(model.weight)))
    words = [word for word, number in zip(words, numbers, strict=True) if number == 1]
    weights = model.weight[features[np.repeat(numbers == 1, numbers)]]
    order = np.argsort(-weights, kind="stable")
    signs = {"good": order[weights[order] > 0], "bad": order[::-1][weights[order[::-1]] < 0]}
    return {kind: [words[at] for at in places[:NUM_WORDS]] for kind, places in signs.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.train_classifier", __doc__, ClassifierRecipe)
    parser.add_argument("--lists", type=Path, nargs="+", required=True, help="the lists of the sources of both classes")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the weights are written beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
