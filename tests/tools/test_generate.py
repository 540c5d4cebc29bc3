"""tools.generate: models in all forms, prompts, sampling, and refusals."""

import io
import itertools
import json
import shutil
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer

from stages import convert
from stages.lib import manifest
from stages.lib.checkpoints import find_model
from stages.lib.checkpoints.commit import COMMIT
from tests.helpers import training
from tests.helpers.data_fixtures import tiny_corpus
from tools.generate import __main__ as generate
from tools.generate import find_tokenizer

STEPS = 10
FORMS = {
    "milestone": f"runs/base/models/{STEPS:08d}.json",
    "checkpoint": f"runs/base/train/*/checkpoints/{STEPS:08d}",
    "run directory": "runs/base/train/*",
    "export": f"runs/base/export/{STEPS:08d}/manifest.json",
    "export's directory": f"runs/base/export/{STEPS:08d}",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory of results: tokenizer, corpus, a run of few steps, and its export in float32."""
    results = tmp_path_factory.mktemp("made") / "results"
    corpus = tiny_corpus(results)
    assert training.train(corpus, results / "runs/base", STEPS, steps=STEPS) == 0
    options = {
        "--model": results / FORMS["milestone"],
        "--corpus": corpus,
        "--tokenizer": results / "tokenizers/main/manifest.json",
        "--output": results / FORMS["export"],
        "--recipe": '{"dtype": "float32"}',
    }
    assert convert.main([str(word) for pair in options.items() for word in pair]) == 0
    return results


@pytest.fixture
def results(made, tmp_path):
    """A copy of the results, for tests that change something."""
    shutil.copytree(made, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def say(capsys):
    """Call the tool, which must succeed; returns its standard output."""

    def call(*arguments):
        capsys.readouterr()
        assert generate.main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def refusal(capsys):
    """Call the tool, which must refuse; returns the line."""

    def call(*arguments):
        capsys.readouterr()
        assert generate.main([*map(str, arguments)]) == 2
        found = capsys.readouterr()
        assert found.out == ""
        assert "Traceback" not in found.err
        *before, line = found.err.splitlines()
        assert len(before) <= 1  # the line on the model that is loaded
        return line

    return call


def model(results, form="milestone"):
    (found,) = results.glob(FORMS[form])
    return "--model", found


def checkpoint_of(results):
    return model(results, "checkpoint")[1]


@pytest.mark.parametrize("sampling", [("--temperature", 0), ("--temperature", 1, "--top-p", 1, "--seed", 3)])
def test_every_form_of_a_model_gives_the_same_text(made, say, sampling):
    texts = {form: say(*model(made, form), "--prompt", "ka ra", "--tokens", 40, *sampling) for form in FORMS}
    (text,) = set(texts.values())
    assert text.startswith("ka ra")
    assert text.endswith("\n")
    assert len(text) > 30


def test_text_is_written_while_it_is_generated(made, monkeypatch):
    seen = []
    monkeypatch.setattr(generate.sys, "stdout", io.StringIO())
    monkeypatch.setattr(generate.sys.stdout, "reconfigure", lambda **_: None, raising=False)
    monkeypatch.setattr(generate.sys.stdout, "flush", lambda: seen.append(generate.sys.stdout.getvalue()))
    assert generate.main([*map(str, model(made)), "--prompt", "ka", "--tokens", "12"]) == 0
    assert seen[0] == "ka"
    assert len(set(seen)) > 8
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))


def test_several_prompts_and_samples_each_have_a_line_above_them(made, say, tmp_path):
    (tmp_path / "prompt").write_bytes("ra \u65e5\r\n".encode())
    prompts = ("--prompt", "ka", "--prompt-file", tmp_path / "prompt", "--samples", 2)
    parts = say(*model(made), *prompts, "--tokens", 9).split("--- prompt ")
    titles, _, texts = zip(*(part.partition("\n") for part in parts[1:]), strict=True)
    assert titles == ("1, sample 1 ---", "1, sample 2 ---", "2, sample 1 ---", "2, sample 2 ---")
    assert texts[2].startswith("ra \u65e5\r\n")
    assert texts[0] != texts[1]
    assert texts[1] == say(*model(made), "--prompt", "ka", "--seed", 1, "--tokens", 9)


def test_a_text_ends_at_eos(results, capsys):
    found = find_model.find(checkpoint_of(results))
    llama, text = find_model.load(found, torch.float32, "cpu"), find_tokenizer.text_of(found)
    ids = text.encode("ka")
    with torch.inference_mode():
        end = int(llama.logits(torch.tensor([ids]))[0, -1].argmax())
    (export,) = results.glob(FORMS["export's directory"])
    (export / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, end]}))
    assert generate.main(["--model", str(export), "--prompt", "ka", "--temperature", "0", "--tokens", "5000"]) == 0
    found = capsys.readouterr()
    assert found.out == "ka\n"
    assert "last position" not in found.err


def test_a_text_ends_at_the_last_position(made, capsys):
    assert generate.main([*map(str, model(made)), "--prompt", "ka", "--temperature", "0", "--tokens", "5000"]) == 0
    assert "stopped at the model's last position (max_position_embeddings 64)" in capsys.readouterr().err


def test_a_run_directory_gives_its_newest_complete_checkpoint(results, say, capsys):
    (directory,) = results.glob(FORMS["run directory"])
    older = checkpoint_of(results).with_name("00000005")
    assert older.exists()
    expected = say("--model", older, "--prompt", "ka", "--temperature", 0)
    (checkpoint_of(results) / COMMIT).unlink()
    assert generate.main(["--model", str(directory), "--prompt", "ka", "--temperature", "0"]) == 0
    found = capsys.readouterr()
    assert found.out == expected
    assert "skipping a torn checkpoint" in found.err


def test_bos_is_added_before_a_prompt_as_in_the_corpus(results, capsys):
    found = find_model.find(checkpoint_of(results))
    assert find_tokenizer.text_of(found).encode("ka")[0] == 1
    corpus = manifest.read(results / "tokens/main/manifest.json")
    corpus.identity["tokenizer"]["bos_added"] = False
    manifest.write(corpus.path, corpus.stage, corpus.identity, corpus.record)
    found.commit["corpus"] = manifest.read(corpus.path).digest
    assert 1 not in find_tokenizer.text_of(found).encode("ka")
    assert find_tokenizer.text_of(found).encode("") == [2]  # the id before a document's first token
    corpus.path.unlink()
    assert find_tokenizer.text_of(found).encode("ka")[0] == 1


def test_the_tokenizer_is_found_behind_a_link_or_must_be_named(results, tmp_path, say, refusal):
    elsewhere = tmp_path / "disk" / "train"
    elsewhere.parent.mkdir()
    (results / "runs/base/train").rename(elsewhere)
    (results / "runs/base/train").symlink_to(elsewhere)
    options = ("--prompt", "ka", "--temperature", 0)
    expected = say(*model(results, "run directory"), *options)
    (alone,) = elsewhere.iterdir()
    assert "name its manifest with --tokenizer" in refusal("--model", alone, *options)
    tokenizer = results / "tokenizers/main/manifest.json"
    assert say("--model", alone, "--tokenizer", tokenizer, *options) == expected


def test_a_hugging_face_directory_without_a_tokenizer_takes_the_given_one(results, say, refusal):
    form, export = model(results, "export's directory")
    expected = say(form, export, "--prompt", "ka", "--temperature", 0)
    (export / "tokenizer.json").unlink()
    assert "lacks tokenizer.json" in refusal(form, export, "--prompt", "ka")
    tokenizer = results / "tokenizers/main/manifest.json"
    assert say(form, export, "--prompt", "ka", "--temperature", 0, "--tokenizer", tokenizer) == expected
    corpus = results / "tokens/main/manifest.json"
    assert "must be a tokenizer's manifest" in refusal(form, export, "--prompt", "ka", "--tokenizer", corpus)


def test_tokens_that_were_added_later_may_have_no_row_but_not_in_a_prompt(results, say, refusal):
    form, export = model(results, "export's directory")
    expected = say(form, export, "--prompt", "ka", "--seed", 2)
    package = Tokenizer.from_file(str(export / "tokenizer.json"))
    package.add_special_tokens(["<pad>"])
    package.save(str(export / "tokenizer.json"))
    (export / "tokenizer_config.json").unlink()
    assert say(form, export, "--prompt", "ka", "--seed", 2) == expected
    assert "prompt 1 must have ids under 320, found 320" in refusal(form, export, "--prompt", "ka<pad>")


def test_another_tokenizer_is_refused(results, refusal):
    tokenizer = manifest.read(results / "tokenizers/main/manifest.json")
    other = results / "tokenizers/main/other.json"
    manifest.write(other, tokenizer.stage, tokenizer.identity | {"sample": ""}, tokenizer.record)
    for form in ("milestone", "export"):
        line = refusal(*model(results, form), "--prompt", "ka", "--tokenizer", other)
        assert f"--tokenizer {other} is not the tokenizer " in line


BAD_OPTIONS = [
    (("--temperature", -0.5), "--temperature must be a number of at least 0, got -0.5"),
    (("--top-p", 0), "--top-p must be greater than 0 and at most 1, got 0.0"),
    (("--samples", 2, "--temperature", 0), "--samples must be 1 at --temperature 0"),
    (("--prompt", "ka" * 400), "prompt 2 must have at most the model's 64 tokens (max_position_embeddings), found"),
    (("--prompt", "a\udcff"), "a prompt must be UTF-8"),
    (("--prompt-file", "no such file"), "--prompt-file no such file cannot be read: No such file or directory"),
    (("--tokenizer", "no such file"), "--tokenizer must be a tokenizer's manifest: no such file cannot be read"),
    (("--device", "cuda"), "--device cuda needs a GPU"),
]


def test_options_out_of_bounds_and_paths_without_a_model_are_named(made, refusal, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options, sentence in BAD_OPTIONS:
        assert sentence in refusal(*model(made), "--prompt", "ka", *options)
    assert "--prompt or --prompt-file must give a text to continue" in refusal(*model(made))
    (tmp_path / "prompt").write_bytes(b"\xff")
    assert "must be UTF-8" in refusal(*model(made), "--prompt-file", tmp_path / "prompt")
    for path in ("tokens/main/manifest.json", "runs/base", "runs/base/models/00000999.json"):
        line = refusal("--model", made / path, "--prompt", "ka")
        assert f"generate: --model {made / path} must be a milestone's manifest, a checkpoint" in line
        assert line.endswith("does not exist" if "999" in path else "is another file or directory")


def test_a_torn_checkpoint_is_refused(results, refusal):
    directory = checkpoint_of(results)
    with open(directory / "__0_0.distcp", "ab") as file:
        file.write(b"more")
    for form in ("milestone", "checkpoint"):
        assert "__0_0.distcp must have" in refusal(*model(results, form), "--prompt", "ka")
    (directory / "commit.json").unlink()
    assert "is not a complete checkpoint: it has no commit.json" in refusal("--model", directory, "--prompt", "ka")
    shutil.rmtree(directory.with_name("00000005"))
    directory.rename(directory.with_name("gone"))
    line = refusal("--model", directory.parents[1], "--prompt", "ka")
    assert "holds no complete checkpoint" in line


CONTRADICTIONS = [
    ({"model": None}, "commit.json must have the key model, which is missing"),
    ({"model": training.MODEL | {"num_hidden_layers": 1}}, "must hold only the tensors of its model of 1 layers"),
    ({"model": training.MODEL | {"hidden_size": 64}}, "embedding.weight must have the shape [320, 64], found"),
    ({"vocab_size": 300}, "the tokenizer must have at most the 300 ids of the model"),
    ({"tokenizer": "0" * 64}, "holds the model's tokenizer as tokenizers/NAME/manifest.json"),
]


def test_a_checkpoint_that_contradicts_its_commit_is_refused(results, refusal):
    commit = checkpoint_of(results) / COMMIT
    content = commit.read_bytes()
    for keys, sentence in CONTRADICTIONS:
        training.change_commit(checkpoint_of(results), **keys)
        assert sentence in refusal("--model", checkpoint_of(results), "--prompt", "ka")
        commit.write_bytes(content)
    training.change_commit(checkpoint_of(results), step=9)  # the milestone is of the checkpoint before
    assert "commit.json" in refusal(*model(results), "--prompt", "ka")


FAILURES = [
    (KeyboardInterrupt(), 130, "generate: stopped by Ctrl-C"),
    (torch.OutOfMemoryError("Tried to allocate 20.00 GiB"), 2, "too little memory for this model with 1 samples in f"),
]


@pytest.mark.parametrize(("error", "code", "words"), FAILURES)
def test_ctrl_c_and_too_little_memory_end_in_one_line(made, monkeypatch, capsys, error, code, words):
    monkeypatch.setattr(find_model, "load", mock.Mock(side_effect=error))
    assert generate.main([*map(str, model(made)), "--prompt", "ka"]) == code
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_terminal_without_utf_8_does_not_end_a_text(made, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(generate.sys, "stdout", terminal)
    assert generate.main([*map(str, model(made)), "--prompt", "ka \u65e5", "--tokens", "5"]) == 0
    assert terminal.buffer.getvalue().startswith(b"ka ?")
