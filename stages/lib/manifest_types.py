"""The formats of all manifests: the keys of their identity and record, with their types.

Nothing here runs. mypy compares what stages write, and what others read by `manifest.read(path, STAGE)`, with these
types. XIdentity and XRecord are those of an X, as stages/registry.py names what a stage makes; other stages have the
record of `Record`. Counts and durations in a record that nothing reads are not listed.

A key that is NotRequired is missing where its comment says, or in manifests of earlier versions. The digest of a
manifest is that of its identity. Paths are relative to the manifest.
"""

from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

T = TypeVar("T")

Recipe = dict[str, Any]
"""Identity keys that differ from their defaults. The class of the recipe, see stages/registry.py, describes each."""

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


class FileDescription(TypedDict):
    bytes: int
    sha256: str


class PlacedFile(FileDescription):
    path: str


Files = dict[str, FileDescription]
"""By path."""


class CodeRecord(TypedDict):
    """The record of a stage whose result has the same bytes whenever it is made."""

    code: str | None  # fingerprint of the stage's code; None without --code
    files: NotRequired[Files]  # which equal results need not share


class Record(CodeRecord):
    """The record of other stages, by `manifest.Clock`."""

    started: str  # time in UTC
    seconds: float
    cpu_seconds: float
    commit: str | None  # of git, with + if the tree has changes
    host: str
    python: str
    versions: dict[str, str]  # of packages
    environment: dict[str, str]
    pages: NotRequired[Files]  # of a summary
    logs: NotRequired[Files]  # their first bytes: they grow
    manifests: NotRequired[dict[str, str]]  # {path: sha256 of the whole manifest}


class ListedFile(TypedDict):
    name: str
    bytes: int


class ListIdentity(TypedDict):
    source: str
    recipe: Recipe
    files: list[ListedFile]  # sorted by name
    classifier: NotRequired[str]  # digest of that of filters.quality


class ListRecord(CodeRecord):
    """Also has the other operation keys of the recipe that differ from their defaults."""

    etags: dict[str, str]  # by file
    classifier_manifest: NotRequired[str]  # path
    license: NotRequired[str]
    max_malformed: NotRequired[float]


class ClassifierIdentity(TypedDict):
    recipe: Recipe
    ngram_words: int
    trained_on: dict[str, str]  # {source: digest of its content}
    outputs: Files


class ClassifierRecord(Record):
    accuracy: float
    roc_auc: float
    curve: list[list[float]]  # [threshold, share of the good that is kept, share of the bad]
    documents: dict[str, dict[str, int]]  # by class: {trained_on, held_out}
    words: dict[str, list[str]]  # by class those with the largest weights


class FillInTheMiddleIds(TypedDict, total=False):
    fill_in_the_middle: dict[str, int]  # {prefix, middle, suffix: id}


class TokenIds(FillInTheMiddleIds):
    vocab_size: int
    bos: int
    eos: int


class TokenizerIdentity(TokenIds):
    """Of a trained tokenizer also sample, unk and pieces."""

    recipe: Recipe  # without the path of a custom tokenizer
    sample: NotRequired[str]  # sha256 of the text that it was trained on
    unk: NotRequired[int]
    pieces: NotRequired[str]  # digest of the pieces, which determine it
    outputs: Files


class TokenizerRecord(Record):
    taken: NotRequired[PlacedFile]  # of a custom tokenizer; of a trained one the others
    model_bytes: NotRequired[int]
    model_sha256: NotRequired[str]
    sample_bytes: NotRequired[int]


class CutFile(TypedDict, total=False):
    first: int  # byte at which the part of a cut file begins
    end: int


class InputFile(ListedFile, CutFile):
    """The content of a file of a source, or of its bytes [first, end)."""

    sha256: NotRequired[str]
    etag: NotRequired[str]  # of a remote file, in place of the sha256


class FilterCode(TypedDict, total=False):
    classifier: str  # digest of that of filters.quality
    filter_code: str  # sha256 of the module of filters.custom


class PartOfSource(FilterCode):
    source: str
    source_recipe: Recipe
    part: int  # number, from 0
    inputs: list[InputFile]


class NumberedPart(PartOfSource):
    parts: int  # number of all parts of the source


class DocumentsOfPart(NumberedPart):
    documents: int  # number


class DocumentsIdentity(DocumentsOfPart):
    """Hashes, sketches or copies of documents."""

    recipe: NotRequired[Recipe]  # of sketches
    candidates: NotRequired[str]  # of copies: sha256 of the file with their numbers
    shingle_words: NotRequired[int]  # of copies
    outputs: Files


class EntryOfPart(DocumentsOfPart):
    duplicates: NotRequired[int]  # that are removed; missing for candidates
    path: str  # file with the numbers of the duplicates or candidates


class DuplicatesIdentity(TypedDict):
    parts: list[EntryOfPart]
    outputs: Files


class ExactDuplicates(TypedDict, total=False):
    duplicates: str  # digest of the exact duplicates, if these are dropped


class NearDuplicatesIdentity(DuplicatesIdentity, ExactDuplicates):
    """Candidates, or the near duplicates among them."""

    recipe: Recipe
    candidates: NotRequired[str]  # digest; missing for candidates, as the next
    copies: NotRequired[list[str]]  # digest per part


class DuplicatesRecord(Record):
    kept_in: NotRequired[list[dict[str, int]]]  # per part: duplicates by the source of the documents that stay


class NearDuplicatesRecord(DuplicatesRecord):
    refused: dict[str, int]  # pairs that were compared, by the condition for which they stay


class Batch(TypedDict):
    documents: int
    tokens: int
    offsets_at: int  # byte of the shard at which the offsets of the documents begin
    values_at: int  # byte of the shard at which the tokens begin


class Shard(PlacedFile):
    tokens: int
    documents: int
    batches: list[Batch]  # record batches of Arrow
    text_bytes: int  # UTF-8


class Split(TypedDict):
    documents: int
    tokens: int
    text_bytes: int
    shards: list[Shard]


COUNTED: tuple[Literal["documents", "tokens", "text_bytes"], ...] = ("documents", "tokens", "text_bytes")
"""The keys of a split that add up over its parts."""


class ValidationSplit(Split):
    texts: list[PlacedFile]  # the documents, as lines {"id", "text"} of JSON


class CorpusTokenizer(TokenIds):
    digest: str
    bos_added: bool  # documents begin with BOS


class KnownPart(PartOfSource):
    """The identity of a part of a corpus without its text."""

    recipe: Recipe  # with the number of parts
    tokenizer: CorpusTokenizer
    duplicates: NotRequired[str]  # sha256 of the file with the numbers of those that are left out
    near_duplicates: NotRequired[str]
    decontaminate: NotRequired[dict[str, str]]  # {suite: digest of its items}


class PartIdentity(KnownPart):
    train: Split
    validation: ValidationSplit
    outputs: Files


Count = Literal["dropped", "dropped_bytes", "masked", "languages", "lengths", "duplicates_of", "near_duplicates_of"]


class Counts(TypedDict, Generic[T], total=False):
    dropped: T  # malformed records and filtered documents by reason
    dropped_bytes: T  # of their text
    masked: T  # masked text by kind
    languages: T  # documents by language, filtered ones too
    lengths: T  # documents with less bytes of text than a power of two, and at least half of it
    duplicates_of: T  # duplicates by the source of the documents that stay for them
    near_duplicates_of: T


Examples = dict[str, list[dict[str, Any]]]
"""{reason: the first records that were dropped for it}"""


class PartRecord(Record, Counts[dict[str, int]]):
    list: str  # digest
    license: str | None
    records: int
    malformed: int
    max_malformed: float
    dropped_examples: Examples


class CorpusSource(TypedDict):
    train: Split
    validation: ValidationSplit
    ids: NotRequired[Literal["given"]]  # pre-tokenized, perhaps by another tokenizer


class CorpusIdentity(TypedDict):
    recipe: Recipe  # {}
    tokenizer: CorpusTokenizer
    dtype: str  # of the token ids in the shards
    sources: dict[str, CorpusSource]


class CorpusRecord(CodeRecord, Counts[dict[str, dict[str, int]]]):
    """By source."""

    parts: int
    licenses: dict[str, str]
    dropped_examples: NotRequired[dict[str, Examples]]
    bytes_scale: NotRequired[dict[str, float]]  # bytes of validation text per byte of its ids


class Include(TypedDict, total=False):
    include: str  # digest of include_path


class ItemsIdentity(Include):
    recipe: Recipe
    suite: str
    tasks: dict[str, int]  # number of items
    outputs: Files


class ContaminatedItems(TypedDict):
    n: int
    unchecked: int  # without an n-gram
    contaminated: int
    rate: float  # contaminated / n


class KnownOverlaps(TypedDict):
    """The identity of overlaps that is known before the search."""

    recipe: Recipe
    source: str
    part: int
    items: str  # digest
    tokenizer: str  # digest
    shards: list[str]  # sha256 of each training shard


class OverlapsIdentity(KnownOverlaps):
    tasks: dict[str, dict[str, int]]  # {task: {n, unchecked}}
    outputs: Files


class ContaminationIdentity(TypedDict):
    recipe: Recipe
    suite: str
    corpus: str  # digest
    items: str  # digest
    results: dict[str, ContaminatedItems]  # by task
    outputs: Files


class OwnerIdentity(TypedDict):
    """The run of a milestone, see run_directory/run_identity.py."""

    recipe: Recipe
    corpus: str  # digest
    tuned_on: NotRequired[dict[str, str]]  # of a fine-tuning: {source: digest of its content}
    template: NotRequired[str]  # text of the chat template of a fine-tuning on conversations
    initial: NotRequired[str]  # digest of the model that the run starts from
    tokenizer: str  # digest


class ModelIdentity(OwnerIdentity):
    step: int
    samples: int
    tokens: int
    models: NotRequired[dict[str, str]]  # of averaged weights: {step of a milestone: its digest}
    checkpoint: str  # path of the directory
    outputs: Files  # of the checkpoint


class ModelRecord(Record):
    initial: NotRequired[str]  # path of the model that the run starts from
    horizon: dict[str, int]  # {steps} of the whole run
    run_directory: str  # path
    validation: dict[str, dict[str, Any]]  # {source: {loss and other figures, text: digest of the windows}}
    world_size: int
    data: dict[str, Any]  # {mixture: [{from_sample, slots}], rows}, or of preferences {pairs, filtered}


class PredictionIdentity(TypedDict):
    recipe: Recipe
    corpus: str  # digest
    models: dict[str, str]  # {run: digest}
    points: list[dict[str, Any]]  # the ladder's models: [{run, parameters, tokens, loss, loss_bits_per_byte}]
    parameters: int  # of the target
    results: dict[str, dict[str, Any]]  # {measure: {value, low, high, level, law, scatter, held_out}}
    curve: list[dict[str, float]]  # of the loss: [{parameters, tokens, value, low, high}]


class BestRunIdentity(TypedDict):
    recipe: Recipe
    run: str
    step: int
    model: str  # digest
    scores: dict[str, float]  # by run
    checkpoint: str  # path of the directory
    outputs: Files


class KnownExport(TypedDict):
    """The identity of an export without its files."""

    recipe: Recipe
    model: str  # digest
    tokenizer: str  # digest
    corpus: str  # digest
    step: int
    tokens: int
    seq_len: int  # of the training


class ExportIdentity(KnownExport):
    outputs: Files


class ExportCounts(TypedDict):
    parameters: int
    vocab_size: int  # rows of the embedding
    active_parameters: NotRequired[int]  # per token, of a model with experts


class ExportRecord(Record, ExportCounts):
    parity: dict[str, Any]  # `logits` of parity.json


class Score(TypedDict):
    """Of a value that is not known, None."""

    value: float | None
    stderr: float | None
    n: int | None  # number of documents


Scores = dict[str, dict[str, Score]]
"""{task: {metric: score}}"""


class ScoredIdentity(TypedDict, total=False):
    """The model that is scored."""

    export: str  # digest
    step: int
    tokens: int
    baseline: str  # digest of its files; alone


class KnownEvaluation(ScoredIdentity, Include):
    """The identity of an evaluation without its scores."""

    recipe: Recipe
    suite: str
    corpus: str  # digest
    prompt_completion: NotRequired[str]  # digest of the source of pairs
    trivial: NotRequired[Scores]  # of local tasks: {task: {trivial reader: score}}
    chat_template: NotRequired[bool]  # with apply_chat_template: true if the model has one


class EvaluationIdentity(KnownEvaluation):
    results: Scores
    groups: dict[str, list[str]]  # the tasks of a group
    num_fewshot: dict[str, Any]
    exchanged_contexts: NotRequired[Scores]  # of tasks with choices, after the contexts of other documents
    outputs: Files  # logs of the samples
    task_versions: dict[str, Any]
    harness: str  # version, as the next
    vllm: NotRequired[str]


class EvaluationRecord(Record):
    device: NotRequired[str]


class CardIdentity(TypedDict):
    recipe: Recipe
    name: str
    model: str  # digest
    export: str  # digest
    corpus: str  # digest
    lists: dict[str, str]  # {source: digest}
    evaluations: dict[str, str]  # {suite: digest}
    contamination: dict[str, str]  # {suite: digest}
    baselines: dict[str, dict[str, str]]  # {name: {suite: digest}}
    licenses: dict[str, str]  # by source
    step: int
    outputs: Files


class SummaryIdentity(TypedDict):
    recipe: Recipe  # {}
    inputs: dict[str, str]  # {path of a manifest: digest}
    missing: list[str]
    outputs: Files
