"""stages.convert: exports, their parity check, and refusals."""

import argparse
import dataclasses
import inspect
import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from stages import convert, index
from stages.lib import files, manifest
from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.huggingface import export
from stages.lib.log import logger
from stages.lib.parity import tokenizer_parity
from stages.lib.parity.parity import ParityError
from stages.lib.sources.examples import Conversation
from stages.lib.tokenizer.edge_cases import EDGE_CASES
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning.encoded_examples import ExampleEncoder
from tests.helpers import export_fixtures
from tests.helpers.data_fixtures import lines_listed, make, tokenized, trained
from tests.helpers.export_fixtures import argv_of, copied
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import identity_of, rewrite

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Inputs and an export of them, for tests that only read: (options, directory of the export)."""
    options = {**export_fixtures.write_inputs(tmp_path_factory.mktemp("made")), "--code": "c1"}
    assert convert.main(argv_of(options)) == 0
    return options, options["--output"].parent


@pytest.fixture
def inputs(made, tmp_path):
    """A copy of the inputs and their export, for tests that change something."""
    return copied(made[0], tmp_path)


def test_export_has_all_files_and_a_passed_parity_and_transformers_loads_it(made):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    options, directory = made
    identity = manifest.read(options["--output"]).identity
    names = {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert names <= set(identity["outputs"])
    assert all(manifest.describe(directory / name) == described for name, described in identity["outputs"].items())
    report = json.loads((directory / "parity.json").read_text())
    assert report["passed"] is True
    assert report["logits"]["max_difference"] <= 1e-4
    assert 0.5 < report["logits"]["std"] < 2
    assert report["checks"] == ["tensors", "blocks", "head", "whole model", "greedy text"]
    assert report["blocks"]["layers"] == 2
    assert report["first_block"]["tokens"] == 128  # the model's context
    assert report["tokenizer"]["code"]["texts"] > 0
    assert not (directory / ".partial").exists()

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert (model.dtype, model.config.max_position_embeddings) == (torch.bfloat16, 128)
    for config in (model.config, GenerationConfig.from_pretrained(directory)):
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)
    assert tokenizer.encode("a </s> b")[0] == 1 and 2 not in tokenizer.encode("a </s> b")
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("<unk>", 128)
    assert tokenizer(["a", "a b a b"], padding=True)["input_ids"][0][-1] == 0


def test_a_finished_export_is_not_made_again(inputs, monkeypatch):
    before = inputs["--output"].read_bytes()
    inputs["--output"].unlink()  # as Snakemake does before each attempt
    monkeypatch.setattr(export, "write_weights", None)  # a call fails
    assert convert.main(argv_of(inputs)) == 0
    assert inputs["--output"].read_bytes() == before


@pytest.mark.parametrize("change", ["code", "by hand", "weights", "parity"])
def test_changed_code_or_weights_convert_again(inputs, change):
    before = manifest.read(inputs["--output"])
    options = dict(inputs)
    if change == "code":
        options["--code"] = "c2"
    if change == "by hand":
        del options["--code"]
    if change == "weights":
        flip_bit(inputs["--output"].with_name(WEIGHTS))
    if change == "parity":
        inputs["--output"].with_name("parity.json").unlink()
    assert convert.main(argv_of(options)) == 0
    assert files.read_json(inputs["--output"].with_name("parity.json"))["passed"]
    after = manifest.read(inputs["--output"])
    assert after.identity == before.identity
    assert after.record["started"] >= before.record["started"]
    assert after.record["code"] == options.get("--code")
    assert manifest.describe(inputs["--output"].with_name(WEIGHTS)) == after.identity["outputs"][WEIGHTS]


def test_recipe_reaches_the_weights_and_a_large_model_is_compared_by_blocks_alone(inputs):
    recipe = {"--recipe": '{"dtype": "float32", "whole_model_parameters": 10000}', "--code": "c2"}
    assert convert.main(argv_of(inputs, **recipe)) == 0
    assert json.loads(inputs["--output"].with_name("config.json").read_text())["dtype"] == "float32"
    assert identity_of(inputs["--output"])["recipe"] == {"dtype": "float32"}
    report = json.loads(inputs["--output"].with_name("parity.json").read_text())
    assert report["checks"] == ["tensors", "blocks", "head"]
    assert report["greedy"] == {"prompts": 0, "text": []}
    assert report["logits"]["max_difference"] <= 1e-4
    assert 0.5 < report["logits"]["std"] < 2


def test_wrong_conversion_fails_and_names_the_layer(inputs, monkeypatch, capsys):
    inputs["--code"] = "c2"
    monkeypatch.setattr(export, "pairs_to_halves", lambda weight, heads: weight)
    assert convert.main(argv_of(inputs)) == 1
    assert "layer 0" in capsys.readouterr().err
    report = json.loads(inputs["--output"].with_name("parity.json").read_text())
    assert report["passed"] is False
    assert "layer 0" in report["failure"]
    assert not inputs["--output"].exists()
    assert not inputs["--output"].with_name(WEIGHTS).exists()


def mutate(inputs, monkeypatch, change):
    """Convert with `change(directory)` between writing and the parity check; return the failure in parity.json."""
    write = convert.write_export

    def write_and_change(directory, *arguments):
        parameters = write(directory, *arguments)
        change(directory)
        return parameters

    monkeypatch.setattr(convert, "write_export", write_and_change)
    inputs["--output"].unlink()
    assert convert.main(argv_of({**inputs, "--code": "changed"})) == 1
    assert not inputs["--output"].exists()
    return json.loads(inputs["--output"].with_name("parity.json").read_text())["failure"]


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_a_changed_setting_fails_and_is_named(inputs, monkeypatch, name):
    """Each key of any file: tests/stages/lib/parity/test_file_parity.py."""

    def change(directory):
        settings = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(settings | {"new": 5}))

    assert mutate(inputs, monkeypatch, change).startswith(f"{name}: new must be ")


def test_a_weight_of_another_shape_fails_without_a_page_of_text(inputs, monkeypatch, capsys):
    def change(directory):
        tensors = load_file(directory / WEIGHTS)
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(48, 31)
        save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})

    assert "model.layers.1.mlp.up_proj.weight" in mutate(inputs, monkeypatch, change)


def test_the_export_has_the_files_from_which_llama_cpp_makes_the_same_tokenizer(made):
    """Its converter reads tokenizer.model, and add_prefix_space of tokenizer_config.json."""
    model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")  # needs protobuf
    import sentencepiece
    from transformers import AutoTokenizer

    options, directory = made
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert (config["add_prefix_space"], config["tokenizer_class"]) == (False, "PreTrainedTokenizerFast")
    content = (directory / "tokenizer.model").read_bytes()
    theirs, processor = AutoTokenizer.from_pretrained(directory), sentencepiece.SentencePieceProcessor(None, content)
    for text in EDGE_CASES:
        assert theirs.encode(text, add_special_tokens=False) == processor.encode(text)
    before, after = model_pb2.ModelProto(), model_pb2.ModelProto()
    before.ParseFromString(options["--tokenizer"].with_name("tokenizer.model").read_bytes())
    after.ParseFromString(content)
    assert (after.pieces, after.normalizer_spec) == (before.pieces, before.normalizer_spec)
    kept, trained = after.trainer_spec, before.trainer_spec
    for name in ("model_type", "vocab_size", "byte_fallback", "unk_id", "bos_id", "eos_id", "pad_id", "unk_piece"):
        assert getattr(kept, name) == getattr(trained, name), name
    assert trained.num_threads == 4 != kept.num_threads and not kept.HasField("model_prefix") and not kept.input


def test_wrong_tokenizer_fails_and_names_the_text(inputs, capsys):
    path = inputs["--tokenizer"].with_name("tokenizer.json")
    described = json.loads(path.read_text())
    described["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, described["normalizer"]]}
    path.write_text(json.dumps(described))
    outputs = identity_of(inputs["--tokenizer"])["outputs"]
    tokenizer = rewrite(inputs["--tokenizer"], outputs=outputs | {path.name: manifest.describe(path)})
    facts = identity_of(inputs["--corpus"])["tokenizer"] | {"digest": tokenizer.digest}
    corpus = rewrite(inputs["--corpus"], tokenizer=facts)
    rewrite(inputs["--model"], corpus=corpus.digest, tokenizer=tokenizer.digest)
    assert convert.main(argv_of(inputs)) == 1
    assert "edge case" in capsys.readouterr().err
    assert not inputs["--output"].exists()


def test_corpus_without_bos_gives_an_export_without_bos(tmp_path):
    from transformers import AutoTokenizer

    corpus = export_fixtures.write_corpus(tmp_path, sources=["code"], bos=False)
    tokenizer = tmp_path / "tokenizers" / "main" / "manifest.json"
    model = export_fixtures.write_model(tmp_path, corpus)
    output = tmp_path / "export" / "manifest.json"
    argv = argv_of({"--model": model, "--corpus": corpus, "--tokenizer": tokenizer, "--output": output})
    assert convert.main(argv) == 0
    assert 1 not in AutoTokenizer.from_pretrained(output.parent).encode("return self")
    assert json.loads(output.with_name("config.json").read_text())["bos_token_id"] == 2


def checkpoint_of(model):
    return model.directory / model.identity["checkpoint"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: rewrite(model.path, corpus="0" * 64), ["{model}", "a different corpus"]),
        (lambda model: rewrite(model.path, tokenizer="0" * 64), ["{model}", "a different tokenizer"]),
        (lambda model: shutil.rmtree(checkpoint_of(model)), ["is missing, but", "delete {model}"]),
        (lambda model: flip_bit(next(checkpoint_of(model).glob("*.distcp"))), [".distcp changed"]),
    ],
)
def test_checkpoint_of_other_data_or_other_bits_is_refused(inputs, capsys, change, words):
    model, before = manifest.read(inputs["--model"]), inputs["--output"].read_bytes()
    change(model)
    assert convert.main(argv_of(inputs)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word.format(model=model.path) in line
    assert inputs["--output"].read_bytes() == before  # nothing was touched


def test_unigram_tokenizer_is_exported(tmp_path):
    """Its corpus has the ids of tokenizers: SentencePiece breaks ties of scores differently."""
    lines = inspect.getsource(argparse).splitlines(keepends=True)
    texts = [{"text": "".join(lines[at : at + 40])} for at in range(0, len(lines), 40)]
    source = lines_listed(tmp_path, texts, validation=0.5)
    tokenizer = trained(tmp_path, [source], vocab_size=600, sample={"a": 1}, sample_mb=0.2, model="unigram")
    parts = tokenized(tmp_path, "a", source, tokenizer)
    corpus = make(index, tokenizer=tokenizer, parts=parts, output=tmp_path / "tokens" / "main" / "manifest.json")
    model, output = export_fixtures.write_model(tmp_path, corpus), tmp_path / "export" / "manifest.json"
    options = {"--corpus": corpus, "--model": model, "--tokenizer": tokenizer, "--output": output}
    assert convert.main(argv_of(options)) == 0
    assert json.loads(output.with_name("parity.json").read_text())["tokenizer"]["a"]["tokens"] > 1000


NO_SPECIAL_TOKEN = st.characters(codec="utf-8", exclude_characters="<")  # a chat with "<s>" in a text is filtered
CHATS = st.lists(
    st.tuples(st.text(NO_SPECIAL_TOKEN, min_size=1, max_size=9), st.text("ab\n .\u00e9\u4e2d", min_size=1, max_size=9)),
    min_size=1,
    max_size=3,
).map(lambda made: [text.strip() or "x" for pair in made for text in pair])


@pytest.fixture(scope="module", params=["chatml", "tulu"])
def tuned(request, tmp_path_factory):
    """(directory of the export of a model that was tuned on chats, encoder of the training)."""
    options = export_fixtures.write_inputs(tmp_path_factory.mktemp("tuned"))
    text = chat_templates.text_of(request.param, "finetune.template")
    rewrite(options["--model"], template=text)
    assert convert.main(argv_of(options)) == 0
    tokenizer = Tokenizer(options["--tokenizer"])
    template = ChatTemplate(text, special_tokens(tokenizer.manifest), request.param)
    return options["--output"].parent, ExampleEncoder(tokenizer=tokenizer, bos=True, template=template)


def test_chats_have_the_ids_and_the_mask_of_the_exported_tokenizer(tuned):
    from transformers import AutoTokenizer

    directory, encoder = tuned
    exported = AutoTokenizer.from_pretrained(directory)
    assert json.loads((directory / "parity.json").read_text())["tokenizer"]["chats"]["conversations"] > 20

    @settings(max_examples=30, deadline=None)
    @given(CHATS)
    def check(texts):
        roles = ("user", "assistant") * (len(texts) // 2)
        chat = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        (encoded,) = encoder.encode([Conversation("a.jsonl:1", chat, "train")])
        found = exported.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        assert encoded.ids.tolist() == found["input_ids"]
        assert encoded.ids[0] == exported.bos_token_id
        assert encoded.is_target.tolist() == list(map(bool, found["assistant_masks"]))
        turns = exported.decode(encoded.ids[encoded.is_target])
        assert turns == "".join(f"{text}</s>" for text in texts[1::2])
        assert encoded.num_bytes == len("".join(texts[1::2]).encode())
        last = dataclasses.replace(encoder, loss_on="last").encode([Conversation("a.jsonl:1", chat, "train")])[0]
        assert exported.decode(last.ids[last.is_target]) == f"{texts[-1]}</s>"
        (every,) = dataclasses.replace(encoder, loss_on="all").encode([Conversation("a.jsonl:1", chat, "train")])
        assert every.is_target.tolist() == [False] + [True] * (len(every.ids) - 1)

    check()


def test_a_template_without_eos_gets_one_after_the_last_turn(tuned, caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)  # the stage has set it
    _, encoder = tuned
    text = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    text += "{{ '[assistant]' if add_generation_prompt }}"
    template = ChatTemplate(text, encoder.template.special_tokens, "mine")
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    encoder = dataclasses.replace(encoder, template=template)
    (encoded,) = encoder.encode([Conversation("a.jsonl:1", chat, "train")])
    assert encoded.ids[-1] == 2 and encoded.is_target[-1]
    assert encoder.tokenizer.decode(encoded.ids[encoded.is_target].tolist()) == "b[/]"
    assert not caplog.text
    (open_end,) = encoder.encode([Conversation("a.jsonl:1", [*chat, chat[0]], "train")])
    assert 2 not in open_end.ids
    assert "the chat template writes no EOS after 1 turns with messages behind" in caplog.text


def test_a_chat_with_the_text_of_a_special_token_is_filtered(tuned, caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)  # the stage has set it
    _, encoder = tuned
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "b"}] for text in ("a", "<s>a</s>")]
    assert len(encoder.encode([Conversation("a.jsonl:1", chat, "train") for chat in chats])) == 1
    assert "1 of 2 conversations are filtered: they hold the text of a special token" in caplog.text
    for call in ({"name": "f", "arguments": {"a": ["</s>"]}}, {"name": "f", "arguments": {"</s>": 1}}):
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": call}]}]
        assert not encoder.encode([Conversation("a.jsonl:1", chat, "train")])


def test_a_chat_template_that_changed_fails_the_parity(tuned, tmp_path):
    directory, encoder = tuned
    exported = tokenizer_parity.load_tokenizer(directory)
    template = encoder.template.text
    with pytest.raises(ParityError, match="the export's chat template differs from the training's"):
        tokenizer_parity.compare_chats(exported, encoder.tokenizer, template + "x", ["a"])
    exported = tokenizer_parity.load_tokenizer(directory, split_special_tokens=True)
    with pytest.raises(ParityError, match="the export gives a conversation other token ids than the training: .*'a'$"):
        tokenizer_parity.compare_chats(exported, encoder.tokenizer, template, ["a"])
