"""Tasks of lm-evaluation-harness made from what is held out: they need no network, and exist for every corpus.

    bits_per_byte_SOURCE   rolling log-likelihood of validation text: metrics bits_per_byte and byte_perplexity
    next_line              which of four lines comes next in validation text: metric acc_mutual_info, chance 0.25
    completion_choice      which of four completions belongs to a validation prompt: the same, of a source of pairs
    completion_bits        bits per byte of validation completions given their prompts: metric bits_per_byte

The choice is taken that the context makes more probable than it is by itself: log p(choice | context) - log p(choice).
The wrong choices are right ones of other questions, so who has not read the context expects each with p(choice); by
Bayes' rule the odds that one is right are then p(choice | context) / p(choice). A model of 5 M parameters after 0.5 M
tokens was right so in 0.52 of 400 questions of next_line, and in 0.29 by log p(choice | context) alone, which says
above all how common a line is.
"""

import hashlib
import heapq
import io

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring import completion_bits, completion_choice, next_line, task_files
from stages.lib.tokens import validation_text

BITS_PER_BYTE, NEXT_LINE = "bits_per_byte", next_line.NAME
COMPLETION_CHOICE, COMPLETION_BITS = completion_choice.NAME, completion_bits.NAME
OF_TEXT = (BITS_PER_BYTE, NEXT_LINE)
OF_PROMPT_COMPLETION = (COMPLETION_CHOICE, COMPLETION_BITS)
NAMES = (*OF_TEXT, *OF_PROMPT_COMPLETION)
PIECE_BYTES = 2048  # what a piece loses at its start for want of context is below 1% of its bits


def write(directory, names, corpus, pairs, *, num_bytes, num_examples, seed, longest):
    """Write the tasks `names` (of NAMES); returns {task: "rolling", "line" or "completion"}.

    `corpus`: its Manifest. `pairs`: a PairSource; None where no task is of pairs. `num_bytes`: how much text a source
    the bits per byte are taken of. `num_examples`: questions over all sources, and completions.
    `longest`: bytes of the longest completion. Raises UserError when no source has validation text, or too little for a
    question.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tasks = {}
    if any(name in names for name in OF_TEXT):
        tasks |= _write_of_text(directory, names, corpus, num_bytes, num_examples, seed)
    if COMPLETION_CHOICE in names:
        tasks[COMPLETION_CHOICE] = "completion"
        made = completion_choice.questions(pairs, num_examples, seed, longest)
        task_files.write_choice(directory, COMPLETION_CHOICE, made)
    if COMPLETION_BITS in names:
        tasks[COMPLETION_BITS] = "completion"
        made = completion_bits.rows(pairs, num_examples, seed, longest)
        task_files.write_completions(directory, COMPLETION_BITS, made)
    return tasks


def _write_of_text(directory, names, corpus, num_bytes, num_examples, seed):
    pools = _pools(corpus, seed, max(num_bytes, next_line.POOL_BYTES if NEXT_LINE in names else 0))
    if not pools:
        wanted = ", ".join(name for name in names if name in OF_TEXT)
        raise UserError(f"{corpus.path} must hold validation text for {wanted}, and no source of it has any")
    tasks = {}
    if BITS_PER_BYTE in names:
        for source, pool in pools.items():
            tasks[f"{BITS_PER_BYTE}_{source}"] = "rolling"
            task_files.write_rolling(directory, f"{BITS_PER_BYTE}_{source}", first_bytes(pool, num_bytes))
    if NEXT_LINE in names:
        tasks[NEXT_LINE] = "line"
        task_files.write_choice(directory, NEXT_LINE, next_line.questions(pools, num_examples, seed, corpus.path))
    return tasks


def _pools(corpus, seed, num_bytes):
    """{source: pieces of its validation text}, without the sources that have none."""
    pools = {}
    for source in sorted(corpus.identity["sources"]):
        pieces = _pieces_of(validation_text.documents(corpus, source), source)
        pools[source] = sample(pieces, seed, num_bytes)
        if not pools[source]:
            logger.warning("source %s has no validation text: it is left out of the scores", source)
            del pools[source]
    return pools


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
