"""The samples of a fine-tuning by its checkpoint and its sources, to compare with its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stages.lib.chat.template import ChatTemplate
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.ledger import check_digest
from stages.lib.tuning import tuning_sources
from stages.lib.tuning.encoded_examples import ASSISTANT
from stages.lib.tuning.mixed_samples import MixedSamples
from stages.lib.tuning.tuning_samples import BEST_FIT, DROP

DEFAULTS = {"seed": 0, "template": None, "dpo": None, "loss_on": ASSISTANT, "packing": BEST_FIT, "too_long": DROP}
"""The recipe's defaults: a checkpoint holds only the keys that the user wrote."""


def samples_of(
    lists: Sequence[Path], tokenizer_path: Path, corpus_path: Path, commit: Mapping[str, Any], directory: Path
) -> MixedSamples[Any]:
    """Return the samples of a run by its inputs and the commit of `ledger.commit_of`.

    Raises UserError for an input that is not the one of the training.
    """
    recipe = SimpleNamespace(**DEFAULTS | commit["recipe"])
    corpus, tokenizer = Corpus(corpus_path), Tokenizer(tokenizer_path)
    check_digest("--corpus", corpus_path, corpus.digest, commit["corpus"], directory)
    check_digest("--tokenizer", tokenizer_path, tokenizer.digest, commit["tokenizer"], directory)
    text = commit.get("template")
    template = None if text is None else ChatTemplate(text, special_tokens(tokenizer.manifest), "of the training")
    sources = tuning_sources.read(lists, recipe, template)
    for name, digest in sources.digests.items():
        check_digest("--sources", Path(name), digest, commit["tuned_on"][name], directory)
    return sources.data(tokenizer, corpus.tokenizer["bos_added"], recipe, validation_tokens=lambda _: 0).samples
