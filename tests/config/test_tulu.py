"""config/tulu.yaml: the stages take their parts, and it runs on generated conversations and a tiny Llama."""

import json
import random

import pytest
import yaml

from scripts.config_check import checked, load_schema
from stages.finetune import FinetuneRecipe
from stages.lib import recipe
from stages.lib.huggingface import config_json, export
from stages.lib.model.llama_config import ModelRecipe
from stages.lib.sources.source import SourceRecipe
from tests.helpers import custom_tokenizers
from tests.helpers.export_fixtures import random_model, write_settings
from tests.test_end_to_end import snakemake
from tests.workflow.checkout import HOME

TEXT = (HOME / "config/tulu.yaml").read_text(encoding="utf-8")
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = ("camel", "well", "rope", "lamp", "tent", "bell", "coin", "map")


def test_the_stages_take_their_parts():
    config = checked(yaml.safe_load(TEXT), load_schema(HOME / "workflow/schemas/config.schema.yaml"))
    plan = recipe.load(FinetuneRecipe, config["runs"]["tulu"]["finetune"], "finetune")
    assert (plan.optimizer.learning_rate, plan.schedule.kind, plan.loss_on) == (2e-5, "linear", "assistant")
    plan.check_ranks(8, "finetune")
    for source in config["sources"].values():
        recipe.load(SourceRecipe, source, "list")


def conversation(chance):
    """Return messages of one to three turns; every third conversation has a system prompt."""
    messages = [{"role": "system", "content": "Repeat."}] if chance.random() < 1 / 3 else []
    for _ in range(chance.randint(1, 3)):
        word = chance.choice(WORDS)
        messages += [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": f"{word}!"}]
    return messages


def write_inputs(directory):
    """Write conversations as parquet, and a Hugging Face directory of a tiny Llama, where the config has them."""
    import pyarrow as pa
    from pyarrow import parquet

    chance = random.Random(0)
    (directory / "data/tulu/data").mkdir(parents=True)
    table = pa.table({"messages": [conversation(chance) for _ in range(400)]})
    parquet.write_table(table, directory / "data/tulu/data/train-00000.parquet")
    model = directory / "models/Llama-2-7b-hf"
    tokenizer = json.loads(custom_tokenizers.write(model / "tokenizer.json").read_text())
    vocab_size = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    shape = ModelRecipe(**TINY, max_position_embeddings=256)
    state = random_model(shape, vocab_size).state_dict()
    export.write_weights(model, shape, vocab_size, lambda keys: {key: state[key] for key in keys}, "bfloat16", 100)
    ids = {"vocab_size": vocab_size, "bos": 400, "eos": 401, "bos_added": True}
    write_settings(model, config_json.config_of(shape, ids, "bfloat16"))


@pytest.mark.long
def test_it_runs_on_a_tiny_model(tmp_path):
    write_inputs(tmp_path)
    config = yaml.safe_load(TEXT)
    config["sources"]["tulu"]["validation"] = 0.1
    config["tokenizers"]["llama2"] |= {"bos": custom_tokenizers.BOS, "eos": custom_tokenizers.EOS}
    config["suites"]["validation"] = {"tasks": ["bits_per_byte"], "bytes_per_source": 2000}
    config["runs"]["tulu"]["finetune"] |= {"milestones": [1, 2], "seq_len": 128, "global_batch_size": 4}
    config["runs"]["tulu"]["finetune"]["schedule"]["warmup_steps"] = 1
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr
    exported = tmp_path / "results/runs/tulu/export/epoch002"
    assert "<|assistant|>" in (exported / "chat_template.jinja").read_text()
    assert (tmp_path / "results/runs/tulu/eval/epoch002/validation.json").exists()
