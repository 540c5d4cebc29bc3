"""A source before anything is tokenized: its files, fields, documents, lengths, and what would be left out."""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.inspection import fields, sampling, terminal
from stages.lib.inspection.measures import BATCH, Measures
from stages.lib.inspection.terminal import several, share, size
from stages.lib.sources import compressed, documents, inputs, prompt_completion, records, source, spans, storage
from stages.lib.sources.documents import Document
from stages.lib.sources.filtered import LeftOut
from stages.lib.sources.split import VALIDATION

PARTS = (2, 8, 32)  # for which it is said how large they would be
PARTS_WORK = 1_000_000  # files times parts that are gone through for it
HEAD = 200  # bytes shown of a file whose records cannot be read
NAMED = 3  # files


@dataclass(frozen=True)
class PairShown(Document):
    """A pair as one text, of which the first `prompt` characters are its prompt."""

    prompt: int = 0


def show(name, recipe, files, tokenizer, count, at_most, listed=None):
    """Print the look: a source's name, SourceRecipe and files ([{"name", "bytes"}]).

    `tokenizer`: a Tokenizer or None. `count`: documents to show. `at_most`: bytes to read, about. `listed`: the path of
    the list that says what the files are.
    Raises UserError where a file cannot be read, or ids are none of the tokenizer's.
    """
    print_files(name, recipe, files)
    places = sampling.places(recipe, files, at_most)
    if listed is not None:
        _check_sizes(recipe, places, files, listed)
    fields.print_fields(recipe, places, files)
    dropped = LeftOut(name, 1, tokenizer, log=False)
    measures = Measures("pair" if recipe.kind in source.PROMPT_COMPLETION_KINDS else "document", tokenizer)
    readings, shown = [], []
    for number, place in enumerate(places, 1):
        readings.append(Reading(recipe, place, files, at_most // len(places)))
        for batch in documents.batched(filter(None, map(dropped.look, readings[-1])), BATCH):
            shown += measures.add(batch)[: max(0, count * number // len(places) - len(shown))]
    print_looked_at(readings, dropped.records)
    print_dropped(recipe, dropped, places[0].spans[0].name)
    if measures.documents:
        measures.print(recipe.validation)
    elif dropped.records:
        print("kept: nothing")
    if measures.documents and readings[0].place.where == "all" and readings[0].ended and not measures.validation:
        print("nothing is held out, and a corpus needs some: raise validation")
    if all(reading.ended for reading in readings):
        measures.print_estimate(sum(place.bytes for place in places), sum(file["bytes"] for file in files))
    for document in shown:
        print_document(document)


def _check_sizes(recipe, places, files, listed):
    sizes, root = {file["name"]: file["bytes"] for file in files}, source.root_of(recipe)
    for name in {span.name: None for place in places for span in place.spans}:
        found = storage.status(name if storage.is_address(name) else root / name).bytes
        if found != sizes[name]:
            raise UserError(f"{name} must have {sizes[name]} bytes by {listed}, and has {found}; run -R list")


def print_files(name, recipe, files):
    """Print how many files there are, how large, and how `tokenize.parts` would cut them."""
    total = sum(file["bytes"] for file in files)
    print(f"source {name}: {recipe.kind}, {several(len(files), 'file')}, {size(total)}")
    for file in files[:NAMED]:
        print(f"  {terminal.visible(file['name'])}: {size(file['bytes'])}")
    if len(files) > NAMED:
        print(f"  ... {len(files) - NAMED:,} more")
    if recipe.kind not in source.PROMPT_COMPLETION_KINDS:
        print(f"parts: {'; '.join(_parts(recipe, files, total))}")


def _parts(recipe, files, total):
    """Phrases on how large parts would be."""
    whole = [file["bytes"] for file in files if not _is_cut(recipe, file)]
    if len(files) == 1 and whole:
        yield "one has it all, since the file would stay whole"
        return
    if len(whole) < len(files):
        yield f"{several(len(files) - len(whole), 'file')} of more than 16 MiB would be cut"
    largest = max(whole, default=0)
    if largest > spans.WHOLE_BYTES:
        yield f"a file of {size(largest)} stays whole, so that more than {-(-total // largest)} are no faster"
    sizes = {file["name"]: file["bytes"] for file in files}
    for parts in PARTS:
        if parts * len(files) <= PARTS_WORK:
            cuts = [inputs.spans_of_part(recipe, files, part, parts) for part in range(parts)]
            held = [sum((span.end or sizes[span.name]) - span.first for span in cut) for cut in cuts]
            if 0 in held:
                yield f"of {parts}, {held.count(0)} would have nothing"
                return
            least, most = size(min(held)), size(max(held))
            yield f"each of {parts} would have {least}" + f" to {most}" * (least != most)


def _is_cut(recipe, file):
    return file["bytes"] > spans.WHOLE_BYTES and records.can_be_cut(recipe, file["name"])


class Reading:
    """The Documents (pairs as well) and Dropped of a place, up to a limit of bytes.

    `held`: bytes of text or ids that were read; `ended`: whether that is all of the place.
    """

    def __init__(self, recipe, place, files, at_most):
        # a place ends with a file or row group that goes beyond the limit: read it too if it is not much
        self.place, self.at_most = place, max(at_most, place.bytes if place.bytes <= 2 * at_most else 0)
        self.held, self.ended = 0, False
        self._found = (
            _pairs(recipe, place) if recipe.kind in source.PROMPT_COMPLETION_KINDS else _documents(recipe, place, files)
        )

    def __iter__(self):
        """Yield them."""
        costs = 0
        for entry in self._found:
            yield entry
            self.held += _bytes(entry)
            costs += max(_bytes(entry), documents.RECORD_BYTES)
            if costs >= self.at_most:
                break
        self.ended = next(self._found, None) is None


def _documents(recipe, place, files):
    return documents.read(recipe, place.spans, [file["name"] for file in files])


def _pairs(recipe, place):
    for pair in prompt_completion.records(recipe, [span.name for span in place.spans]):
        yield PairShown(pair.id, pair.prompt + pair.completion, pair.split, prompt=len(pair.prompt))


def _bytes(entry):
    if isinstance(entry, Document) and entry.ids is not None:
        return entry.ids.nbytes
    return len((entry.text or "").encode())


def print_looked_at(readings, count):
    """Print how much of the source the rest is about."""
    held = size(sum(reading.held for reading in readings))
    if readings[0].place.where == "all":
        said = "all of it" if readings[0].ended else "its beginning; --sample-mb reads more"
    else:
        where = ", ".join(reading.place.where for reading in readings)
        said = f"{' and '.join(where.rsplit(', ', 1))} of it; --sample-mb reads more"
    print(f"\nlooked at {several(count, 'record')}, {held}: {said}")


def print_dropped(recipe, dropped, name):
    """Print what would be left out and why, with examples; whether the source would be refused, and how a file `name`
    of it begins then.
    """
    left = dropped.record()
    for reason, count in sorted(left["dropped"].items(), key=lambda item: -item[1]):
        print(f"dropped: {count:,} ({share(count, dropped.records)}) {reason}")
        for example in left["dropped_examples"][reason]:
            print(f"  {terminal.visible(example['id'])}: {terminal.shortened(example['text'])}".rstrip(": "))
    if not left["dropped"]:
        print("dropped: nothing")
    if dropped.unreadable > recipe.max_malformed * dropped.records:
        print(
            f"by this it would be refused: {share(dropped.unreadable, dropped.records)} cannot be read, and "
            f"max_malformed is {recipe.max_malformed:g}"
        )
        if recipe.kind in ("text", "jsonl"):
            _print_head(name)


def _print_head(name):
    with compressed.opened(name) as file:
        head = file.read(HEAD).decode(errors="replace")
    print(f"{terminal.visible(name)} begins with: {terminal.shortened(head, HEAD)}")


def print_document(document):
    """Print a document; of a pair the prompt is marked with >. One of ids without a tokenizer is shown as ids."""
    validation = ", held out" if document.split == VALIDATION else ""
    if document.text is None:
        print(f"\n{terminal.visible(document.id)}: {several(len(document.ids), 'id')}{validation}")
        print(f"  | {' '.join(map(str, document.ids[:20].tolist()))}{' ...' * (len(document.ids) > 20)}")
        return
    print(f"\n{terminal.visible(document.id)}: {size(len(document.text.encode()))}{validation}")
    prompt = document.prompt if isinstance(document, PairShown) else 0
    if prompt:
        print(*terminal.lines_of(document.text[:prompt], ">"), sep="\n")
    print(*terminal.lines_of(document.text[prompt:]), sep="\n")
