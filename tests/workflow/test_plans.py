"""Jobs that Snakemake plans after a change, in a checkout with all outputs."""

import copy
import json
import os
import shutil

import pytest

from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.pretrain import PretrainRecipe
from tests.workflow.checkout import copy_project, outputs_of, rules_of
from tests.workflow.configs import change, mistake_in

AFTER_EVALUATE = {"evaluate", "describe", "summarize", "all"}
AFTER_CONVERT = {"convert", *AFTER_EVALUATE}
AFTER_PRETRAIN = {"pretrain", *AFTER_CONVERT}
AFTER_FINETUNE = {"finetune", *AFTER_CONVERT}
EVERYTHING = {"list", "train_tokenizer", "tokenize", "index", *AFTER_PRETRAIN}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}


def model(run, step):
    return f"results/runs/{run}/models/{step:08d}.json"


def test_nothing_if_all_outputs_exist_and_everything_on_a_fresh_checkout(finished, pretending):
    assert finished.plan() == {}
    assert rules_of(pretending.plan()) == EVERYTHING


SHARED_KEYS = [
    ("suites/validation/seed", 7, AFTER_EVALUATE),
    ("sources/prose/license", "PSF-2.0", {"describe", "all"}),
    ("tokenizers/main/vocab_size", 5000, EVERYTHING - {"list"}),
    ("corpora/main/tokenize/parts", 3, EVERYTHING - {"list", "train_tokenizer"}),
]


@pytest.mark.parametrize(("key", "value", "planned"), SHARED_KEYS)
def test_a_key_of_all_runs_plans_what_depends_on_it(finished_checkout, config, key, value, planned):
    change(config, key, value)
    assert rules_of(finished_checkout.plan(config=config)) == planned


PRETRAINED, SCORED = {"pretrain", "convert", "evaluate", "describe"}, {"convert", "evaluate", "describe"}
KEYS = {
    # each changes the run of this name, in one plan for all
    "card": ("card", {"license": "apache-2.0"}, {"describe"}),
    "export": ("convert", {"shard_mb": 7}, SCORED),
    "rate": ("pretrain/optimizer/learning_rate", 0.0123, PRETRAINED),
    "weight": ("pretrain/weights", {"code": 3, "prose": 1}, PRETRAINED),
    "shape": ("model/num_hidden_layers", 9, PRETRAINED),
    "notation": ("pretrain/optimizer/learning_rate", "3.20e-02", set()),
    "micro": ("pretrain/micro_batch_size", 1, set()),
    "keep": ("pretrain/checkpoint/keep", 7, set()),
    "evaluations": ("pretrain/validation/every", 7, set()),
    "steps": ("pretrain/steps", 5000, set()),
    "inserted": ("pretrain/milestones", [100, 101, 300], PRETRAINED),
    "removed": ("pretrain/milestones", [300], PRETRAINED),
    "tuned-rate": ("finetune/optimizer/learning_rate", 0.0123, {"finetune", *SCORED}),
    "tuned-micro": ("finetune/micro_batch_size", 2, set()),
    "tuned-keep": ("finetune/checkpoint/keep", 7, set()),
    "tuned-evaluations": ("finetune/validation/every", 7, set()),
    "tuned-steps": ("finetune/steps", 5000, set()),
    "tuned-milestone": ("initial/step", 100, {"finetune", *SCORED}),
}
# by the keys of other runs: they start from `rate`, or another starts from a milestone of theirs
AFTER = {"more": PRETRAINED, "tuned-after": {"finetune", *SCORED}, "base": {"evaluate"}}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A checkout with all outputs of its config, which has a run for each of KEYS; read-only."""
    made = copy_project(tmp_path_factory.mktemp("many"))
    config = {**made.default_config, "tune": True}
    runs = config["runs"]
    tuned = copy.deepcopy(runs["statements"])
    tuned["finetune"]["milestones"] = [tuned["finetune"]["steps"]]
    runs |= {name: copy.deepcopy(tuned if name.startswith("tuned") else runs["base"]) for name in KEYS}
    pretrain = runs["base"]["pretrain"] | {"initial": RESET}
    runs["more"] = runs["base"] | {"initial": {"run": "rate", "step": 100}, "pretrain": pretrain}
    runs["tuned-after"] = tuned | {"initial": {"run": "rate", "step": 300}}
    made.pretend_all_is_made(config)
    return made, config


@pytest.fixture
def tuning(many):
    """The config of `many`, for one test to change."""
    return copy.deepcopy(many[1])


def test_a_key_of_a_run_plans_what_depends_on_it(many, tuning):
    assert many[0].plan(config=tuning) == {} == many[0].plan("tuned", config=tuning)
    for name, (key, value, _) in KEYS.items():
        change(tuning["runs"][name], key, value)
    tuning["runs"]["notation"]["pretrain"] = dict(sorted(tuning["runs"]["notation"]["pretrain"].items(), reverse=True))
    plan = many[0].plan(config=tuning)
    for name, planned in [*((name, planned) for name, (*_, planned) in KEYS.items()), *AFTER.items()]:
        own = {output: rule for output, rule in plan.items() if output.startswith(f"results/runs/{name}/")}
        assert rules_of(own) == planned, name
    assert outputs_of(plan, "evaluate")[0] == "results/runs/base/eval/00000100/statements.json"
    made = outputs_of(plan, "pretrain")
    assert [output for output in made if "/inserted/" in output] == [model("inserted", step) for step in (101, 300)]
    assert [output for output in made if "/removed/" in output] == [model("removed", 300)]
    assert rules_of(plan) == {*AFTER_PRETRAIN, "finetune"}


def test_prompt_completion_data_and_a_tuning_that_is_disabled(many, tuning):
    tuning["sources"]["statements"]["validation"] = 0.2
    plan = many[0].plan(config=tuning)
    assert rules_of(plan) == {"list", *AFTER_FINETUNE}
    assert all(output.endswith("/statements.json") for output in outputs_of(plan, "evaluate"))
    assert rules_of(many[0].plan(config=many[1] | {"tune": False})) == {"summarize", "all"}


def test_a_setting_of_a_profile_plans_nothing(finished):
    assert finished.plan("all", "--profile", "profiles/local", "--set-resources", "pretrain:ranks=3") == {}


def test_a_batch_that_no_number_of_ranks_divides_is_named_before_the_first_job(finished, config):
    shutil.rmtree(finished.path / "results/runs/base/models")
    config["runs"]["base"]["pretrain"] |= {"global_batch_size": 9, "micro_batch_size": 2}
    refusal = finished.refusal("all", "--profile", "profiles/local", config=config)
    assert "runs.base.pretrain.micro_batch_size must divide the 9 samples per rank" in refusal


def test_near_duplicates_are_searched_before_text_is_tokenized_and_a_threshold_is_judged_alone(pretending, config):
    config["corpora"]["main"]["near_duplicates"] = {}
    pretending.pretend_all_is_made(config)
    assert pretending.plan(config=config) == {}
    config["corpora"]["main"]["near_duplicates"] = {"min_overlap": 0.9}
    plan = pretending.plan(config=config)
    assert rules_of(plan) == EVERYTHING - {"list", "train_tokenizer"} | {"verify_duplicates"}
    config["corpora"]["main"]["near_duplicates"] = {"min_overlap": 0.3}
    sentence = "config: corpora.main.near_duplicates.sketch must find at least 95% of the documents that overlap"
    assert pretending.refusal(config=config).startswith(sentence)


def test_a_classifier_is_trained_before_the_source_that_it_filters_and_all_after_follows(pretending, config):
    config["sources"]["web"] = {
        "kind": "python-prose",
        "filters": {"quality": {"classifier": "style", "min_score": 0.5}},
    }
    config["corpora"]["main"]["sources"] = ["web"]
    config["tokenizers"]["main"]["sample"] = {"code": 1}
    config["runs"]["base"]["pretrain"]["weights"] = {"web": 1}
    config["classifiers"] = {"style": {"good": ["prose"], "bad": ["code"]}}
    pretending.pretend_all_is_made(config)
    assert pretending.plan(config=config) == {}
    config["classifiers"]["style"]["seed"] = 1
    plan = pretending.plan(config=config)
    assert rules_of(plan) == EVERYTHING - {"train_tokenizer"} | {"train_classifier"}
    assert outputs_of(plan, "list") == ["results/sources/web/list.json"]
    config["classifiers"]["style"]["bad"] = ["web"]
    sentence = "sources.web.filters.quality must not form a cycle: the classifier style is trained on"
    assert mistake_in(config).startswith(sentence)
    config["classifiers"] = {"other": {"good": ["prose"], "bad": ["code"]}}
    sentence = "sources.web.filters.quality.classifier must be one of the config's classifiers (other), got 'style'"
    assert mistake_in(config).startswith(sentence)


def test_an_appended_milestone_plans_only_itself_and_after(finished_checkout, config):
    pretrain = config["runs"]["base"]["pretrain"]
    last = pretrain["steps"]
    pretrain["steps"] *= 2
    pretrain["milestones"].append(2 * last)
    plan = finished_checkout.plan(config=config)
    assert outputs_of(plan, "pretrain") == [model("base", 2 * last)]
    assert all(f"{2 * last:08d}" in output for output in outputs_of(plan, "convert") + outputs_of(plan, "evaluate"))
    assert rules_of(plan) == AFTER_PRETRAIN


def test_an_added_run_suite_or_corpus_plans_only_itself_and_the_summary(finished_checkout, config):
    base = config["runs"]["base"]
    initial = {"initial": {"run": "base", "step": base["pretrain"]["milestones"][0]}, "suites": ["validation"]}
    config["runs"]["more"] = base | initial | {"pretrain": base["pretrain"] | {"initial": RESET}}
    config["suites"]["exam"] = {"tasks": ["next_line"]}
    base["suites"] = ["validation", "exam"]
    config["sources"]["other"] = {"kind": "python-prose", "validation": 0.2}
    config["corpora"]["other"] = {"tokenizer": "main", "sources": ["other"]}
    plan = finished_checkout.plan(config=config)
    assert rules_of(plan) == AFTER_PRETRAIN
    of_base = [output for output in plan if output.startswith("results/runs/") and "/more/" not in output]
    assert of_base and all(output.endswith(("/exam.json", "/card.json", "/README.md")) for output in of_base)


def test_averaged_weights_are_planned_after_their_milestones_and_only_with_the_run_that_they_are_of(finished, config):
    config["runs"]["base"] |= {"average": 2}
    tuned = config["runs"]["statements"]["finetune"]
    tuned |= {"epochs": 3, "milestones": [1, 2, 3]}
    del tuned["steps"]
    suites = {"suites": ["validation"]}
    config["runs"]["mean"] = suites | {
        "initial": {"run": "base", "step": 300},
        "average_weights": {"num_milestones": 2},
    }
    config["runs"]["mean_tuned"] = suites | {
        "initial": {"run": "statements", "step": 3},
        "average_weights": {"num_milestones": 2},
    }
    planned = finished.plan(config=config)
    assert rules_of(planned) == {"average_weights", "convert", "evaluate", "describe", "summarize", "all"}
    assert planned["results/runs/mean/models/00000300.json"] == "average_weights"
    assert not any("mean_tuned" in name for name in planned)
    planned = finished.plan(config=config | {"tune": True})
    assert planned["results/runs/mean_tuned/models/epoch003.json"] == "average_weights"
    assert {f"results/runs/statements/models/epoch{number:03d}.json" for number in (1, 2, 3)} <= planned.keys()


def test_a_new_optional_key_with_a_default_trains_and_scores_nothing(finished):
    path, key = finished.path / "stages/pretrain.py", "    document_mask: bool = identity(False)\n"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(key, f'    novelty: int = identity(3)\n    """New."""\n\n{key}'), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    done = finished.python("-m", "snakemake", "-n", "all")  # the other plans run in a process with this project's code
    assert rules_of(finished.jobs(done.stdout)) == {"summarize", "all"}  # the report compares code


def test_a_comment_a_docstring_and_the_software_file_plan_nothing(finished):
    for path in (finished.path / "stages").rglob("*.py"):
        path.write_text('"""Another docstring."""\n# a comment\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    finished.append("workflow/envs/caravan.yml", "# changed\n")
    assert finished.plan() == {}


def test_a_statement_in_convert_or_a_shared_module_trains_nothing_and_touch_accepts_it(finished):
    finished.append("stages/convert.py", "\nADDED = 1\n")
    assert rules_of(finished.plan()) == AFTER_CONVERT
    finished.snakemake("--touch", "--cores", 1, "all")
    assert finished.plan() == {}
    finished.append("stages/lib/files.py", "\nADDED = 1\n")
    assert rules_of(finished.plan()) == AFTER_CONVERT


def test_a_statement_in_a_training_plans_only_the_summary_that_warns_unless_asked_for(pretending):
    config = {**pretending.default_config, "tune": True}
    pretending.pretend_all_is_made(config)
    for stage in ("pretrain", "finetune"):
        pretending.append(f"stages/{stage}.py", "\nADDED = 1\n")
    assert rules_of(pretending.plan(config=config)) == {"summarize", "all"}
    config["rerun_on_code"] = True
    pretending.pretend_all_is_made(config)
    for stage in ("pretrain", "finetune"):
        pretending.append(f"stages/{stage}.py", "\nMORE = 1\n")
    assert rules_of(pretending.plan(config=config)) == {*AFTER_PRETRAIN, "finetune"}


def test_a_forced_stage_plans_itself_and_after(finished_checkout):
    assert rules_of(finished_checkout.plan("scores", "-R", "evaluate")) == {"evaluate", "scores"}
    assert rules_of(finished_checkout.plan("all", "-R", "list")) == EVERYTHING
    assert rules_of(finished_checkout.plan("all", "-R", "describe")) == {"describe", "all"}


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
    assert rules_of(plan) == AFTER_PRETRAIN and outputs_of(plan, "pretrain") == [model("base", last)]
    why = "was made with optimizer.learning_rate = 0.032, and the config has 0.0123"
    assert f"caravan: {model('base', last)} {why}: it is planned again" in done.stdout
    assert rules_of(finished.plan("tokens", *given[1:])) == set(), "a target that does not need it plans nothing"
    done = finished.dry_run(*given, "--rerun-triggers", "mtime")
    assert finished.jobs(done.stdout) == {} and f"{why}: it is not planned again" in done.stdout


def test_a_mean_is_planned_again_if_a_milestone_was_made_again_without_snakemakes_memory(finished, config):
    initial = {"run": "base", "step": 300}
    config["runs"]["mean"] = {"initial": initial, "average_weights": {"num_milestones": 2}, "suites": ["validation"]}
    finished.pretend_all_is_made(config)
    digests = {}
    for step in (100, 300):
        make_real(finished, config, step)
        digests[f"{step:08d}"] = manifest.read(finished.path / model("base", step)).digest
    path = finished.path / model("mean", 300)
    status = path.stat()
    shutil.rmtree(finished.path / ".snakemake")
    for models, planned in ((digests, set()), (digests | {"00000100": "0" * 64}, {"average_weights"})):
        identity = {"recipe": {"average_weights": {"num_milestones": 2}}, "models": models, "step": 300, "outputs": {}}
        manifest.write(path, "average_weights", identity, {})
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        plan = rules_of(finished.plan(config=config))
        assert plan & {"pretrain", "average_weights"} == planned


def test_a_finetuned_run_is_planned_if_the_config_or_the_target_includes_it(finished_checkout, config):
    plan = finished_checkout.plan(config=config | {"tune": True})
    assert rules_of(plan) == {"list", *AFTER_FINETUNE}
    assert outputs_of(plan, "finetune") == [model("statements", config["runs"]["statements"]["finetune"]["steps"])]
    assert rules_of(finished_checkout.plan("tuned")) == {"list", "finetune", "convert", "evaluate", "tuned"}


def test_a_run_on_preferences_is_planned_after_the_run_that_it_tunes(finished, config):
    tuning = config | {"tune": True}
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
    assert outputs_of(plan, "finetune") == [model("dpo", steps), *epochs]
    assert "results/runs/statements/eval/epoch002/statements.json" in plan


def test_a_changed_custom_tokenizer_plans_all_outputs_that_depend_on_it(pretending, config):
    mine = pretending.path / "my tokenizer.json"
    mine.write_text("{}")
    config["tokenizers"]["main"] = {"path": mine.name, "bos": "<s>", "eos": "</s>"}
    pretending.pretend_all_is_made(config)
    assert pretending.plan(config=config) == {}
    mine.write_text('{"changed": true}')
    assert rules_of(pretending.plan(config=config)) == EVERYTHING - {"list"}


def test_a_baseline_plans_its_scores_alone(finished, config, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    config["baselines"] = {"big": {"path": str(tmp_path)}, "hub": {"path": "org/model", "revision": "v1"}}
    plan = finished.plan(config=config)
    assert rules_of(plan) == {"evaluate_baseline", "describe", "summarize", "all"}
    scores = [f"results/baselines/{name}/main/validation.json" for name in ("big", "hub")]
    assert outputs_of(plan, "evaluate_baseline") == scores
    assert rules_of(finished.plan("scores", config=config)) == {"evaluate_baseline", "scores"}
