"""The fields of a source's recipe, which its kind reads; the recipe itself knows the kinds, see source.py."""

from __future__ import annotations

from dataclasses import dataclass

from stages.lib.recipe import identity, operation
from stages.lib.sources.filters import FilterRecipe


@dataclass(frozen=True, kw_only=True)
class SourceFields:
    """The fields of a source of documents, or of conversations or prompt-completion pairs to fine-tune on."""

    kind: str = identity()
    """The name of the kind."""

    paths: list[str] = identity([])
    """Files, directories (with all files below them), globs (`**` matches any folders) or their URLs (s3://, hf:// and
    all others that fsspec reads), relative to the working directory; not for python-*. In the query of a URL of http,
    `${NAME}` is the environment variable NAME: a token or signature must be written so. Text and JSON lines files may
    be compressed: .gz, .zst, .bz2, .lz4. As in Spark and Arrow, names that begin with a dot or an underscore and empty
    files are left out of a directory; `list` counts what it leaves out."""

    text_field: str = identity("text")
    """The field of a JSON line, or the column of a table, that holds the text. `doc.text` is the field text of the
    mapping or struct doc; this holds for all keys that name a field."""

    token_ids_field: str | None = identity(None)
    """The column of a table that holds token ids of the corpus' tokenizer (pre-tokenized documents), in place of text.
    They may have a BOS and an EOS at their ends or not: the corpus decides. Padding behind EOS or in front of BOS is
    left out, and a row of several documents is malformed. The validation split is drawn by the ids: a
    text that another source holds as text may be validation data in one and training data in the other; a `split_field`
    of both prevents it."""

    id_field: str | None = identity(None)
    """The field or column that holds the id of a document in messages and examples. Default: file and number."""

    messages_field: str = identity("messages")
    """The field or column that holds the messages of a conversation: a list of mappings with `role` (system, user,
    assistant or tool) and `content`, in the order of the turns. Further keys are for the chat template."""

    prompt_field: str = identity("prompt")
    """The field or column that holds the prompt. Nothing is put between prompt and completion: a space between
    them must be in the data."""

    completion_field: str = identity("completion")
    """The field or column that holds the completion, which a model learns to write after the prompt."""

    chosen_field: str = identity("chosen")
    """The field or column that holds the completion that is preferred: text, or messages. Messages with which both
    completions begin, and a list of messages in `prompt_field`, are the prompt."""

    rejected_field: str = identity("rejected")
    """The field or column that holds the other completion."""

    split_field: str | None = identity(None)
    """The field of a JSON line, or the column, whose value is the split key: equal values are all training or all
    validation data. Default: the text, the prompt, or the messages before the assistant's first answer."""

    validation: float = identity(0.01, minimum=0, maximum=0.9)
    """The share of split keys in the validation split. Split keys are file names for text (segments if a file is cut),
    modules for python-*. Every source of a corpus or of fine-tuning needs a validation split; 0 is for a source that
    only a tokenizer is trained on."""

    license: str | None = operation(None)
    """The license of the text, an SPDX identifier where there is one (CC-BY-4.0). Model cards and the manifest of a
    corpus show it."""

    max_malformed: float = operation(0.05, minimum=0, maximum=1)
    """The largest share of a source's records that may be malformed (no JSON, no UTF-8, no text): up to it they are
    skipped and counted, beyond it the source is refused."""

    filters: FilterRecipe = identity(FilterRecipe())
    """The conditions that a document must meet."""
