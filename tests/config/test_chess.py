"""config/chess.yaml: every stage takes its part, and it runs on generated games and a tiny Code Llama."""

import csv
import json
import random

import chess
import pytest
import yaml

from scripts.config_check import checked
from stages.lib import recipe
from stages.lib.huggingface import config_json, export
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.sources.source import SourceRecipe
from stages.pretrain import PretrainRecipe
from tests.helpers import custom_tokenizers
from tests.helpers.export_fixtures import random_model, write_settings
from tests.test_end_to_end import snakemake
from tests.workflow.checkout import HOME

TEXT = (HOME / "config/chess.yaml").read_text(encoding="utf-8")
CODE_LLAMA_7B = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008}
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
OF_CODE_LLAMA = {"rope_theta": 1e6, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5}
BATCH = 64


def config_of(text=TEXT):
    return checked(yaml.safe_load(text))


def test_a_step_has_64_sequences_whatever_the_ranks():
    config = config_of()
    run = config["runs"]["chess"]
    keys = {key: value for key, value in run["pretrain"].items() if key != "milestones"}
    plan = recipe.load(PretrainRecipe, {"model": CODE_LLAMA_7B | OF_CODE_LLAMA, **keys}, "pretrain")
    for ranks in (1, 2, 8, 64):
        plan.check_ranks(ranks, "pretrain")
    assert plan.global_batch_size == BATCH
    recipe.load(SourceRecipe, config["sources"]["games"], "list")


def test_the_switches_in_comments_are_valid_in_place_of_the_others():
    switched = TEXT
    for key in ("sharding", "activation_checkpointing"):
        (old,) = [line for line in TEXT.splitlines() if line.startswith(f"      {key}:")]
        (new,) = [line for line in TEXT.splitlines() if line.startswith(f"#      {key}:")]
        switched = switched.replace(f"{old}\n", "").replace(new, new.removeprefix("#"))
    before, after = (config_of(text)["runs"]["chess"]["pretrain"] for text in (TEXT, switched))
    assert (before["sharding"], before["activation_checkpointing"]["mode"]) == ("full", "full")
    assert (after["sharding"], after["activation_checkpointing"]["mode"]) == ("none", "none")


def game_of(chance, moves):
    """Return a game of random legal moves as text: `1. e4 e5 2. Nf3 ...`."""
    board, words = chess.Board(), []
    while not board.is_game_over() and len(board.move_stack) < moves:
        if board.turn == chess.WHITE:
            words.append(f"{board.fullmove_number}.")
        move = chance.choice(sorted(board.legal_moves, key=chess.Move.uci))
        words.append(board.san(move))
        board.push(move)
    return " ".join([*words, board.result()])


def write_inputs(directory):
    """Write games, and a Hugging Face directory of a tiny model, where the config has them."""
    chance = random.Random(0)
    games = [json.dumps({"text": game_of(chance, 20)}) + "\n" for _ in range(300)]
    (directory / "data/games").mkdir(parents=True)
    (directory / "data/games/a.jsonl").write_text("".join(games))
    model = directory / "models/CodeLlama-7b-hf"
    tokenizer = json.loads(custom_tokenizers.write(model / "tokenizer.json").read_text())
    vocab_size = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    shape = LlamaRecipe(**TINY, **OF_CODE_LLAMA)
    state = random_model(shape, vocab_size).state_dict()
    export.write_weights(model, shape, vocab_size, lambda keys: {key: state[key] for key in keys}, "bfloat16", 100)
    ids = {"vocab_size": vocab_size, "bos": 400, "eos": 401, "bos_added": True}
    write_settings(model, config_json.config_of(shape, ids, "bfloat16"))


@pytest.mark.long
def test_it_runs_on_a_tiny_model(tmp_path):
    write_inputs(tmp_path)
    config = yaml.safe_load(TEXT)
    config["sources"]["games"]["validation"] = 0.2
    config["tokenizers"]["codellama"] |= {"bos": custom_tokenizers.BOS, "eos": custom_tokenizers.EOS}
    config["corpora"]["games"]["tokenize"]["parts"] = 1
    config["suites"]["validation"]["bytes_per_source"] = 2000
    config["runs"]["chess"]["pretrain"] |= {"steps": 4, "milestones": [2, 4], "seq_len": 128, "micro_batch_size": 16}
    config["runs"]["chess"]["pretrain"]["schedule"]["warmup_steps"] = 1
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = (tmp_path / "results/runs/chess/train").iterdir()
    entries = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [entry for entry in entries if "loss" in entry]
    assert [entry["tokens"] for entry in steps] == [step * BATCH * 128 for step in range(1, 5)]
    assert steps[-1]["loss"] < steps[0]["loss"]
    with open(tmp_path / "results/scores.csv", newline="") as file:
        assert "bits_per_byte_games" in {row["task"] for row in csv.DictReader(file)}
