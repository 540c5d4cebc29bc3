"""`tools.verify --chain`: from a score back to the raw files, each link held; what is broken is named in a sentence."""

import json
import shutil
from pathlib import Path

import pytest

from stages import select_best, summarize
from stages.lib import manifest
from tests.helpers.chain_fixtures import STEPS, make_results
from tools.verify import __main__ as verify

STEP = f"{STEPS:08d}"
SCORES = "results/scores.csv"
EVALUATION = f"results/runs/base/eval/{STEP}/validation.json"
LIST = Path("results/sources/a/list.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A place with results whose chain holds."""
    place = tmp_path_factory.mktemp("chain")
    make_results(place)
    return place


@pytest.fixture
def place(whole, tmp_path, monkeypatch):
    """A copy of it, which is the working directory."""
    copy = shutil.copytree(whole, tmp_path / "place")
    monkeypatch.chdir(copy)
    return copy


def chain(capsys, path=SCORES):
    """Return (lines of the tree, last line of stderr) of a chain; "" if it holds."""
    code = verify.main(["--chain", str(path)])
    told = capsys.readouterr()
    assert (code == 2) == bool(told.err)
    assert "Traceback" not in told.err and len(told.err.splitlines()) <= 1
    return told.out.splitlines(), told.err.strip()


def test_chain_goes_from_a_score_to_the_raw_files(place, capsys):
    tree, error = chain(capsys)
    assert error == ""
    for line in (
        "results/summary.json: summarize",
        f"  {EVALUATION}: evaluate",
        f"    results/runs/base/export/{STEP}/manifest.json: convert",
        f"      results/runs/base/export/{STEP}/card.json: describe",
        f"      results/runs/base/models/{STEP}.json: pretrain",
        "        results/tokens/main/manifest.json: index",
        "          results/tokens/main/a/00001.json: tokenize",
        "            results/sources/a/list.json: list",
        "            1 raw file of a",
        f"  results/runs/tuned/models/{STEP}.json: finetune",
        f"    results/runs/base/models/{STEP}.json (above)",
        "    1 raw file of pairs",
    ):
        assert any(found.startswith(line) for found in tree), line
    assert sum(": index" in line for line in tree) == 1  # a manifest is followed once
    assert " and 3 raw files " in tree[-1] and tree[-1].endswith("; 2 not proven, named above")


def test_chain_begins_at_any_manifest_and_in_its_directory(place, capsys, monkeypatch):
    tree, error = chain(capsys, EVALUATION)
    assert error == "" and tree[0].startswith(f"{EVALUATION}: ") and any("raw file of b" in line for line in tree)
    monkeypatch.chdir(Path(EVALUATION).parent)
    tree, error = chain(capsys, "validation.json")
    assert tree[1].strip().startswith(f"../../../../runs/base/export/{STEP}/manifest.json: convert")
    assert "texts/a.jsonl is missing" in error  # raw files are named from the workflow's directory


def test_changed_score_is_named_with_its_evaluation(place, capsys):
    lines = Path(SCORES).read_text().splitlines()
    cells = lines[1].split(",")
    cells[5] = "1.5"
    Path(SCORES).write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    _tree, error = chain(capsys)
    found = manifest.read(EVALUATION).identity["results"][cells[3]][cells[4]]["value"]
    assert error == f"verify: {SCORES} line 2: value of {cells[3]} is 1.5, and in {EVALUATION} {found}"


def test_changed_score_is_found_though_the_summary_was_written_again(place, capsys):
    Path(SCORES).write_text(Path(SCORES).read_text().replace(f"base,{STEPS},", f"base,{STEPS},1", 1) + "\n")
    summary = manifest.read("results/summary.json")
    outputs = summary.identity["outputs"] | {"scores.csv": manifest.describe(SCORES)}
    manifest.write(summary.path, "summarize", summary.identity | {"outputs": outputs}, summary.record)
    assert chain(capsys)[1] == ""  # the column of tokens is no score
    lines = Path(SCORES).read_text().splitlines()
    Path(SCORES).write_text("\n".join([*lines, f"base,{STEPS},8,mmlu,acc,0.99,,"]) + "\n")
    assert "has mmlu (acc) of base at step 2, which no evaluation has" in chain(capsys)[1]


def test_evaluation_that_was_edited_is_refused(place, capsys):
    Path(EVALUATION).write_text(Path(EVALUATION).read_text().replace('"step": 2', '"step": 3'))
    assert f"{EVALUATION} changed since it was written" in chain(capsys)[1]


def test_evaluation_with_other_scores_and_a_valid_digest_is_another(place, capsys):
    made = manifest.read(EVALUATION)
    manifest.write(made.path, "evaluate", made.identity | {"tokens": 9}, made.record)
    _tree, error = chain(capsys)
    assert f"{EVALUATION} differs from the evaluation that results/summary.json was made from" in error
    assert "has other scores than" in chain(capsys, EVALUATION)[1]


def test_manifest_of_another_run_is_refused(place, capsys):
    shutil.copyfile(f"results/runs/tuned/models/{STEP}.json", f"results/runs/base/models/{STEP}.json")
    error = chain(capsys, EVALUATION)[1]
    assert f"results/runs/base/models/{STEP}.json differs from the model that results/runs/base/export" in error


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"), "changed since"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_raw_file_that_differs_is_named(place, capsys, spoil, reason):
    path = Path(json.loads(LIST.read_text())["identity"]["files"][0]["name"])
    spoil(path)
    tree, error = chain(capsys, EVALUATION)
    assert f"{path} {reason}" in error
    assert any("WRONG" in line for line in tree)


def test_raw_file_of_tuning_that_differs_is_named(place, capsys):
    text = Path("pairs.jsonl").read_text()
    Path("pairs.jsonl").write_text(text.replace("kara", "cara"))
    error = chain(capsys, f"results/runs/tuned/models/{STEP}.json")[1]
    assert "results/sources/pairs/list.json or its files differ from those that results/runs/tuned/models" in error


@pytest.mark.parametrize(
    "path",
    [
        *("results/tokens/main/b/00001.json", "results/sources/b/list.json", "results/summary.json"),
        *("results/tokenizers/main/manifest.json", "results/tokens/main/manifest.json"),
        f"results/runs/base/export/{STEP}/parity.json",
    ],
)
def test_missing_link_is_named(place, capsys, path):
    Path(path).unlink()
    named = path.replace("/main/manifest.json", "/*/manifest.json")
    assert named in chain(capsys)[1]


def test_damaged_manifest_is_named_once_for_all_that_need_it(place, capsys):
    path = Path("results/tokenizers/main/manifest.json")
    path.write_text(path.read_text().replace('"unk": 0', '"unk": 7'))
    tree, error = chain(capsys)
    assert error == f"verify: {path} changed since it was written: its sha256 differs from its content's; " + (
        "delete it and run the workflow again"
    )
    assert sum("WRONG" in line for line in tree) == 1


def test_part_of_other_files_than_the_list_is_refused(place, capsys):
    path = Path("results/tokens/main/a/00000.json")
    part, listed = manifest.read(path), manifest.read(LIST)
    more = {"name": "texts/new.jsonl", "bytes": 10}
    manifest.write(LIST, "list", listed.identity | {"files": [*listed.identity["files"], more]}, listed.record)
    manifest.write(path, "tokenize", part.identity, part.record | {"list": manifest.read(LIST).digest})
    assert " of the files of results/sources/a/list.json" in chain(capsys, path)[1]


def test_initial_model_from_elsewhere_and_remote_files_are_not_proven(place, capsys):
    shutil.rmtree("results/runs/base")
    tree, error = chain(capsys, f"results/runs/tuned/models/{STEP}.json")
    assert error == "" and "no milestone of these results has this digest" in "".join(tree)
    path = Path("results/tokens/main/a/00001.json")  # the part with the file's middle
    part = manifest.read(path)
    remote = [{key: value for key, value in file.items() if key != "sha256"} for file in part.identity["inputs"]]
    identity = part.identity | {"inputs": [file | {"etag": "e"} for file in remote]}
    manifest.write(path, "tokenize", identity, part.record)
    tree, error = chain(capsys, path)
    assert error == "" and "not proven: the content of 1 remote file: etags are kept" in "".join(tree)


@pytest.mark.parametrize("path", ["results/summary.txt", "none.json", "none/scores.csv"])
def test_file_without_a_chain_is_refused(place, capsys, path):
    assert f"{path}" in chain(capsys, path)[1]


def written_again(path, change):
    """Change a manifest, and give it the sha256 of what it then holds."""
    data = json.loads(Path(path).read_text())
    change(data)
    manifest.write(path, data["stage"], data["identity"], data["record"])


def edited(pattern, old, new):
    """Change a file's text; return its path."""
    (path,) = Path("results").glob(pattern)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return path


EXPORT = f"runs/base/export/{STEP}"
SHOWN = {
    "a figure of parity.json": lambda: edited(f"{EXPORT}/parity.json", '"max_difference": ', '"max_difference": 123'),
    "a line of metrics.jsonl": lambda: edited("runs/base/train/*/metrics.jsonl", '"loss": ', '"loss": 1'),
    "an event": lambda: edited("runs/tuned/train/*/events.jsonl", '"finish"', '"finisH"'),
    "a score in the card": lambda: edited(f"{EXPORT}/README.md", " 3.", " 1."),
    "a score in the report": lambda: edited("card.html", "bits_per_byte", "bits_per_bite"),
    "data of a task": lambda: edited(f"runs/base/eval/{STEP}/validation/bits_per_byte_a.jsonl", "a", "b"),
}


@pytest.mark.parametrize("what", SHOWN)
def test_each_file_that_report_or_card_shows_is_under_a_digest(place, capsys, what):
    (logs,) = Path("results/runs/base/train").iterdir()
    with open(logs / "metrics.jsonl", "a") as file:  # a training that goes on: its logs grow
        file.write("{}\n")
    assert chain(capsys)[1] == ""
    path = SHOWN[what]()
    assert f"verify: {path} " in chain(capsys)[1]


def test_files_without_a_digest_are_named(place, capsys):
    weights, note = (Path("results") / EXPORT / name for name in ("pytorch_model.bin", "note.txt"))
    note.write_text("mine")
    Path("results/report.html").write_text("by Snakemake")
    tree, error = chain(capsys)
    assert error == "" and all(f"not proven: {path}: " in "".join(tree) for path in (note, "results/report.html"))
    weights.write_bytes(b"other weights")
    assert chain(capsys)[1].startswith(f"verify: {weights} lies in the export, and ")


@pytest.mark.parametrize("path", [EVALUATION, str(LIST), f"results/{EXPORT}/manifest.json"])
def test_record_that_was_signed_again_is_named(place, capsys, path):
    written_again(path, lambda data: data["record"].update(seconds=1e9))  # as if its job had run another time
    assert f"{path} was written again since results/" in chain(capsys)[1]


def test_summary_of_an_earlier_version_says_what_it_does_not_prove(place, capsys):
    for path in Path("results").rglob("*.json"):
        data = json.loads(path.read_text())
        if manifest.is_manifest(data):
            record = {key: value for key, value in data["record"].items() if key not in ("files", "logs", "manifests")}
            manifest.write(path, data["stage"], data["identity"], record)
    tree, error = chain(capsys)
    assert error == ""
    for what in (
        "curves, the plan",
        "the figures of",
        "its metrics.jsonl",
        "the losses and records",
        "its local tasks",
    ):
        assert any("not proven: " in line and what in line for line in tree), what


def test_score_without_an_evaluation_is_found_though_the_summary_was_written_again(place, capsys):
    inside = Path(EVALUATION).relative_to("results").as_posix()
    written_again("results/summary.json", lambda data: data["identity"]["inputs"].pop(inside))
    _tree, error = chain(capsys)
    assert f"{SCORES} line 2 has bits_per_byte_a (bits_per_byte) of base at step {STEPS}, which no evaluation" in error


@pytest.fixture
def ladder(place):
    """A prediction from one model, that the summary was made with."""
    model = manifest.read(f"results/runs/base/models/{STEP}.json")
    validation = {"a": {"loss": 2.0, "loss_bits_per_byte": 1.5}}
    written_again(model.path, lambda data: data["record"].update(validation=validation))
    known = {
        "recipe": {"target": "large", "weights": {"a": 1.0}},
        "corpus": model.identity["corpus"],
        "models": {"base": model.digest},
        "points": [{"run": "base", "loss": 2.0, "loss_bits_per_byte": 1.5}],
    }
    path = Path("results/ladders/small.json")
    manifest.write(path, "predict", known, {})
    digest = manifest.read(path).digest
    written_again(
        "results/summary.json",
        lambda data: (
            data["identity"]["inputs"].update({"ladders/small.json": digest}),
            data["record"]["manifests"].update({f"runs/base/models/{STEP}.json": manifest.read(model.path).sha256}),
        ),
    )
    Path("results", EXPORT, "card.json").unlink()
    return path


def test_chain_has_the_models_of_a_ladder(ladder, capsys):
    tree, error = chain(capsys)
    assert error == "" and f"  {ladder}: predict" in "\n".join(tree)
    tree, error = chain(capsys, ladder)
    assert error == "" and tree[2].startswith(f"  results/runs/base/models/{STEP}.json: pretrain")


def test_point_of_a_ladder_that_its_model_does_not_have_is_named(ladder, capsys):
    path = f"results/runs/base/models/{STEP}.json"
    written_again(path, lambda data: data["record"]["validation"]["a"].update(loss=1.0))
    tree, _ = chain(capsys)
    assert any(line.endswith(f"{ladder} has a validation loss of 2.0, and {path} has 1.0") for line in tree)


def test_chain_goes_from_what_exists_so_far(place, capsys):
    assert summarize.main(["--results", "results"]) == 0
    capsys.readouterr()
    tree, error = chain(capsys, "results/so_far/scores.csv")
    assert error == "" and any("raw file of b" in line for line in tree)


def test_chain_goes_from_the_best_of_a_sweep(place, capsys):
    evaluation, model = manifest.read(EVALUATION), manifest.read(f"results/runs/base/models/{STEP}.json")
    best = Path("results/sweeps/lr/best.json")
    recipe = json.dumps({"metric": "bits_per_byte", "mode": "min"})
    arguments = ["--models", str(model.path), "--evaluations", str(evaluation.path), "--output", str(best)]
    assert select_best.main([*arguments, "--recipe", recipe]) == 0
    capsys.readouterr()
    tree, error = chain(capsys, best)
    assert error == "" and any(line.startswith(f"  {model.path}: pretrain") for line in tree)
