"""config/tulu.yaml: the stages take their parts, and it runs on generated conversations and a tiny Qwen3."""

import io
import json
import random

import pytest
import yaml

from scripts.config_check import checked
from stages.finetune import FinetuneRecipe
from stages.lib import recipe
from stages.lib.sources.source import SourceRecipe
from tests.helpers import custom_tokenizers
from tests.helpers.data_fixtures import write_jsonl
from tests.test_end_to_end import snakemake
from tests.workflow.checkout import HOME
from tools.generate import __main__ as generate

TEXT = (HOME / "config/tulu.yaml").read_text(encoding="utf-8")
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
SCORED = ("tulu/eval/epoch001", "tulu/eval/epoch002", "dpo/eval/00000003")
WORDS = ("camel", "well", "rope", "lamp", "tent", "bell", "coin", "map")


def test_the_stages_take_their_parts():
    config = checked(yaml.safe_load(TEXT))
    plan = recipe.load(FinetuneRecipe, config["runs"]["tulu"]["finetune"], "finetune")
    assert (plan.optimizer.learning_rate, plan.schedule.kind, plan.loss_on) == (2e-5, "linear", "assistant")
    plan.check_ranks(8, "finetune")
    for source in config["sources"].values():
        recipe.load(SourceRecipe, source, "list")


def conversation(chance, number):
    """Return messages of one to three turns; every third conversation has a system prompt."""
    messages = [{"role": "system", "content": "Repeat."}] if chance.random() < 1 / 3 else []
    for turn in range(chance.randint(1, 3)):
        word = chance.choice(WORDS)
        asked = {"role": "user", "content": f"{number}.{turn}: say {word}."}
        messages += [asked, {"role": "assistant", "content": f"{word}!"}]
    return messages


def preference(chance, number):
    """Return a conversation with two answers to its last message, the first of them better."""
    *before, answer = conversation(chance, number)
    return {"chosen": [*before, answer], "rejected": [*before, answer | {"content": "No."}]}


def write_inputs(directory):
    """Write conversations as parquet, preferences, and a Hugging Face directory, where the config has them."""
    import pyarrow as pa
    import transformers
    from pyarrow import parquet

    chance = random.Random(0)
    (directory / "data/tulu/data").mkdir(parents=True)
    table = pa.table({"messages": [conversation(chance, number) for number in range(400)]})
    parquet.write_table(table, directory / "data/tulu/data/train-00000.parquet")
    write_jsonl(directory / "choices.jsonl", [preference(chance, number) for number in range(60)])
    model = directory / "models/Llama-2-7b-hf"
    tokenizer = json.loads(custom_tokenizers.write(model / "tokenizer.json").read_text())
    ids = {text: tokenizer_id(tokenizer, text) for text in (custom_tokenizers.BOS, custom_tokenizers.EOS)}
    # the other architecture: test_chess.py tunes a Llama
    shape = transformers.Qwen3Config(
        **TINY,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]),
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=ids[custom_tokenizers.BOS],
        eos_token_id=ids[custom_tokenizers.EOS],
    )
    transformers.Qwen3ForCausalLM(shape).save_pretrained(model)


def tokenizer_id(tokenizer, text):
    """Return the id of a special token of a tokenizer.json."""
    return next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == text)


@pytest.mark.long
def test_it_and_preferences_after_it_run_on_a_tiny_model_of_transformers(tmp_path, capsys, monkeypatch):
    write_inputs(tmp_path)
    config = yaml.safe_load(TEXT)
    config["sources"]["tulu"]["validation"] = 0.1
    config["sources"]["choices"] = {"kind": "preference", "paths": ["choices.jsonl"], "validation": 0.3}
    config["tokenizers"]["llama2"] |= {"bos": custom_tokenizers.BOS, "eos": custom_tokenizers.EOS}
    config["suites"]["validation"] = {"tasks": ["bits_per_byte"], "bytes_per_source": 2000}
    tulu = config["runs"]["tulu"]
    tulu["finetune"] |= {"epochs": 2, "milestones": [1, 2], "seq_len": 128, "global_batch_size": 16}
    tulu["finetune"]["schedule"]["warmup_steps"] = 1
    keys = ("seq_len", "global_batch_size", "optimizer", "schedule", "micro_batch_size")
    config["runs"]["dpo"] = {
        "initial": {"run": "tulu", "step": 2},
        "finetune": {key: tulu["finetune"][key] for key in keys}
        | {"weights": {"choices": 1}, "steps": 3, "dpo": {"beta": 0.1}, "lora": {"rank": 4}},
        "convert": {"merge": False},
        "suites": ["validation"],
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = tmp_path / "results/runs"
    exports = [runs / "tulu/export/epoch001", runs / "tulu/export/epoch002", runs / "dpo/export/00000003"]
    for export in exports:
        assert "<|assistant|>" in (export / "chat_template.jinja").read_text()
    cards = [(export / "README.md").read_text() for export in exports]
    assert "| tuned from | `Llama-2-7b-hf` |" in cards[1] and "| tuned from | `tulu, epoch 2` |" in cards[2]
    assert "direct preference optimization (DPO), beta 0.1; LoRA of rank 4" in cards[2]
    assert "| adapters | `adapter`, in peft's format" in cards[2]
    assert json.loads((exports[2] / "adapter/adapter_config.json").read_text())["r"] == 4
    scores = [json.loads((runs / run / "validation.json").read_text())["identity"]["results"] for run in SCORED]
    assert scores[0].keys() == scores[1].keys() == scores[2].keys()
    summary = (tmp_path / "results/summary.txt").read_text()
    assert "steps, fine-tuned from models/Llama-2-7b-hf," in summary
    assert "in 3 steps, fine-tuned from tulu at step " in summary and " by LoRA of rank 4 and DPO, " in summary
    monkeypatch.setattr("sys.stdin", io.StringIO("Say camel.\nSay lamp.\n"))
    assert generate.main(["--model", str(exports[2]), "--chat", "--tokens", "8", "--temperature", "0"]) == 0
    capsys.readouterr()
