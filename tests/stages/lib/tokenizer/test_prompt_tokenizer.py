"""Prompts to ids as transformers gives them, and text that grows token by token."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from stages.lib.errors import UserError
from stages.lib.tokenizer import prompt_tokenizer

HARD = (
    "plain words, two  spaces",
    " leading space\n\n\ttabs and newlines\n",
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 e\u0301",
    "\U0001f469\u200d\U0001f469\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308",
    "a\ufffdb\ufffd",
)
SPECIAL = ("<unk>", "<s>", "</s>")


def bytes_tokenizer(strip=False):
    """A tokenizer as ours: letters, and bytes for everything else. `strip`: with Llama 2's space before a text."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    vocab_size = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocab_size, merges=[], unk_token="<unk>", byte_fallback=True))
    replace = normalizers.Replace(" ", "\u2581")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if strip else replace
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return made


def byte_level_tokenizer():
    """A tokenizer as Llama 3's: every byte is a letter."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


KINDS = {"ours": bytes_tokenizer, "llama 2": lambda: bytes_tokenizer(strip=True), "llama 3": byte_level_tokenizer}


@pytest.fixture(params=KINDS)
def tokenizer(request, tmp_path):
    """The `Text` of a directory with a tokenizer of each kind."""
    return written(tmp_path, KINDS[request.param]())


def written(directory, package, tokenizer_config=None, **config):
    """The `Text` of a Hugging Face directory."""
    package.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config or {}))
    (directory / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2} | config))
    return prompt_tokenizer.of_directory(directory)


def pieces(tokenizer, prompt, tokens):
    stream = prompt_tokenizer.Stream(tokenizer, tokenizer.encode(prompt) if prompt else [])
    return [stream.push(token) for token in tokens] + [stream.finish()]


@pytest.mark.parametrize("given", HARD)
@pytest.mark.parametrize("prompt", ["", "so", "\u65e5\u672c", "\U0001f466"])
def test_pieces_join_to_the_text_and_no_character_is_cut(tokenizer, given, prompt):
    tokens = tokenizer.encode(prompt + given)
    tokens = tokens[len(tokenizer.encode(prompt)) :] if prompt else [token for token in tokens if token != 1]
    made = pieces(tokenizer, prompt, tokens)
    assert "".join(made) == given
    assert "\ufffd" in given or not any("\ufffd" in piece for piece in made)


def test_a_piece_comes_with_the_token_that_makes_it_whole(tmp_path):
    ours = written(tmp_path, bytes_tokenizer())
    tokens = ours.encode("a\u65e5b")[1:]
    assert pieces(ours, "x", tokens) == ["a", "", "", "\u65e5", "b", ""]


@pytest.mark.parametrize("kind", ["ours", "llama 3"])
def test_bytes_that_are_no_text_hold_nothing_back_for_ever(tmp_path, kind):
    made = written(tmp_path, KINDS[kind]())
    byte, letter = made.encode("\U0001f466")[-1], made.encode("a")[-1]
    assert len("".join(pieces(made, "x", [byte] * 50)[:-1])) > 40
    assert "".join(pieces(made, "\u65e5", [byte, letter])) == "\ufffda"
    assert pieces(made, "x", [byte]) == ["", "\ufffd"]  # a text that ends in the middle of a character


def test_a_special_token_in_a_prompt_is_text_only_where_the_directory_says_so(tmp_path):
    assert written(tmp_path, bytes_tokenizer()).encode("a</s>") == [1, 260, 2]
    ids = written(tmp_path, bytes_tokenizer(), {"split_special_tokens": True}).encode("a</s>")
    assert 2 not in ids
    assert ids[:2] == [1, 260]


def test_an_empty_prompt_becomes_bos_and_one_of_lone_surrogates_is_refused(tmp_path):
    assert written(tmp_path, bytes_tokenizer()).encode("") == [1]
    assert written(tmp_path, byte_level_tokenizer()).encode("") == [1]
    with pytest.raises(UserError, match="a prompt must have at least one token"):
        written(tmp_path, byte_level_tokenizer(), bos_token_id=None).encode("")
    with pytest.raises(UserError, match="must be UTF-8"):
        written(tmp_path, bytes_tokenizer()).encode("a\udcff")


def test_a_prompt_is_not_cut_nor_padded_as_the_file_may_ask(tmp_path):
    package = bytes_tokenizer()
    package.enable_truncation(4)
    package.enable_padding(length=8)
    assert len(written(tmp_path, package).encode("abcdefgh")) == 9
    assert written(tmp_path, package).encode("a") == [1, 260]


@pytest.mark.parametrize(("eos", "ends"), [(2, {2}), ([2, 7], {2, 7}), (None, set())])
def test_ends_of_a_text(tmp_path, eos, ends):
    assert written(tmp_path, bytes_tokenizer(), eos_token_id=eos).ends == ends
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert prompt_tokenizer.of_directory(tmp_path).ends == {9}


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match=" lacks tokenizer.json; name a tokenizer with --tokenizer"):
        prompt_tokenizer.of_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="must be a tokenizer of Hugging Face's tokenizers"):
        prompt_tokenizer.of_directory(tmp_path)
