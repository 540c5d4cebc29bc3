"""Between text and token ids: a prompt's ids as in training or in transformers, and text that grows token by token."""

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface import export
from stages.lib.tokenizer.tokenizer import PACKAGE, Tokenizer

TOKENIZER, TOKENIZER_CONFIG = PACKAGE
HELD = 8  # tokens; a character of UTF-8 has at most 4 bytes, and a token at least one


class Text:
    """A tokenizer: `encode(prompt)` gives ids, `ends` are those that end a text, `vocabulary` is how many ids it has.

    `learnt`: how many without the tokens that were added later, for which some models have no row. `first`: the id that
    an empty prompt becomes, since a model continues at least one token; None where nobody says.
    """

    def __init__(self, package, encode, first, ends):
        self.package, self._encode, self.first, self.ends = package, encode, first, ends
        self.vocab_size = 1 + max(package.get_vocab(with_added_tokens=True).values())
        self.learnt = package.get_vocab_size(with_added_tokens=False)

    def encode(self, prompt):
        """The ids of a text, BOS in front where the tokenizer puts one."""
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise UserError("a prompt must be UTF-8") from None
        ids = self._encode(prompt)
        if not ids and self.first is None:
            raise UserError("a prompt must have a token: the tokenizer has no BOS that could stand in for it")
        return ids or [self.first]

    def decode(self, ids):
        """The text of ids; what is no UTF-8 becomes U+FFFD."""
        return self.package.decode(ids, skip_special_tokens=False)


def of_manifest(path, bos_added=True):
    """The `Text` of a tokenizer's manifest. `bos_added`: whether the corpus' documents begin with BOS."""
    tokenizer = Tokenizer(path)
    first = export.first_token({"bos": tokenizer.bos, "eos": tokenizer.eos, "bos_added": bos_added})

    def encode(prompt):
        return [tokenizer.bos] * bos_added + tokenizer.encode([prompt])[0].tolist()

    return Text(_package(tokenizer.package), encode, first, {tokenizer.eos})


def of_directory(directory):
    """The `Text` of a Hugging Face directory, which gives the ids that transformers gives.

    Raises UserError where it has no tokenizer.json.
    """
    package = _package(directory / TOKENIZER)
    options = _read(directory / TOKENIZER_CONFIG)
    package.encode_special_tokens = bool(options.get("split_special_tokens"))  # a literal </s> is then only text
    config = _read(directory / "config.json") | _read(directory / "generation_config.json")
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    return Text(package, lambda prompt: package.encode(prompt).ids, config.get("bos_token_id"), set(ends) - {None})


def _read(path):
    """What a JSON file says; nothing where it is missing. Raises UserError unless it is a mapping."""
    found = files.read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold the mapping that transformers writes")
    return found


def _package(path):
    import tokenizers

    if not path.exists():
        raise UserError(f"{path.parent} must hold {path.name}, and does not; name a tokenizer with --tokenizer")
    try:
        package = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path} must be a tokenizer of Hugging Face's tokenizers: {error}") from None
    package.no_truncation()
    package.no_padding()
    return package


class Stream:
    """The text of tokens that come one by one after the ids of a prompt, in pieces that are never taken back.

    A character may be spread over several tokens, which are held until it is whole. Tokens are decoded behind those
    before them, since some decoders drop a space at the beginning of a text.
    """

    def __init__(self, text, prompt):
        self.text, self.before, self.held = text, list(prompt), []

    def push(self, token):
        """The text that became certain with a token: empty while a character is not yet whole."""
        self.held.append(token)
        piece = self._piece()
        if not piece or (piece.endswith("\ufffd") and len(self.held) < HELD):
            return ""
        self.before, self.held = self.held, []
        return piece

    def finish(self):
        """The text of what is still held."""
        return self._piece() if self.held else ""

    def _piece(self):
        before, after = self.text.decode(self.before), self.text.decode(self.before + self.held)
        if after.startswith(before):
            return after[len(before) :]
        return self.text.decode(self.held)  # bytes that are no UTF-8 spoil the decoding of valid ones beside them
