"""Input functions of the data rules: lists, tokenizers, parts, corpora."""


def tokenizer_lists(wildcards):
    """Lists of the sources that a tokenizer's sample comes from; [] for a custom tokenizer."""
    return expand(LIST, source=sorted(named("tokenizers", wildcards.tokenizer).get("sample", {})))


def tokenizer_file(wildcards):
    """The tokenizer.json of a custom tokenizer, [] for a trained one. A changed file reruns what depends on it."""
    name, tokenizer = wildcards.tokenizer, named("tokenizers", wildcards.tokenizer)
    if "path" not in tokenizer:
        return []
    if not Path(tokenizer["path"]).is_file():
        raise WorkflowError(f"tokenizers.{name}.path must be a file; {tokenizer['path']} does not exist")
    return local(tokenizer["path"])  # the user's file: Snakemake puts no prefix of a module before it


def tokenizer_of_corpus(wildcards):
    """Manifest of a corpus' tokenizer."""
    return expand(TOKENIZER, tokenizer=named("corpora", wildcards.corpus)["tokenizer"])


def list_of_part(wildcards):
    """List of a part's source. WorkflowError if the corpus has no such source or part."""
    corpus = named("corpora", wildcards.corpus)
    if wildcards.source not in corpus["sources"]:
        raise WorkflowError(f"corpus {wildcards.corpus} has no source {wildcards.source}")
    if int(wildcards.part) >= parts_of(wildcards.corpus):
        raise WorkflowError(f"corpus {wildcards.corpus} has no part {int(wildcards.part)}")
    return expand(LIST, source=wildcards.source)


def parts_of(corpus):
    """Return the number of parts of each source of a corpus."""
    default = keys_of("corpora", "tokenize")["parts"]["default"]
    return named("corpora", corpus).get("tokenize", {}).get("parts", default)


def parts_of_wildcard(wildcards):
    """Return the number of parts of a rule's corpus."""
    return parts_of(wildcards.corpus)


def of_all_parts(pattern, corpus, **more):
    """Expand a pattern over all parts of a corpus."""
    sources, parts = named("corpora", corpus)["sources"], range(parts_of(corpus))
    return expand(pattern, corpus=corpus, source=sources, part=[f"{part:05d}" for part in parts], **more)


def parts_of_corpus(wildcards):
    """Manifests of all parts of a corpus."""
    return of_all_parts(PART, wildcards.corpus)


def hashes_of_corpus(wildcards):
    """Manifests of the hashes of all parts of a corpus."""
    return of_all_parts(HASHES, wildcards.corpus)


def duplicates_of_corpus(wildcards):
    """Manifest of find_duplicates for a corpus; [] if duplicates are kept."""
    drops = named("corpora", wildcards.corpus).get("tokenize", {}).get("duplicates") == "drop"
    return expand(DUPLICATES, corpus=wildcards.corpus) if drops else []
