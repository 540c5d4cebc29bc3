"""tools.ablate: cells in processes of their own, and their table; a cell that fails ends alone."""

import csv
import json
import sys

import pytest
import yaml

from tests.helpers.training import MODEL, RECIPE
from tools.ablate import __main__ as ablate
from tools.ablate import cell

FIGURES = {"gradient_accumulation_steps": 3, "step_seconds": 0.25, "tokens_per_second": 1536.4, "mfu": "n/a"}
FIGURES |= {"peak_memory_mb": 1234, "device": "cpu"}
CONFIG = {
    "tokenizers": {"main": {"vocab_size": 320}},
    "corpora": {"main": {"tokenizer": "main", "sources": ["a"]}},
    "runs": {
        "tiny": {
            "corpus": "main",
            "model": MODEL,
            "pretrain": {key: value for key, value in RECIPE.items() if key != "model"} | {"steps": 30},
        },
        "tuned": {
            "initial": {"run": "tiny", "step": 30},
            "finetune": {"epochs": 9, "seq_len": 16, "global_batch_size": 8, "dtype": "float32", "lora": {"rank": 2}},
        },
    },
}
SIZES = {"seq_len": 8, "global_batch_size": 4}
GRID = ["sharding=full,none", "activation_checkpointing.mode=none,full"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Stands for workflow/launch: writes FIGURES, or what `answers` holds for a value; returns (answers, calls)."""
    script, answers, calls = tmp_path / "launch", tmp_path / "answers.json", tmp_path / "calls.jsonl"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nargv = sys.argv[1:]\n"
        f"answers = json.load(open({str(answers)!r}))\n"
        "recipe = json.loads(argv[argv.index('--recipe') + 1])\n"
        f"open({str(calls)!r}, 'a').write(json.dumps([argv, recipe]) + '\\n')\n"
        "code, text = answers.get(str(recipe.get('micro_batch_size')), (0, ''))\n"
        "print(text, file=sys.stderr, flush=True)\n"
        "if code == 9: os.kill(os.getpid(), 9)\n"
        "if code: sys.exit(code)\n"
        f"open(argv[argv.index('--output') + 1], 'w').write({json.dumps(FIGURES)!r})\n"
    )
    script.chmod(0o755)
    answers.write_text("{}")
    monkeypatch.setattr(ablate, "LAUNCH", script)
    return answers, lambda: [json.loads(line) for line in calls.read_text().splitlines()]


def table_of(printed):
    """Return the table's rows as {head: cell} dictionaries."""
    lines = [line.strip("| ").split("|") for line in printed.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_every_combination_is_a_cell_with_the_same_samples(config, launched, capsys):
    arguments = [str(config), "--run", "tiny", "--ranks", "2", "--steps", "4", "--grid", *GRID, "micro_batch_size=1,2"]
    assert ablate.main(arguments) == 0
    rows = table_of(capsys.readouterr().out)
    assert len(rows) == 8
    assert [row["sharding"] for row in rows] == ["full"] * 4 + ["none"] * 4
    assert rows[0] == {
        "sharding": "full",
        "activation_checkpointing.mode": "none",
        "micro_batch_size": "1",
        "accumulation": "3",
        "step (s)": "0.250",
        "tokens/s": "1,536",
        "MFU": "n/a",
        "peak memory (MB)": "1,234",
        "result": "measured",
    }
    calls = launched[1]()
    assert all(argv[:5] == ["--threads", "1", "2", "-m", ablate.CELL] for argv, _ in calls)
    recipes = [recipe for _, recipe in calls]
    assert {(recipe["global_batch_size"], recipe["seq_len"], recipe["steps"]) for recipe in recipes} == {(12, 32, 4)}
    assert len({json.dumps(recipe, sort_keys=True) for recipe in recipes}) == 8
    assert recipes[3]["activation_checkpointing"] == {"mode": "full"}
    assert (recipes[3]["model"], recipes[3]["vocab_size"]) == (MODEL, 320)


@pytest.mark.parametrize(
    ("answer", "result", "sentence"),
    [
        ((2, "cell: out of memory: a request of 9 GB failed\ntorchrun's page"), "out of memory", "a request of 9 GB"),
        ((2, "cell: cell.cpu_offload must be false without a GPU"), "refused", "cpu_offload must be false without"),
        ((9, "no last words"), "out of memory", "killed by SIGKILL"),
        ((1, "Signal 9 (SIGKILL) received by PID 3"), "out of memory", "killed by SIGKILL"),
        ((1, "RuntimeError: other"), "refused", "a process ended with exit code 1: RuntimeError: other"),
    ],
)
def test_a_cell_that_fails_is_named_and_the_others_are_measured(
    config, launched, tmp_path, capsys, answer, result, sentence
):
    launched[0].write_text(json.dumps({"2": answer}))
    arguments = [str(config), "--run", "tiny", "--grid", "micro_batch_size=1,2,3", "--output"]
    for name in ("table.csv", "table.json"):
        assert ablate.main([*arguments, str(tmp_path / name)]) == 0
        printed = capsys.readouterr().out
    rows = table_of(printed)
    assert [row["result"] for row in rows] == ["measured", result, "measured"]
    assert rows[1]["step (s)"] == "-"
    (line,) = [line for line in printed.splitlines() if line.startswith("- ")]
    assert line.startswith("- micro_batch_size=2: ") and sentence in line
    written = json.loads((tmp_path / "table.json").read_text())
    assert (written["run"], written["global_batch_size"]) == ("tiny", 12)
    assert sentence in written["cells"][1]["reason"] and written["cells"][2]["figures"] == FIGURES
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [line["result"] for line in lines] == ["measured", result, "measured"] and sentence in lines[1]["reason"]
    assert (lines[2]["run"], lines[2]["micro_batch_size"], lines[2]["step_seconds"]) == ("tiny", "3", "0.25")


def test_keys_of_a_run_and_the_model_of_its_initial_run_reach_the_cells(config, launched):
    changed = yaml.safe_load(config.read_text())
    changed["runs"]["tiny"]["pretrain"] |= {"float8": True, "cuda_graphs": True}
    config.write_text(yaml.safe_dump(changed))
    assert ablate.main([str(config), "--run", "tiny", "--grid", "float8=true,false", "micro_batch_size=2"]) == 0
    assert ablate.main([str(config), "--run", "tuned", "--grid", "dtype=float32"]) == 0
    *cells, tuned = [recipe for _, recipe in launched[1]()]
    assert [(cell["float8"], cell["cuda_graphs"]) for cell in cells] == [(True, True), (False, True)]
    assert (tuned["model"], tuned["vocab_size"], tuned["document_mask"]) == (MODEL, 320, True)
    assert tuned["lora"] == {"rank": 2}


def test_a_batch_of_auto_follows_from_the_steps_of_the_run_not_from_those_measured(config, launched):
    changed = yaml.safe_load(config.read_text())
    changed["runs"]["tiny"]["pretrain"] |= {"global_batch_size": "auto", "steps": "2e4", "seq_len": 64}
    config.write_text(yaml.safe_dump(changed))
    assert ablate.main([str(config), "--run", "tiny", "--steps", "4", "--grid", "dtype=float32"]) == 0
    ((_, recipe),) = launched[1]()
    assert (recipe["steps"], recipe["global_batch_size"]) == (4, 2048)  # as tests/tools/test_plan.py has it


def test_a_model_of_a_directory_has_its_own_vocabulary(tmp_path, launched):
    from stages.lib.huggingface import config_json
    from stages.lib.model.architectures import LlamaRecipe

    ids = {"vocab_size": 77, "bos": 1, "eos": 2, "bos_added": True}
    (tmp_path / "llama").mkdir()
    written = config_json.config_of(LlamaRecipe(**MODEL), ids, "float32")
    (tmp_path / "llama/config.json").write_text(json.dumps(written))
    run = {"initial": {"path": str(tmp_path / "llama")}, "finetune": CONFIG["runs"]["tuned"]["finetune"]}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump({"runs": {"mine": run}}))
    assert ablate.main([str(tmp_path / "my.yaml"), "--grid", "dtype=float32"]) == 0
    ((_, recipe),) = launched[1]()
    assert recipe["vocab_size"] == 77
    assert recipe["model"]["hidden_size"] == MODEL["hidden_size"]


SHARDED = ("--run", "tiny", "--grid", "sharding=full")
MISTAKES = [
    (("--run", "tiny", "--grid", "global_batch_size=1,2"), "--grid must have keys among sharding, shard_degree, "),
    ((*SHARDED, "sharding=none"), "--grid must name each key once, got sharding"),
    ((*SHARDED[:-1], "sharding=full,"), "--grid must be KEY=VALUE,VALUE,..., got 'sharding=full,'"),
    (SHARDED[2:], "--run is missing: "),
    (("--run", "wide", *SHARDED[2:]), "--run must be one of the runs of "),
    ((*SHARDED, "--output", "a.txt"), "--output must end in .json or .csv, got"),
]
OPTIMIZER = {"corpus": "main", "model": MODEL, "pretrain": SIZES | {"optimizer": "adamw"}}
LACKING = [
    ({"runs": {"tiny": {}}}, "must have pretrain or finetune"),
    ({"runs": {"tiny": {"pretrain": {"seq_len": 8}}}}, "runs.tiny.model is missing"),
    ({"runs": {"tiny": {"model": MODEL, "pretrain": {"seq_len": 8}}}}, "--vocab-size is missing"),
    ({"runs": {"tiny": {"model": MODEL, "pretrain": {"weight": 1}}}}, "runs.tiny.pretrain.weight must be omitted"),
    ({"runs": {"a": {"initial": {"run": "b"}, "finetune": {}}}}, "runs.a.initial.run must be another run of the"),
    ({"runs": {"a": {"initial": None, "finetune": {}}}}, "runs.a.model is missing"),
    ({"runs": {"a": {"model": {"from": 1}, "pretrain": {}}}}, "config.json of runs.a must be named by its path"),
    ({"run": 1}, "must have runs"),
    (CONFIG | {"runs": {"mine": {"corpus": "main", "model": MODEL, "pretrain": {}}}}, "of {path} must have seq_len"),
    (CONFIG | {"runs": {"mine": OPTIMIZER}}, "optimizer of the run must be a mapping beside --grid"),
]


def test_a_mistake_or_a_config_without_what_a_step_needs_is_one_sentence(config, launched, capsys):
    for arguments, sentence in MISTAKES:
        assert ablate.main([str(config), *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"ablate: {sentence}")
    for content, sentence in LACKING:
        config.write_text(yaml.safe_dump(content))
        assert ablate.main([str(config), "--grid", "optimizer.name=adamw"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sentence.format(path=config) in line


TINY = {"model": MODEL, "vocab_size": 320, "steps": 2, "seq_len": 16, "global_batch_size": 4, "dtype": "float32"}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"document_mask": True, "micro_batch_size": 4},
        {"lora": {"rank": 2, "dropout": 0.1}, "dtype": "bfloat16"},
        {"optimizer": {"name": "muon", "state_dtype": "bfloat16"}, "dtype": "bfloat16"},
    ],
)
def test_a_cell_measures_steps(tmp_path, keys):
    output = tmp_path / "figures.json"
    assert cell.main(["--recipe", json.dumps(TINY | keys), "--output", str(output)]) == 0
    figures = json.loads(output.read_text())
    assert figures["gradient_accumulation_steps"] == 4 // keys.get("micro_batch_size", 1)
    assert figures["tokens_per_second"] == pytest.approx(4 * 16 / figures["step_seconds"])
    assert figures["peak_memory_mb"] > 50
    assert set(figures) == set(FIGURES)


def test_a_cell_that_cannot_run_ends_with_a_sentence(tmp_path, capsys):
    output = tmp_path / "figures.json"
    for keys, sentence in (
        ({"vocab_size": 10**12}, "out of memory: a request of "),
        ({"micro_batch_size": 3}, "cell.micro_batch_size must divide the 4 samples per rank"),
        ({"optimizer": {"name": "muon"}, "lora": {"rank": 2}}, "cell.optimizer.name must be adamw with lora"),
        ({"cpu_offload": True}, "cell.cpu_offload must be false without a GPU"),
    ):
        assert cell.main(["--recipe", json.dumps(TINY | keys), "--output", str(output)]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"cell: {sentence}")
        assert not output.exists()


@pytest.mark.long
def test_real_cells_on_two_ranks(config, capsys):
    grid = ["sharding=full,none", "micro_batch_size=2,5"]
    assert ablate.main([str(config), "--run", "tiny", "--ranks", "2", "--steps", "2", "--grid", *grid]) == 0
    rows = table_of(capsys.readouterr().out)
    assert [row["result"] for row in rows] == ["measured", "refused"] * 2
    assert all(float(row["step (s)"]) > 0 for row in rows if row["result"] == "measured")
