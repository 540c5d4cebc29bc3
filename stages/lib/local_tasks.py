"""Tasks of lm-evaluation-harness made from a corpus' held-out text: they need no network, and exist for every corpus.

    bits_per_byte_SOURCE   rolling log-likelihood of pieces of held-out text: metrics bits_per_byte and byte_perplexity
    next_line              which of four lines comes next in held-out text: metric acc_mutual_info, chance 0.25

The line is taken that the text before it makes more probable than it is by itself: log p(line | context) - log p(line).
A model of 5 M parameters after 0.5 M tokens was right so in 0.52 of 400 questions, and in 0.29 by log p(line | context)
alone, which says above all how common a line is.

A task is NAME.yaml beside NAME.jsonl, so that the harness's own command line runs the very same.
"""

import hashlib
import heapq
import io
import json
import random

from stages.lib import files, heldout_text
from stages.lib.errors import UserError
from stages.lib.log import logger

BITS_PER_BYTE, NEXT_LINE = "bits_per_byte", "next_line"
NAMES = (BITS_PER_BYTE, NEXT_LINE)
CHOICES = 4
PIECE_BYTES = 2048  # what a piece loses at its start for want of context is below 1% of its bits
POOL_BYTES = 2 << 20  # text a source from which questions are made: some 40,000 lines
CONTEXT_LINES, CONTEXT_BYTES, SHORTEST_CONTEXT_LINES = 10, 400, 3
SHORTEST_LINE = 16  # characters: `else:` or a lone brace would be a question of luck
BIN_LINES = 48  # the four choices of a question come from so many lines that are neighbours by length
WIDEST_BIN = 1.5  # the longest line of a bin by its shortest; in the sparse tail of long lines nothing is asked


def write(directory, corpus, names, *, num_bytes, questions, seed):
    """Write the tasks `names` (of NAMES) for a corpus manifest; returns {task: "rolling" or "choice"}.

    `num_bytes`: how much text a source the bits per byte are taken of. `questions`: how many, over all sources.
    Raises UserError when no source has held-out text, or it is too small for a question.
    """
    pools = {}
    for source in sorted(corpus.identity["sources"]):
        pieces = _pieces_of(heldout_text.documents(corpus, source), source)
        pools[source] = sample(pieces, seed, max(num_bytes, POOL_BYTES if NEXT_LINE in names else 0))
        if not pools[source]:
            logger.warning("source %s has no held-out text: it is left out of the scores", source)
            del pools[source]
    if not pools:
        raise UserError(f"{corpus.path} must hold held-out text for {', '.join(names)}, and no source of it has any")
    directory.mkdir(parents=True, exist_ok=True)
    tasks = {}
    if BITS_PER_BYTE in names:
        for source, pool in pools.items():
            tasks[f"{BITS_PER_BYTE}_{source}"] = "rolling"
            _write_rolling(directory, f"{BITS_PER_BYTE}_{source}", first_bytes(pool, num_bytes))
    if NEXT_LINE in names:
        tasks[NEXT_LINE] = "choice"
        _write_choice(directory, NEXT_LINE, all_questions(pools, questions, seed, corpus.path))
    return tasks


def _pieces_of(documents, source):
    """Cut documents at line ends into pieces: {"id", "source", "text"}, the id unique, blank pieces left out."""
    for name, text in documents:
        for number, piece in enumerate(cut(text, PIECE_BYTES)):
            if piece.strip():
                yield {"id": f"{name}#{number}", "source": source, "text": piece}


def cut(text, num_bytes):
    """Cut a text at line ends into pieces of at most `num_bytes` bytes of UTF-8; only a longer line stands alone."""
    piece, size = [], 0
    for line in io.StringIO(text, newline="\n"):
        length = len(line.encode())
        if piece and size + length > num_bytes:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += length
    if piece:
        yield "".join(piece)


def sample(pieces, seed, num_bytes):
    """The pieces of lowest hash of (seed, id) that together have `num_bytes`, in order of the hash.

    The choice does not depend on the order in which the pieces come; memory is that of the result.
    """
    heap, total = [], 0
    for piece in pieces:
        digest = hashlib.blake2b(f"{seed}\0{piece['id']}".encode(), digest_size=16).digest()
        key = -int.from_bytes(digest)  # heapq keeps the smallest on top: here the highest hash
        heapq.heappush(heap, (key, piece["id"], piece))
        total += len(piece["text"].encode())
        while heap and total - len(heap[0][2]["text"].encode()) >= num_bytes:
            total -= len(heapq.heappop(heap)[2]["text"].encode())
    return [piece for _, _, piece in sorted(heap, key=_order)]


def _order(entry):
    return -entry[0], entry[1]


def first_bytes(pieces, num_bytes):
    """As many of the first pieces as have `num_bytes` together."""
    taken, total = [], 0
    for piece in pieces:
        if total >= num_bytes:
            break
        taken.append(piece)
        total += len(piece["text"].encode())
    return taken


def all_questions(pools, count, seed, where):
    """`count` questions, as evenly over the sources and over the four positions of the answer as can be.

    `pools`: {source: pieces}. Raises UserError when a source's held-out text gives no question.
    """
    questions = []
    for number, (source, pool) in enumerate(pools.items()):
        share = count // len(pools) + (number < count % len(pools))
        made = _questions_of(pool, share, random.Random(f"{seed} {source}"))
        if not made and share:
            raise UserError(f"{where}: the held-out text of source {source} is too small for {NEXT_LINE}")
        if len(made) < share:
            logger.warning("%s: source %s gives %d questions, not %d", NEXT_LINE, source, len(made), share)
        questions += made
    shuffle = random.Random(f"{seed} {NEXT_LINE}")
    shuffle.shuffle(questions)
    positions = [number % CHOICES for number in range(len(questions))]
    shuffle.shuffle(positions)
    return [_place_answer(question, at) for question, at in zip(questions, positions, strict=True)]


def _questions_of(pool, count, chance):
    """Draw questions whose right and wrong lines are alike: who ignores the context is right by chance only.

    All lines that could be asked for are sorted by length and cut into bins; a question's four lines come from one bin,
    as often as they occur in the text. So a right line is no more common, no longer and no deeper indented than others.
    """
    lines = [line for piece in pool for line in _lines_of(piece)]
    chance.shuffle(lines)  # else the lines of one length would stand in the order of the text
    lines.sort(key=_length)
    order = list(range(len(lines)))
    chance.shuffle(order)
    questions = []
    for at in order:
        if len(questions) == count:
            break
        line, first = lines[at], at - at % BIN_LINES
        wrong = _unlike(line, lines[first : first + BIN_LINES], chance)
        if wrong is not None:
            piece, number = line["piece"], line["number"]
            context = _context(piece["text"].split("\n")[:number])
            asked = {"id": f"{piece['id']}:{number}", "source": piece["source"], "context": context}
            questions.append(asked | {"right": line["text"], "wrong": wrong})
    return questions


def _lines_of(piece):
    """The lines of a piece that can be asked for: long enough, and behind enough lines that are not blank."""
    spoken = 0
    for number, text in enumerate(piece["text"].split("\n")):
        if spoken >= SHORTEST_CONTEXT_LINES and len(text.strip()) >= SHORTEST_LINE:
            yield {"piece": piece, "number": number, "text": text, "bytes": len(text.encode())}
        spoken += bool(text.strip())


def _length(line):
    return line["bytes"]


def _unlike(line, nearby, chance):
    """Three texts out of one bin, of other pieces, unlike `line` and each other; None where that cannot be."""
    if nearby[-1]["bytes"] > WIDEST_BIN * nearby[0]["bytes"]:
        return None
    taken = {line["text"].strip(): line["text"]}
    for other in chance.sample(nearby, len(nearby)):
        if other["piece"]["id"] != line["piece"]["id"]:
            taken.setdefault(other["text"].strip(), other["text"])
        if len(taken) == CHOICES:
            return list(taken.values())[1:]
    return None


def _context(lines):
    """The last of `lines` that fit the limits, each with its line end."""
    taken, size = [], 0
    for line in reversed(lines[-CONTEXT_LINES:]):
        size += len(line.encode()) + 1
        if taken and size > CONTEXT_BYTES:
            break
        taken.append(line)
    return "".join(f"{line}\n" for line in reversed(taken))


def _place_answer(question, position):
    choices = list(question.pop("wrong"))
    choices.insert(position, question.pop("right"))
    return question | {"choices": [f"{line}\n" for line in choices], "answer": position}


def _write_rolling(directory, name, pieces):
    config = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False},
            {"metric": "byte_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False},
        ],
    }
    _write_task(directory, name, config, pieces)


def _write_choice(directory, name, questions):
    config = {
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc_mutual_info", "aggregation": "mean", "higher_is_better": True}],
    }
    _write_task(directory, name, config, questions)


def _write_task(directory, name, config, rows):
    """Write NAME.jsonl and NAME.yaml; the path in it is absolute, as `datasets` reads it from where it runs."""
    import yaml

    data = directory / f"{name}.jsonl"
    with files.atomic(data, "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    head = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test"}  # fmt: skip
    with files.atomic(directory / f"{name}.yaml", "w") as file:
        yaml.safe_dump({**head, **config, "metadata": {"version": 1}}, file, sort_keys=False, allow_unicode=True)
