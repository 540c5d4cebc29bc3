"""Fine-tuning by its command line: only completions are learnt, with their end, on any ranks; test_dpo.py has kills."""

import json
import math
import random
import re
import shutil

import numpy as np
import pytest
import torch

from stages import convert, evaluate, finetune
from stages.lib import manifest
from stages.lib.checkpoints import find_model
from stages.lib.huggingface import config_json
from stages.lib.model import key_table
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.loss import IGNORED
from stages.lib.sources import examples
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.loader import share_of
from stages.lib.tuning import tuning_samples
from stages.lib.tuning.encoded_examples import ExampleEncoder
from tests.helpers import training
from tests.helpers.data_fixtures import listed, tiny_corpus, write_jsonl
from tests.helpers.export_fixtures import argv_of
from tests.helpers.manifests import rewrite
from tests.helpers.training import BASE_STEPS, milestone, run_directory, steps_of, weights_of
from tools import replay_ledger
from tools.generate import __main__ as generate

SEQ_LEN = 48
RECIPE = {
    "weights": {"animals": 1},
    "seq_len": SEQ_LEN,
    "global_batch_size": 6,
    "dtype": "float32",
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"warmup_steps": 5},
}
OPERATION = training.OPERATION | {"validation": {"every": 1000, "tokens": 2000}}
ANIMALS = ("camel", "horse", "goat", "mule", "ox")
SOUNDS = ("grunts", "neighs", "bleats aloud", "brays and brays again", "lows")


def pairs_of(count):
    """Pairs whose completion is long or short by what the prompt names."""
    chance = random.Random(count)
    for number in range(count):
        kind = chance.randrange(len(ANIMALS))
        yield {"prompt": f"The {ANIMALS[kind]} no. {number} ", "completion": f"{SOUNDS[kind]}."}


def pairs_listed(directory, entries, name="animals", **source):
    """The list of a source of pairs, a fifth of them for validation."""
    path = write_jsonl(directory / f"{name}.jsonl", entries)
    return listed(directory, name, {"kind": "prompt_completion", "paths": [path], "validation": 0.2} | source)


@pytest.fixture(scope="module")
def made(pretrained):
    """The results of `pretrained`, and the list of a source of pairs."""
    pairs_listed(pretrained, pairs_of(60))
    return pretrained


def options(made, run, until, recipe=RECIPE, previous=None, given=None, extra=(), **operation):
    """The arguments of stages.finetune for a milestone of the run in the directory `run`.

    `given`: other inputs; `extra`: more arguments.
    """
    inputs = {
        "--sources": made / "sources/animals/list.json",
        "--corpus": made / "tokens/main/manifest.json",
        "--tokenizer": made / "tokenizers/main/manifest.json",
        "--initial": milestone(made / "runs/base", BASE_STEPS),
    }
    inputs |= given or {}
    arguments = []
    for option, value in inputs.items():
        arguments += [option, *map(str, value if isinstance(value, list) else [value])]
    arguments += ["--until", str(until), "--train-dir", str(run / "train"), "--output", str(milestone(run, until))]
    arguments += ["--recipe", json.dumps(recipe), "--operation", json.dumps(_given(OPERATION | operation))]
    arguments += ["--previous", str(milestone(run, previous))] if previous else []
    return [*arguments, "--log", str(run / "log"), *extra]


def _given(keys):
    return {key: value for key, value in keys.items() if value is not None}


def tune(*arguments, **keywords):
    """Run the stage in this process; returns its exit code."""
    return finetune.main(options(*arguments, **keywords))


@pytest.fixture(scope="module")
def uninterrupted(made, tmp_path_factory):
    """A run of 30 steps that nothing disturbed."""
    run = tmp_path_factory.mktemp("uninterrupted")
    assert tune(made, run, 30) == 0
    return run


def encoded(made, side):
    source = examples.read_pairs(made / "sources/animals/list.json")
    encoder = ExampleEncoder(tokenizer=Tokenizer(made / "tokenizers/main/manifest.json"), bos=True)
    return encoder.encode(getattr(source, side))


def loss_of(model, some):
    """Nats a token of the completions and their ends, each pair read alone."""
    total = count = 0
    with torch.inference_mode():
        for pair in some:
            ids = torch.from_numpy(pair.ids).long()
            scores = model.logits(ids[None, :-1])[0].double().log_softmax(-1)
            total -= scores.gather(1, ids[1:, None])[pair.is_target[1:]].sum().item()
            count += pair.is_target.sum()
    return total / count


def test_loss_is_that_of_completions_and_their_ends_alone(made, tmp_path):
    train, validation = encoded(made, "train"), encoded(made, "validation")
    rows = tuning_samples.Rows(train, SEQ_LEN, end=2, seed=0)
    assert any(len(members) > 1 for members in rows.members)  # pairs lie beside each other, and must not see it
    recipe = RECIPE | {"global_batch_size": len(rows), "optimizer": {"learning_rate": 1e-12}}
    assert tune(made, tmp_path, 1, recipe=recipe, micro_batch_size=1) == 0
    model = find_model.load(find_model.find(milestone(made / "runs/base", BASE_STEPS)), torch.float32, "cpu")
    assert steps_of(tmp_path)[0]["loss"] == pytest.approx(loss_of(model, train), abs=1e-5)
    recorded = json.loads(milestone(tmp_path, 1).read_text())["record"]["validation"]["animals"]
    assert recorded["loss"] == pytest.approx(loss_of(model, validation), abs=1e-5)


@pytest.mark.long
def test_tuned_model_says_the_completion_and_stops(made, tmp_path, capsys):
    few = list(pairs_of(60))[:8]
    given = {"--sources": pairs_listed(tmp_path, few, "few", validation=0.3)}
    learnt = examples.read_pairs(given["--sources"]).train
    recipe = RECIPE | {"weights": {"few": 1}, "global_batch_size": 2}
    recipe["optimizer"] = {"learning_rate": 1e-2, "weight_decay": 0}
    run = made / "runs/few"  # below the results, where generate finds the tokenizer
    assert tune(made, run, 300, recipe=recipe, given=given, steps=300, checkpoint={"every": 300}) == 0
    assert steps_of(run)[-1]["loss"] < 0.05
    for pair in learnt:
        capsys.readouterr()
        arguments = ["--model", str(milestone(run, 300)), "--prompt", pair.prompt, "--temperature", "0"]
        assert generate.main([*arguments, "--tokens", "40"]) == 0
        assert capsys.readouterr().out == f"{pair.prompt}{pair.completion}\n"


@pytest.mark.long
def test_unequal_completions_of_the_ranks_change_nothing_in_float64(made, tmp_path):
    train = encoded(made, "train")
    samples = tuning_samples.TuningSamples({"animals": train}, {"animals": 1}, SEQ_LEN, 0, end=2)
    counts = [np.count_nonzero(samples.batch(share_of(0, rank, 3, 6))[1] != IGNORED) for rank in range(3)]
    assert len(set(counts)) > 1
    losses = []
    for ranks in (1, 2, 3):
        run = tmp_path / str(ranks)
        recipe = RECIPE | {"dtype": "float64"}
        training.run_on(ranks, "stages.finetune", *options(made, run, 30, recipe=recipe, micro_batch_size=1))
        losses.append([entry["loss"] for entry in steps_of(run)])
    assert len(losses[0]) == 30
    for other in losses[1:]:
        assert max(abs(a - b) for a, b in zip(losses[0], other, strict=True)) < 1e-9


EPOCHS = {"steps": None, "epochs": 2}


def test_epochs_are_the_steps_that_have_each_row_so_often(made, tmp_path):
    assert tune(made, tmp_path, 1, **EPOCHS) == 0
    first = manifest.read(milestone(tmp_path, 1))
    rows = first.record["data"]["rows"]["animals"]
    steps = [math.ceil(epochs * rows / RECIPE["global_batch_size"]) for epochs in (1, 2)]
    assert (first.identity["step"], first.record["horizon"]) == (steps[0], {"steps": steps[1]})
    assert tune(made, tmp_path, 2, previous=1, **EPOCHS) == 0
    last = steps_of(tmp_path)[-1]
    assert last["step"] == steps[1] and 2 <= last["source_epochs"]["animals"] < 2 + RECIPE["global_batch_size"] / rows
    assert tune(made, tmp_path / "steps", steps[1], steps=steps[1]) == 0
    assert weights_of(tmp_path / "steps", steps[1]) == weights_of(tmp_path, steps[1])


def test_manifest_names_the_data_and_the_model_that_was_tuned(made, uninterrupted):
    initial = manifest.read(milestone(made / "runs/base", BASE_STEPS))
    base, tuned = initial.identity, manifest.read(milestone(uninterrupted, 30)).identity
    assert tuned["recipe"]["model"] == base["recipe"]["model"]
    assert (tuned["corpus"], tuned["tokenizer"]) == (base["corpus"], base["tokenizer"])
    assert tuned["tuned_on"] == {"animals": examples.read_pairs(made / "sources/animals/list.json").digest}
    assert tuned["initial"] == manifest.checkpoint_digest(initial)


def test_checkpoint_of_ibm_fms_is_tuned_by_its_config(made, tmp_path, capsys):
    recipe = LlamaRecipe(**training.MODEL)
    found = find_model.find(milestone(made / "runs/base", BASE_STEPS))
    torch.save(found.read(list(key_table.build(recipe, 320).by_key)), tmp_path / "model.pth")
    config = config_json.config_of(recipe, {"vocab_size": 320, "bos": 1, "eos": 2, "bos_added": True}, "float32")
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {"--initial": tmp_path / "model.pth", "--initial-config": tmp_path / "config.json"}
    assert tune(made, tmp_path / "fms", 3, given=given) == 0
    assert tune(made, tmp_path / "own", 3) == 0
    assert weights_of(tmp_path / "fms", 3) == weights_of(tmp_path / "own", 3)
    assert "does not hold its config: " in refused(capsys, made, tmp_path, given={"--initial": given["--initial"]})
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    line = refused(capsys, made, tmp_path, given=given)
    assert f"{tmp_path / 'config.json'}: vocab_size is " in line


def converted(made, model, directory, **recipe):
    """Convert a milestone, in float32 unless the recipe has another dtype; return the exit code."""
    inputs = {"--corpus": made / "tokens/main/manifest.json", "--tokenizer": made / "tokenizers/main/manifest.json"}
    recipe = {"--recipe": json.dumps({"dtype": "float32"} | recipe)}
    return convert.main(argv_of(inputs | recipe | {"--model": model, "--output": directory / "manifest.json"}))


def scores(made, run, model, source=None):
    """An export of a milestone, and its scores by the validation pairs of a source, `animals` by default."""
    assert converted(made, model, run / "export", dtype="bfloat16") == 0
    inputs = {"--export": run / "export/manifest.json", "--corpus": made / "tokens/main/manifest.json"}
    inputs["--prompt-completion"] = source or made / "sources/animals/list.json"
    inputs["--output"] = run / "eval/00000030/animals.json"
    recipe = json.dumps({"tasks": ["completion_bits", "bits_per_byte"], "bytes_per_source": 2000})
    assert evaluate.main(argv_of(inputs, **{"--recipe": recipe})) == 0
    return manifest.read(inputs["--output"]).identity["results"]


def test_tuned_model_is_exported_and_scored_as_the_one_before(made, uninterrupted, tmp_path):
    before = scores(made, tmp_path / "before", milestone(made / "runs/base", BASE_STEPS))
    after = scores(made, tmp_path / "after", milestone(uninterrupted, 30))
    assert before.keys() == after.keys()
    first, second = (found["completion_bits"]["bits_per_byte"] for found in (before, after))
    assert first["value"] - second["value"] > 3 * (first["stderr"] + second["stderr"]) > 0


HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("recipe", "operation", "sentence"),
    [
        ({"weights": {"a": 1}}, {}, "--sources must be the lists of the sources of finetune.weights (a), got animals"),
        ({"template": "chatml"}, {}, "finetune.template must be left out: no source of finetune.weights has conversat"),
        ({"seq_len": 65}, {}, "finetune.seq_len must be at most max_position_embeddings of --initial (64), got 65"),
        ({"seq_len": 4}, {}, "the training split of source animals must have an example of at most seq_len (4) tokens"),
        ({}, {"steps": 3}, "--until must be at most finetune.steps (3), got 4"),
        ({}, {"steps": 3, "epochs": 4}, "finetune must have steps or epochs, got both"),
        ({}, {"steps": None}, "finetune must have steps or epochs, got neither"),
        ({}, EPOCHS | {"global_batch_size": "auto"}, "finetune.global_batch_size must be a number without finetune.st"),
        (HALF | {"lora": {"rank": 2}, "float8": True}, {}, "finetune.float8 must be false with finetune.lora"),
        (HALF | {"lora": {"rank": 2}, "weights_dtype": "bfloat16"}, {}, "finetune.weights_dtype must be left out with"),
        ({}, {"cuda_graphs": True}, "finetune.cuda_graphs must be false with a mask by document"),
        ({}, {"steps": None, "epochs": 3}, "--until must be at most finetune.epochs (3), got 4"),
        (
            {"global_batch_size": 1 << 20},
            {"steps": None, "epochs": 4, "micro_batch_size": 1},
            "finetune.global_batch_size must be at most the samples of an epoch (",
        ),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(made, tmp_path, capsys, recipe, operation, sentence):
    assert refused(capsys, made, tmp_path, recipe=RECIPE | recipe, **operation).startswith(f"finetune: {sentence}")


def chats_of(count):
    """Conversations of two turns each."""
    for number, pair in enumerate(pairs_of(count)):
        texts = (pair["prompt"], pair["completion"], "And then?", f"{number}!")
        roles = ("user", "assistant") * 2
        yield {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}


def lists_of_all(made, directory):
    """Lists of sources of each form: pairs, conversations and text."""
    path = write_jsonl(directory / "chats.jsonl", chats_of(40))
    chats = listed(directory, "chats", {"kind": "chat", "paths": [path], "validation": 0.3})
    return [made / "sources/animals/list.json", chats, made / "sources/a/list.json"]


def replayed(made, lists, run):
    """The exit code of tools.replay_ledger for a run."""
    inputs = ["--corpus", made / "tokens/main/manifest.json", "--tokenizer", made / "tokenizers/main/manifest.json"]
    return replay_ledger.main([*map(str, [*inputs, "--sources", *lists, "--run", run_directory(run)])])


ALL = {"weights": {"animals": 2, "chats": 1, "a": 1}, "template": "tulu", "too_long": "truncate", "seq_len": 64}


def test_mixture_of_pairs_chats_and_text_is_tuned_on_and_validated(made, tmp_path):
    given = {"--sources": lists_of_all(made, tmp_path)}
    for packing in ("best_fit", "none"):
        run = tmp_path / packing
        assert tune(made, run, 4, recipe=RECIPE | ALL | {"global_batch_size": 8, "packing": packing}, given=given) == 0
        tuned = manifest.read(milestone(run, 4))
        assert set(tuned.record["validation"]) == set(tuned.identity["tuned_on"]) == {"animals", "chats", "a"}
        assert tuned.identity["template"].startswith("{{ bos_token }}")
        assert steps_of(run)[-1]["source_tokens"] == {"animals": 1024, "chats": 512, "a": 512}
        assert replayed(made, given["--sources"], run) == 0
        steps = run_directory(run) / "metrics.jsonl"
        lines = steps.read_text().splitlines()
        steps.write_text("\n".join(line for line in lines if json.loads(line).get("step") != 2) + "\n")
        assert replayed(made, given["--sources"], run) == 2
    rows = tuned.record["data"]["rows"]
    assert rows["animals"] == len(encoded(made, "train"))  # the last run's: one per example


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"template": None}, "finetune.template is missing: source chats has conversations, and the initial model has"),
        ({"template": "none.jinja"}, "finetune.template must be chatml, tulu or a file, and none.jinja cannot be read"),
    ],
)
def test_mistake_in_the_data_of_a_mixture_is_one_line(made, tmp_path, capsys, recipe, sentence):
    given = {"--sources": lists_of_all(made, tmp_path)}
    recipe = _given(RECIPE | ALL | recipe)
    assert refused(capsys, made, tmp_path, recipe=recipe, given=given).startswith(f"finetune: {sentence}")


def test_examples_that_cannot_be_trained_on_are_named_before_anything_is_trained(made, tmp_path, capsys):
    (tmp_path / "mine.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    chats = RECIPE | ALL | {"weights": {"chats": 1}, "template": str(tmp_path / "mine.jinja")}
    pairs = [*pairs_of(9)]
    without = pairs_listed(tmp_path / "without", [*pairs[:3], {"prompt": "The ox "}])
    for source, recipe, sentence in (
        (lists_of_all(made, tmp_path)[1], chats, "mine.jinja: roles must alternate"),
        (without, RECIPE, "animals.jsonl, line 4 must have the field completion, got prompt"),
        (pairs_listed(tmp_path, pairs, validation=0), RECIPE, "the validation split of source animals is empty"),
    ):
        assert sentence in refused(capsys, made, tmp_path, recipe=recipe, given={"--sources": source})
    entries = [{"messages": chat["messages"] + [{"role": "user", "content": "</s>"}]} for chat in chats_of(20)]
    recipe = {"kind": "chat", "paths": [write_jsonl(tmp_path / "filtered.jsonl", entries)], "validation": 0.3}
    given = {"--sources": listed(tmp_path / "filtered", "chats", recipe)}
    assert tune(made, tmp_path, 4, recipe=chats | {"template": "tulu"}, given=given) == 2
    warning, line = capsys.readouterr().err.splitlines()[-2:]
    assert "conversations are filtered: they hold the text of a special token (" in warning
    assert line.endswith("has only conversations with the text of a special token")


def test_what_does_not_reach_the_model_is_said(made, tmp_path):
    chats = [chat | {"tools": [{"name": "f"}], "system": "Be brief.", "documents": []} for chat in chats_of(20)]
    for chat in chats:
        calls = [{"name": "f", "arguments": "{broken"}]
        chat["messages"][-1] |= {"reasoning": "hm", "name": "Kim", "id": 3, "tool_calls": calls}
    calls = "{% for call in m.tool_calls %}{{ call.name }}{% endfor %}{{ m.tool_call_id }}"
    text = f"{{% for m in messages %}}{{{{ m.role }}}} {{{{ m.content }}}}{calls}</s>\n{{% endfor %}}"
    (tmp_path / "mine.jinja").write_text(text)
    path = write_jsonl(tmp_path / "made/chats.jsonl", chats)
    source = listed(tmp_path / "made", "chats", {"kind": "chat", "paths": [path], "validation": 0.2})
    recipe = RECIPE | ALL | {"weights": {"chats": 1}, "template": str(tmp_path / "mine.jinja"), "steps": 1}
    assert tune(made, tmp_path / "run", 1, recipe=recipe | {"schedule": {}}, given={"--sources": source}) == 0
    told = (tmp_path / "run/log").read_text()
    keys = re.search(r"keys of conversations that the chat template does not read: (.*)", told)
    assert re.sub(r" \(\d+\)", "", keys[1]) == "id, name, reasoning_content, tools"
    assert "whose arguments are text, no JSON object: " in told
    assert "fields of records that do not reach the model: system (20)\n" in told


def refused(capsys, made, run, **keywords):
    """Fine-tune, which must be refused before there is a run directory; returns the line."""
    capsys.readouterr()
    assert tune(made, run, 4, **keywords) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not (run / "train").exists()
    return line


def test_rows_without_an_id_stay_in_the_export_and_are_never_generated(made, tmp_path, capsys):
    import transformers

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Qwen3Config(
        **shape, vocab_size=384, num_hidden_layers=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False
    )
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[320:] *= 50  # far more probable than any token, or far less
    model.save_pretrained(tmp_path / "qwen")
    shutil.copy(made / "tokenizers/main/tokenizer.json", tmp_path / "qwen")
    assert tune(made, tmp_path, 1, recipe=RECIPE | {"steps": 1}, given={"--initial": tmp_path / "qwen"}) == 0
    assert "--initial has 384 rows for the 320 ids of the tokenizer" in (tmp_path / "log").read_text()
    export = tmp_path / "export/00000001"
    assert converted(made, milestone(tmp_path, 1), export, dtype="bfloat16") == 0
    exported = transformers.AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    assert exported.config.vocab_size == 384 and exported.lm_head.weight.shape[0] == 384
    prompts = torch.arange(3, 43)[:, None]
    texts = exported.generate(prompts, max_new_tokens=4, do_sample=False)
    assert (exported(prompts).logits[:, -1].argmax(-1) >= 320).any() and texts.max() < 320
    tokenizer = ["--tokenizer", made / "tokenizers/main/manifest.json"]
    for path, extra in ((export, []), (milestone(tmp_path, 1), tokenizer)):
        options = ["--model", path, "--prompt", "The camel no. 3 ", "--tokens", "4", "--temperature", "0", *extra]
        assert generate.main(list(map(str, options))) == 0


def test_what_does_not_belong_together_is_refused(made, tmp_path, capsys):
    corpus = tiny_corpus(tmp_path / "other", documents=60, vocab_size=300)
    tokenizer = tmp_path / "other/tokenizers/main/manifest.json"
    line = refused(capsys, made, tmp_path, given={"--tokenizer": tokenizer})
    assert line.startswith(f"finetune: --tokenizer {tokenizer} is not the tokenizer of --corpus ")
    line = refused(capsys, made, tmp_path, given={"--tokenizer": tokenizer, "--corpus": corpus})
    assert "must have the vocab_size of the data's tokenizer (300), got 320" in line
    changed = shutil.copytree(made / "tokens/main", tmp_path / "tokens") / "manifest.json"
    rewrite(changed, recipe={"parts": 7})
    line = refused(capsys, made, tmp_path, given={"--corpus": changed})
    assert f"--corpus {changed} is not the corpus that --initial " in line
    line = refused(capsys, made, tmp_path, given={"--initial": tmp_path / "nowhere"})
    assert f"--initial {tmp_path / 'nowhere'} must be a milestone's manifest" in line
