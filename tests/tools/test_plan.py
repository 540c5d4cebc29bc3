"""tools.plan: figures of a run, its refusal, and sentences about mistakes."""

import json

import pytest
import yaml

from stages.lib.model.flops import flops_per_token, parameter_count
from tests.workflow.checkout import HOME
from tools.plan import __main__ as plan
from tools.plan import estimate, subject
from tools.plan.estimate import Speed

MODEL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
KEYS = {"steps": 400, "weights": {"code": 3, "prose": 1}, "seq_len": 64, "global_batch_size": 8}
CONFIG = {
    "tokenizers": {"main": {"vocab_size": 512}},
    "corpora": {"main": {"tokenizer": "main", "sources": ["code", "prose"]}},
    "runs": {"base": {"corpus": "main", "model": MODEL, "pretrain": KEYS | {"milestones": [100, 400]}}},
}
# embedding and head; of each layer q, k, v and output, gate, up and down, two norms; the last norm
PARAMETERS = 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64


def config_with(**keys):
    """CONFIG with other keys of its pretraining."""
    return CONFIG | {"runs": {"base": CONFIG["runs"]["base"] | {"pretrain": KEYS | keys}}}


FLOAT8 = config_with(float8=True)


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """A function that plans a config: (exit code, text, figures, last error)."""
    monkeypatch.chdir(tmp_path)

    def run(*options, config=CONFIG):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        code = plan.main(["config.yaml", *map(str, options), "--json", "plan.json", "--cache", "cache"])
        printed = capsys.readouterr()
        figures = json.loads((tmp_path / "plan.json").read_text())["runs"] if (tmp_path / "plan.json").exists() else {}
        return code, printed.out, figures, (printed.err.strip().splitlines() or [""])[-1]

    return run


def test_a_batch_of_auto_is_the_step_laws_and_the_plan_names_it_beside_another(planned):
    steps, seq_len = 20_000, 64
    code, _text, figures, _ = planned(config=config_with(steps=steps, global_batch_size="auto"))
    batch = figures["base"]["batch"]
    assert code == 0 and batch["global_batch_size"] == batch["step_law_batch_size"] == 2048
    # the power of two that is nearest to 0.58 D^0.571 tokens, D being the tokens of the run
    tokens = 2048 * seq_len
    assert 0.5**0.5 < 0.58 * (steps * tokens) ** 0.571 / tokens < 2**0.5
    assert planned()[1].count("the Step Law's batch, 0.58 x tokens^0.571, is 16 samples") == 1


def test_steps_that_yaml_reads_as_text_are_numbers(planned):
    code, _, figures, _ = planned(config=config_with(steps="1e3"))
    assert code == 0 and figures["base"]["batch"]["steps"] == 1000
    assert figures["base"]["disk"]["checkpoints"] == 2  # of the steps 500 and 1,000


def test_parameters_flops_batch_time_and_disk_are_those_of_the_formulas(planned):
    given = ["--gpu", "A100-80GB", "--ranks", 2, "--mfu", 0.5, "--price", 2, "--limit", 1]
    code, text, figures, _ = planned(*given)
    assert code == 0
    run = figures["base"]
    flops = 6 * (PARAMETERS - 512 * 64) + 12 * 2 * 64 * 64
    assert run["model"]["parameters"] == run["model"]["trained_parameters"] == PARAMETERS
    assert run["model"]["flops_per_token"] == flops
    assert run["batch"]["tokens"] == 400 * 8 * 64 and run["batch"]["gradient_accumulation_steps"] == 4
    assert run["disk"]["checkpoint_bytes"] == 12 * PARAMETERS
    assert run["disk"]["checkpoints"] == 2  # of the milestones; the first is kept while the last is written
    rate = 0.5 * 312e12 / flops
    assert run["time"]["tokens_per_second"] == pytest.approx(rate)
    assert run["time"]["step_seconds"] == pytest.approx(8 * 64 / rate / 2)
    assert run["time"]["jobs"] == 2
    assert run["data"]["code"] == {"tokens": 300 * 8 * 64, "epochs": None}
    assert run["memory"]["fits"] is True
    assert f"{PARAMETERS:,} parameters" in text and "epochs not known" in text


def test_a_run_that_cannot_fit_is_refused_with_a_change_that_fits(planned):
    config = config_with(micro_batch_size=8, seq_len=2048)
    # at this memory: chunks of the loss are smaller on a smaller GPU
    needs = planned("--memory-gb", 2.5, config=config)[2]["base"]["memory"]["peak_bytes"] * 1.05 / 2**30 + 2
    gpu = ["--memory-gb", needs - 0.02]
    code, text, _, error = planned(*gpu, config=config)
    assert code == 2
    assert "DOES NOT FIT" in text
    assert error.startswith("plan: runs.base.pretrain needs 2.") and ": it fits with " in error
    change = error.partition("it fits with ")[2]
    changed = dict(part.split() for part in change.split(", "))
    pretrain = config["runs"]["base"]["pretrain"]
    pretrain["micro_batch_size"] = int(changed.pop("micro_batch_size", 8))
    if "activation_checkpointing.mode" in changed:
        pretrain["activation_checkpointing"] = {"mode": changed.pop("activation_checkpointing.mode")}
    assert not changed
    assert planned(*gpu, config=config)[0] == 0


def test_proposals_that_fit_are_printed_with_the_fastest_first(planned):
    code, text, _, _ = planned("--gpu", "L4", "--fit")
    assert code == 0
    lines = [line.strip() for line in text.splitlines() if "fits with" in line]
    assert lines[0] == "fits with micro_batch_size 8"  # nothing is recomputed
    assert "selective" in lines[1] and "full" in lines[2]


def test_runs_with_equal_plans_are_one_paragraph_and_all_are_added_up(planned):
    runs = dict.fromkeys(("one", "two", "three"), CONFIG["runs"]["base"])
    runs["wide"] = CONFIG["runs"]["base"] | {"model": MODEL | {"intermediate_size": 192}}
    _, text, figures, _ = planned("--gpu", "A100", "--mfu", 0.5, "--price", 2, config=CONFIG | {"runs": runs})
    assert "run wide\n" in text and "runs one, three, two\n" in text
    hours = sum(plan["time"]["gpu_hours"] for plan in figures.values())
    cost = sum(plan["time"]["cost"] for plan in figures.values())
    assert text.splitlines()[-1].startswith("all 4 runs: ")
    assert text.splitlines()[-1].endswith(f"less than 0.001 GPU-hours in 8 jobs, cost {cost:.2f}")
    assert 0 < hours < 0.001
    batch, time = figures["wide"]["batch"], figures["wide"]["time"]
    assert f"  eval    {batch['evaluations']} times at most " in text and 0 < batch["validation_share"] < 0.1
    steps = time["days"] * 86400 / time["step_seconds"]
    assert steps == pytest.approx(batch["steps"] * (1 + batch["validation_share"]))


def test_a_run_whose_vocabulary_is_not_known_yet_is_named(planned):
    config = CONFIG | {"tokenizers": {"main": {"path": "tokenizer.json"}}}
    code, text, _, _ = planned(config=config)
    assert code == 0 and "no plan: the size of its vocabulary is not known" in text


MISTAKES = [
    (["--gpu", "H300"], "the GPU must be one of H100, A100,"),
    (["--mfu", 40], "--mfu must be a share of the GPU's peak, at most 1, got 40"),
    (["--mfu", 0.4, "--tokens-per-second", 9], "--mfu must be omitted with --tokens-per-second"),
    (["--ranks", 3], "runs.base.pretrain.global_batch_size must be divisible by the number of ranks (3), got 8"),
    (["--run", "other"], "--run must be one of the runs of config.yaml (base), got 'other'"),
    (["--gpu", "H100", "--mfu", "nan"], "--mfu must be a finite number, got nan"),
    (["--gpu", "H100", "--matrix-tflops", 700], "--copy-gb-per-second and --matrix-tflops must be given together"),
    (["--matrix-tflops", 700, "--copy-gb-per-second", 9], "--matrix-tflops needs --gpu, or --memory-gb: the GPU that"),
    (["--fit"], "--fit needs --gpu, or --memory-gb: the GPU that the run must fit"),
    (["--gpu", "A100-80GB"], "runs.base.pretrain.float8 requires an NVIDIA GPU of compute capability 8.9 or higher ("),
]


@pytest.mark.parametrize(("options", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(planned, options, sentence):
    code, _, _, error = planned(*options, config=FLOAT8 if "float8" in sentence else CONFIG)
    assert code == 2 and error.startswith(f"plan: {sentence}")
    assert "float8" not in sentence or error.endswith("got A100-SXM4-80GB with compute capability 8.0")


def test_keys_that_the_stage_refuses_are_refused(planned):
    tuned = KEYS | {"lora": {"rank": 2}, "optimizer": {"name": "muon"}}
    runs = {"tuned": {"corpus": "main", "model": MODEL, "finetune": tuned}}
    code, _, _, error = planned(config=CONFIG | {"runs": runs})
    assert code == 2 and error.startswith(
        "plan: runs.tuned.finetune.optimizer.name must be adamw with lora, got muon: "
    )


def test_an_unknown_gpu_is_planned_by_its_numbers(planned):
    code, _, figures, _ = planned("--gpu", "H300", "--memory-gb", 100, "--peak-tflops", 1000, "--mfu", 0.1)
    assert code == 0
    assert figures["base"]["memory"]["device_bytes"] == 100 << 30
    assert figures["base"]["time"]["tokens_per_second"] == pytest.approx(
        100e12 / figures["base"]["model"]["flops_per_token"]
    )


def test_the_bound_of_a_step_is_beside_its_time_by_given_ceilings_or_the_datasheet(planned):
    _, text, figures, _ = planned("--gpu", "H100")
    assert figures["base"]["bound"]["copies"] == pytest.approx(0.9 * 3.35e12)
    assert "90% of the datasheet's" in text
    _, text, figures, _ = planned("--gpu", "H100", "--copy-gb-per-second", 3000, "--matrix-tflops", 700)
    found = figures["base"]["bound"]
    assert [found["copies"], found["products"], found["source"]] == [3e12, 700e12, "as given"]
    step_seconds = sum(found["seconds"].values())
    assert found["tokens_per_second"] == pytest.approx(8 * 64 / step_seconds)
    assert found["mfu"] == pytest.approx(8 * 64 * figures["base"]["model"]["flops_per_token"] / (step_seconds * 989e12))
    assert f"an MFU of {found['mfu']:.1%}: at least" in text and "(products " in text
    muon = config_with(optimizer={"name": "muon"})
    assert "  bound   not counted with optimizer.name muon\n" in planned("--gpu", "H100", config=muon)[1]
    assert "  bound   not known: name a GPU" in planned()[1]


def test_the_published_7b_takes_162k_gpu_hours():
    """2.2 T tokens at 3,700 tokens per second per A100, as fms-fsdp reports for 128 of them."""
    hours = estimate.gpu_hours(2_200_000_000_000, Speed(3700, "published"))
    assert hours == pytest.approx(162_000, rel=0.05)
    pretrain = yaml.safe_load((HOME / "config/llama2-7b.yaml").read_text())["runs"]["llama2-7b"]
    model = subject.load("pretrain", pretrain["pretrain"], pretrain["model"], 32000, "test").model
    assert parameter_count(model, 32000) == 6_738_415_616  # of Llama 2 7B
    assert 3700 * flops_per_token(model, 32000, 4096) / 312e12 == pytest.approx(0.55, abs=0.02)


def test_the_mfu_of_earlier_runs_is_taken_and_in_float8_that_of_earlier_ones_in_float8(planned, tmp_path):
    paths = {}
    for name, mfus, facts in (("plain", (0.1, 0.4, 0.5), {}), ("cast", (0.55,), {"float8": True})):
        directory = paths[name] = tmp_path / f"results/runs/{name}/train/abc"
        directory.mkdir(parents=True)
        start = {"event": "start", "step": 0, "time": 1.0, "steps": 9, "device": "NVIDIA H100 80GB HBM3"} | facts
        (directory / "events.jsonl").write_text(json.dumps(start) + "\n")
        rows = [{"step": step, "tokens": 64 * step, "loss": 1.0, "mfu": mfu} for step, mfu in enumerate(mfus, 1)]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert estimate.mfu_by_device(tmp_path / "results") == {
        ("H100 80GB HBM3", False): (0.4, str(paths["plain"])),
        ("H100 80GB HBM3", True): (0.55, str(paths["cast"])),
    }
    _, text, figures, _ = planned("--gpu", "H100", config=FLOAT8)
    assert "by an MFU of 55.0% of the bfloat16 peak, measured in results/runs/cast/train/abc" in text
    assert "activation checkpointing none, float8\n" in text and figures["base"]["batch"]["float8"] is True
    assert planned("--gpu", "L4", config=FLOAT8)[0] == 0
    assert "by an MFU of 40.0%, measured in results/runs/plain/train/abc" in planned("--gpu", "H100")[1]


def test_jobs_and_kept_checkpoints_are_counted():
    assert estimate.jobs([100, 400], step_seconds=1, limit=150) == 3
    assert estimate.jobs([100, 400], step_seconds=1, limit=None) == 2
    # at step 400: the milestone 100, the newest two, and the one that is written
    assert estimate.kept_checkpoints(400, every=100, keep=2, milestones=[100, 400]) == 4
    assert estimate.kept_checkpoints(400, every=500, keep=2, milestones=[400]) == 1
