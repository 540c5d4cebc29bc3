"""Jobs that Snakemake plans after a change, in a checkout with all outputs."""

import json
import os
import shutil

import pytest

from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.pretrain import PretrainRecipe
from tests.workflow.checkout import Checkout, copy_project

AFTER_EVALUATE = {"evaluate", "describe", "summarize", "all"}
AFTER_CONVERT = {"convert", *AFTER_EVALUATE}
AFTER_PRETRAIN = {"pretrain", *AFTER_CONVERT}
AFTER_FINETUNE = {"finetune", *AFTER_CONVERT}
EVERYTHING = {"list", "train_tokenizer", "tokenize", "index", *AFTER_PRETRAIN}


def rules(plan):
    return set(plan.values())


def outputs_of(rule, plan):
    return sorted(output for output, planned in plan.items() if planned == rule)


def model(run, step):
    return f"results/runs/{run}/models/{step:08d}.json"


def test_nothing_if_all_outputs_exist(finished):
    assert finished.plan() == {}


def test_everything_on_a_fresh_checkout(pretending):
    assert rules(pretending.plan()) == EVERYTHING


def test_an_evaluation_key_plans_scores_and_after(finished, config):
    config["suites"]["validation"]["seed"] = 7
    assert rules(finished.plan(config=config)) == AFTER_EVALUATE


def test_a_key_of_the_card_plans_only_cards(finished, config):
    config["runs"]["base"]["card"] = {"license": "apache-2.0"}
    assert rules(finished.plan(config=config)) == {"describe", "all"}


def test_the_license_of_a_source_plans_only_cards(finished, config):
    config["sources"]["prose"]["license"] = "PSF-2.0"
    assert rules(finished.plan(config=config)) == {"describe", "all"}


def test_a_forced_card_plans_nothing_after_it(finished):
    assert rules(finished.plan("all", "-R", "describe")) == {"describe", "all"}


def test_an_export_key_plans_exports_and_after(finished, config):
    config["runs"]["base"]["convert"] = {"shard_mb": 7}
    assert rules(finished.plan(config=config)) == AFTER_CONVERT


def test_the_learning_rate_plans_training_and_after(finished, config):
    config["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] = 0.0123
    assert rules(finished.plan(config=config)) == AFTER_PRETRAIN


def test_a_weight_plans_training_and_after(finished, config):
    config["runs"]["base"]["pretrain"]["weights"] = {"code": 3, "prose": 1}
    assert rules(finished.plan(config=config)) == AFTER_PRETRAIN


def test_a_model_key_plans_training_and_after(finished, config):
    config["runs"]["base"]["model"]["num_hidden_layers"] += 1
    assert rules(finished.plan(config=config)) == AFTER_PRETRAIN


def test_the_vocabulary_plans_everything_but_lists(finished, config):
    config["tokenizers"]["main"]["vocab_size"] += 100
    assert rules(finished.plan(config=config)) == EVERYTHING - {"list"}


def test_the_number_of_parts_plans_tokens_and_after(finished, config):
    config["corpora"]["main"]["tokenize"]["parts"] += 1
    assert rules(finished.plan(config=config)) == EVERYTHING - {"list", "train_tokenizer"}


OPERATION = [{"micro_batch_size": 2}, {"checkpoint": {"keep": 7}}, {"validation": {"every": 7}}, {"steps": 5000}]


@pytest.mark.parametrize("keys", OPERATION, ids=str)
def test_an_operation_key_plans_nothing(finished, config, keys):
    config["runs"]["base"]["pretrain"] |= keys
    assert finished.plan(config=config) == {}


def test_a_setting_of_a_profile_plans_nothing(finished):
    assert finished.plan("all", "--profile", "profiles/local", "--set-resources", "pretrain:ranks=3") == {}


def test_a_batch_that_no_number_of_ranks_divides_is_named_before_the_first_job(finished, config):
    shutil.rmtree(finished.path / "results/runs/base/models")
    config["runs"]["base"]["pretrain"] |= {"global_batch_size": 9, "micro_batch_size": 2}
    given = ["all", "--profile", "profiles/local", "--configfile", finished.write_config(config)]
    done = finished.dry_run(*given, check=False)
    assert done.returncode == 1
    assert "runs.base.pretrain.micro_batch_size must divide the 9 samples per rank" in done.stdout + done.stderr


def test_an_appended_milestone_plans_only_itself_and_after(finished, config):
    pretrain = config["runs"]["base"]["pretrain"]
    last = pretrain["steps"]
    pretrain["steps"] *= 2
    pretrain["milestones"].append(2 * last)
    plan = finished.plan(config=config)
    assert outputs_of("pretrain", plan) == [model("base", 2 * last)]
    assert all(f"{2 * last:08d}" in output for output in outputs_of("convert", plan) + outputs_of("evaluate", plan))
    assert rules(plan) == AFTER_PRETRAIN


def test_an_inserted_milestone_plans_itself_and_those_after(finished, config):
    pretrain = config["runs"]["base"]["pretrain"]
    first, last = pretrain["milestones"]
    pretrain["milestones"] = [first, first + 1, last]
    plan = finished.plan(config=config)
    assert outputs_of("pretrain", plan) == [model("base", first + 1), model("base", last)]


def test_a_removed_milestone_plans_those_after(finished, config):
    pretrain = config["runs"]["base"]["pretrain"]
    last = pretrain["milestones"].pop()
    pretrain["milestones"] = [last]
    assert outputs_of("pretrain", finished.plan(config=config)) == [model("base", last)]


def test_an_added_run_plans_only_itself_and_the_summary(finished, config):
    config["runs"]["wide"] = {**config["runs"]["base"], "suites": ["validation"]}
    plan = finished.plan(config=config)
    made = set(plan) - set(outputs_of("summarize", plan)) - {"all"}
    assert made and all(output.startswith("results/runs/wide/") for output in made)


def test_an_added_suite_plans_only_itself_and_the_summary(finished, config):
    config["suites"]["more"] = {"tasks": ["next_line"]}
    config["runs"]["base"]["suites"] = ["validation", "more"]
    plan = finished.plan(config=config)
    assert rules(plan) == AFTER_EVALUATE
    assert all(output.endswith("/more.json") for output in outputs_of("evaluate", plan))


def test_an_added_source_of_its_own_corpus_plans_nothing_of_the_others(finished, config):
    config["sources"]["other"] = {"kind": "python-prose", "validation": 0.2}
    config["corpora"]["other"] = {"tokenizer": "main", "sources": ["other"]}
    assert finished.plan(config=config) == {}


def test_the_order_of_keys_and_the_notation_of_a_number_plan_nothing(finished, config):
    pretrain = config["runs"]["base"]["pretrain"]
    rate = float(pretrain["optimizer"]["learning_rate"])
    pretrain["optimizer"]["learning_rate"] = f"{rate:e}"
    config["runs"]["base"]["pretrain"] = dict(sorted(pretrain.items(), reverse=True))
    assert finished.plan(config=config) == {}


def test_a_new_optional_key_with_a_default_trains_and_scores_nothing(finished):
    path, key = finished.path / "stages/pretrain.py", "    document_mask: bool = identity(False)\n"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(key, f'    novelty: int = identity(3)\n    """New."""\n\n{key}'), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    done = finished.python("-m", "snakemake", "-n", "all")  # the other plans run in a process with this project's code
    assert rules(finished.jobs(done.stdout)) == {"summarize", "all"}  # the report compares code


def test_a_comment_and_a_docstring_in_a_stage_plan_nothing(finished):
    for path in (finished.path / "stages").rglob("*.py"):
        path.write_text('"""Another docstring."""\n# a comment\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert finished.plan() == {}


def test_a_statement_in_convert_plans_exports_and_after(finished):
    finished.append("stages/convert.py", "\nADDED = 1\n")
    assert rules(finished.plan()) == AFTER_CONVERT


def test_a_statement_in_a_shared_module_trains_nothing(finished):
    finished.append("stages/lib/files.py", "\nADDED = 1\n")
    assert rules(finished.plan()) == AFTER_CONVERT


def test_a_statement_in_pretrain_plans_only_the_summary_that_warns(finished):
    finished.append("stages/pretrain.py", "\nADDED = 1\n")
    assert rules(finished.plan()) == {"summarize", "all"}


def test_rerun_on_code_lets_a_statement_train_again(pretending):
    config = {**pretending.default_config, "rerun_on_code": True}
    pretending.pretend_all_is_made(config)
    pretending.append("stages/pretrain.py", "\nADDED = 1\n")
    assert rules(pretending.plan(config=config)) == AFTER_PRETRAIN


def test_touch_accepts_a_harmless_change(finished):
    finished.append("stages/convert.py", "\nADDED = 1\n")
    finished.snakemake("--touch", "--cores", 1, "all")
    assert finished.plan() == {}


def test_the_software_file_plans_nothing(finished):
    finished.append("environment.yml", "# changed\n")
    assert finished.plan() == {}


def test_a_forced_stage_plans_itself_and_after(finished):
    assert rules(finished.plan("scores", "-R", "evaluate")) == {"evaluate", "scores"}
    assert rules(finished.plan("all", "-R", "list")) == EVERYTHING


def test_no_file_of_the_workflow_is_ancient(finished):
    assert not [path for path in (finished.path / "workflow").rglob("*.smk") if "ancient" in path.read_text()]


def make_real(checkout, config, step):
    """Put the manifest that stages.pretrain would write in the place of one of the fixture, with its time."""
    run, path = config["runs"]["base"], checkout.path / model("base", step)
    keys = {key: value for key, value in run["pretrain"].items() if key != "milestones"}
    loaded = recipes.load(PretrainRecipe, keys | {"model": run["model"]}, "pretrain")
    status = path.stat()
    identity = {"recipe": recipes.written(loaded, "identity"), "step": step, "outputs": {}}
    manifest.write(path, "pretrain", identity, {"horizon": {"steps": keys["steps"]}})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_without_snakemakes_memory_a_stale_manifest_is_planned_again_and_named(finished, config):
    last = config["runs"]["base"]["pretrain"]["milestones"][-1]
    make_real(finished, config, last)
    shutil.rmtree(finished.path / ".snakemake")
    assert finished.plan(config=config) == {}
    config["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] = 0.0123
    given = ["all", "--configfile", finished.write_config(config)]
    done = finished.dry_run(*given)
    plan = finished.jobs(done.stdout)
    assert rules(plan) == AFTER_PRETRAIN and outputs_of("pretrain", plan) == [model("base", last)]
    why = "was made with optimizer.learning_rate = 0.004, and the config has 0.0123"
    assert f"caravan: {model('base', last)} {why}: it is planned again" in done.stdout
    assert rules(finished.plan("tokens", *given[1:])) == set(), "a target that does not need it plans nothing"
    done = finished.dry_run(*given, "--rerun-triggers", "mtime")
    assert finished.jobs(done.stdout) == {} and f"{why}: it is not planned again" in done.stdout


@pytest.fixture(scope="module")
def tuned_checkout(tmp_path_factory):
    """A checkout with all outputs of the embedded default and of its finetuned run; read-only."""
    path = tmp_path_factory.mktemp("tuned")
    made = copy_project(path)
    made.pretend_all_is_made({**made.default_config, "tune": True})
    return made


@pytest.fixture
def tuned(tuned_checkout, tmp_path):
    """A checkout with all outputs and those of the finetuned run, for one test to change."""
    shutil.copytree(tuned_checkout.path, tmp_path / "a copy", symlinks=True)
    return Checkout(tmp_path / "a copy")


@pytest.fixture
def tuning(config):
    """The embedded default with its finetuned run, for one test to change."""
    return {**config, "tune": True}


def test_nothing_if_all_outputs_of_finetuning_exist(tuned, tuning):
    assert tuned.plan(config=tuning) == {}
    assert tuned.plan("tuned") == {}


def test_a_finetuned_run_is_planned_if_the_config_or_the_target_includes_it(finished, tuning):
    plan = finished.plan(config=tuning)
    assert rules(plan) == {"list", *AFTER_FINETUNE}
    assert outputs_of("finetune", plan) == [model("statements", tuning["runs"]["statements"]["finetune"]["steps"])]
    assert rules(finished.plan("tuned")) == {"list", "finetune", "convert", "evaluate", "tuned"}


def test_a_run_on_preferences_is_planned_after_the_run_that_it_tunes(finished, tuning):
    choices = [{"prompt": f"a{number}", "chosen": "b", "rejected": "c"} for number in range(200)]
    (finished.path / "choices.jsonl").write_text("".join(f"{json.dumps(choice)}\n" for choice in choices))
    tuning["sources"]["choices"] = {"kind": "preference", "paths": ["choices.jsonl"]}
    recipe = tuning["runs"]["statements"]["finetune"]
    steps = recipe.pop("steps")
    tuning["runs"]["dpo"] = {
        "initial": {"run": "statements", "step": 2},
        "finetune": recipe | {"weights": {"choices": 1}, "dpo": {"beta": 0.1}, "steps": steps},
        "suites": ["statements"],
    }
    recipe |= {"epochs": 2, "milestones": [1, 2]}
    plan = finished.plan(config=tuning)
    epochs = [f"results/runs/statements/models/epoch00{number}.json" for number in (1, 2)]
    assert outputs_of("finetune", plan) == [model("dpo", steps), *epochs]
    assert "results/runs/statements/eval/epoch002/statements.json" in plan


def test_the_learning_rate_of_finetuning_plans_finetuning_and_after(tuned, tuning):
    tuning["runs"]["statements"]["finetune"]["optimizer"]["learning_rate"] = 0.0123
    plan = tuned.plan(config=tuning)
    assert rules(plan) == AFTER_FINETUNE
    made = outputs_of("finetune", plan) + outputs_of("convert", plan) + outputs_of("evaluate", plan)
    assert all(output.startswith("results/runs/statements/") for output in made)


def test_the_learning_rate_of_the_initial_run_plans_both_and_after(tuned, tuning):
    tuning["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] = 0.0123
    assert rules(tuned.plan(config=tuning)) == {*AFTER_PRETRAIN, *AFTER_FINETUNE}


def test_another_initial_milestone_plans_finetuning_and_after(tuned, tuning):
    first = tuning["runs"]["base"]["pretrain"]["milestones"][0]
    tuning["runs"]["statements"]["initial"]["step"] = first
    plan = tuned.plan(config=tuning)
    assert rules(plan) == AFTER_FINETUNE
    assert f"results/runs/base/eval/{first:08d}/statements.json" in outputs_of("evaluate", plan)


def test_a_key_of_prompt_completion_data_plans_finetuning_and_its_scores(tuned, tuning):
    tuning["sources"]["statements"]["validation"] = 0.2
    plan = tuned.plan(config=tuning)
    assert rules(plan) == {"list", *AFTER_FINETUNE}
    assert len(outputs_of("evaluate", plan)) == 2


@pytest.mark.parametrize("keys", OPERATION, ids=str)
def test_an_operation_key_of_finetuning_plans_nothing(tuned, tuning, keys):
    recipe = tuning["runs"]["statements"]["finetune"]
    recipe |= {"milestones": [recipe["steps"]]} | keys
    assert tuned.plan(config=tuning) == {}


def test_a_statement_in_finetune_plans_only_the_summary_that_warns(tuned, tuning):
    tuned.append("stages/finetune.py", "\nADDED = 1\n")
    assert rules(tuned.plan(config=tuning)) == {"summarize", "all"}


def test_a_finetuned_run_that_is_disabled_again_plans_only_the_summary(tuned, tuning):
    assert rules(tuned.plan(config=tuning | {"tune": False})) == {"summarize", "all"}


def test_a_run_with_an_initial_run_plans_only_itself_and_the_summary(finished, config):
    base = config["runs"]["base"]
    reset = {"optimizer": "reset", "schedule": "reset", "data": "reset"}
    initial = {"initial": {"run": "base", "step": base["pretrain"]["milestones"][0]}}
    config["runs"]["more"] = base | initial | {"pretrain": base["pretrain"] | {"initial": reset}}
    plan = finished.plan(config=config)
    assert rules(plan) == AFTER_PRETRAIN
    assert all(output.startswith("results/runs/more/") for output in outputs_of("pretrain", plan))
    base["pretrain"]["optimizer"]["learning_rate"] = 0.0123
    assert model("more", base["pretrain"]["steps"]) in outputs_of("pretrain", finished.plan(config=config))


def test_a_changed_custom_tokenizer_plans_all_outputs_that_depend_on_it(pretending, config):
    mine = pretending.path / "my tokenizer.json"
    mine.write_text("{}")
    config["tokenizers"]["main"] = {"path": mine.name, "bos": "<s>", "eos": "</s>"}
    pretending.pretend_all_is_made(config)
    assert pretending.plan(config=config) == {}
    mine.write_text('{"changed": true}')
    assert rules(pretending.plan(config=config)) == EVERYTHING - {"list"}


def test_a_baseline_plans_its_scores_alone(finished, config, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    config["baselines"] = {"big": {"path": str(tmp_path)}, "hub": {"path": "org/model", "revision": "v1"}}
    plan = finished.plan(config=config)
    assert rules(plan) == {"evaluate_baseline", "describe", "summarize", "all"}
    scores = [f"results/baselines/{name}/main/validation.json" for name in ("big", "hub")]
    assert outputs_of("evaluate_baseline", plan) == scores
    assert rules(finished.plan("scores", config=config)) == {"evaluate_baseline", "scores"}


def test_an_unknown_baseline_is_one_sentence(finished, config):
    done = finished.dry_run("results/baselines/big/main/validation.json", check=False)
    assert done.returncode != 0
    assert "the config has no baselines.big; baselines: none" in done.stderr
