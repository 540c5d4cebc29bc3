"""`tools.verify --chain`: from a score back to the raw files, each link held; what is broken is named in a sentence."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
from urllib3 import HTTPResponse

from stages import convert, describe, evaluate, finetune, select_best, summarize
from stages.lib import manifest
from tests.helpers import training
from tests.helpers.data_fixtures import listed, make, run, tiny_corpus, write_jsonl
from tests.helpers.training import milestone
from tools.verify import __main__ as verify

STEPS = 2
RESULTS = Path("results")
RECIPE = {"seq_len": 32, "global_batch_size": 4, "dtype": "float32", "schedule": {"warmup_steps": 1}}
SUITE = {"tasks": ["bits_per_byte"], "bytes_per_source": 500}
PAIRS = {"kind": "prompt_completion", "paths": ["pairs.jsonl"], "validation": 0.2}
STEP = f"{STEPS:08d}"
SCORES = "results/scores.csv"
EVALUATION = f"results/runs/base/eval/{STEP}/validation.json"
MODEL, TUNED = (f"results/runs/{run}/models/{STEP}.json" for run in ("base", "tuned"))
EXPORT = f"results/runs/base/export/{STEP}"
LIST = "results/sources/a/list.json"


def make_results(place):
    """Make `place`/results with paths of raw files relative to `place`: two runs, `base` and `tuned` from it."""
    with contextlib.chdir(place):
        corpus = tiny_corpus(RESULTS, documents=60, parts=2)
        tokenizer = RESULTS / "tokenizers/main/manifest.json"
        assert training.train(corpus, RESULTS / "runs/base", STEPS, steps=STEPS) == 0
        write_jsonl(Path("pairs.jsonl"), [{"prompt": f"no. {n} ", "completion": "kara van"} for n in range(40)])
        pairs = listed(RESULTS, "pairs", PAIRS)
        tuned = {"initial": milestone(RESULTS / "runs/base", STEPS), "until": STEPS, "sources": pairs}
        tuned |= {"train_dir": RESULTS / "runs/tuned/train", "output": milestone(RESULTS / "runs/tuned", STEPS)}
        recipe = RECIPE | {"weights": {"pairs": 1}, "optimizer": {"learning_rate": 1e-3}}
        operation = training.OPERATION | {"steps": STEPS}
        make(finetune, corpus=corpus, tokenizer=tokenizer, recipe=recipe, operation=operation, **tuned)
        model, export, evaluation = score("base", corpus, tokenizer)
        lists = [RESULTS / f"sources/{source}/list.json" for source in "ab"]
        of_card = {"model": model, "export": export, "corpus": corpus, "lists": lists, "evaluations": evaluation}
        assert run(describe, **of_card, name="base", output=export.with_name("card.json")) == 0
        summarize_all(model, export, evaluation)


def score(name, corpus, tokenizer):
    """Export and score a run; return the manifests of its model, export and evaluation."""
    model, step = milestone(RESULTS / "runs" / name, STEPS), f"{STEPS:08d}"
    export = RESULTS / "runs" / name / "export" / step / "manifest.json"
    make(convert, model=model, corpus=corpus, tokenizer=tokenizer, output=export, code="c")
    output = RESULTS / "runs" / name / "eval" / step / "validation.json"
    return model, export, make(evaluate, export=export, corpus=corpus, recipe=SUITE, output=output, code="e")


def summarize_all(model, export, evaluation):
    """Write the table of scores; the tuned run has none."""
    results = {"models": [model, milestone(RESULTS / "runs/tuned", STEPS)]}
    results |= {"exports": export, "evaluations": evaluation}
    places = {"scores": RESULTS / "scores.csv", "figures": RESULTS / "figures", "output": RESULTS / "summary.json"}
    assert run(summarize, **results, **places) == 0


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


def chain(capsys, path=SCORES, *options):
    """Return (lines of the tree, last line of stderr) of a chain; "" if it holds."""
    code = verify.main(["--chain", str(path), *options])
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
    assert "results/a.jsonl is missing" in error  # raw files are named from the workflow's directory


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


def written_again(path, change):
    """Change a manifest, and give it the sha256 of what it then holds."""
    data = json.loads(Path(path).read_text())
    change(data)
    manifest.write(path, data["stage"], data["identity"], data["record"])


def damaged(pattern, old, new):
    """Change a text in a file, or a key of a manifest that is signed again, or delete the file; return its path."""
    (path,) = Path().glob(pattern)
    if old is None:
        path.unlink()
    elif old.startswith(("identity.", "record.")):
        part, key = old.split(".")
        written_again(path, lambda data: data[part].update({key: new}))
    else:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    return path


CARD = "results/runs/base/export/*"
FAULTS = [
    # file, what is replaced in it and by what; where the chain begins, and words of its error after the file's name
    (EVALUATION, '"step": 2', '"step": 3', SCORES, " changed since it was written"),
    (EVALUATION, "identity.tokens", 9, SCORES, " differs from the evaluation that results/summary.json was made from"),
    (EVALUATION, "identity.tokens", 9, EVALUATION, " has other scores than"),
    ("results/a.jsonl", "ka", "kA", EVALUATION, " changed since"),
    ("results/a.jsonl", None, None, EVALUATION, " is missing"),
    ("pairs.jsonl", "kara", "cara", TUNED, "/pairs/list.json or its files differ from those that results/runs/tuned/m"),
    ("results/tokens/main/b/00001.json", None, None, SCORES, ""),
    ("results/sources/b/list.json", None, None, SCORES, ""),
    ("results/summary.json", None, None, SCORES, ""),
    ("results/tokenizers/main/manifest.json", None, None, SCORES, "results/tokenizers/*/manifest.json"),
    ("results/tokens/main/manifest.json", None, None, SCORES, "results/tokens/*/manifest.json"),
    (f"{EXPORT}/parity.json", None, None, SCORES, ""),
    # as if its job had run another time
    (EVALUATION, "record.seconds", 1e9, SCORES, " was written again since results/"),
    (LIST, "record.seconds", 1e9, SCORES, " was written again since results/"),
    (f"{EXPORT}/manifest.json", "record.seconds", 1e9, SCORES, " was written again since results/"),
    # each file that report or card shows is under a digest
    (f"{CARD}/parity.json", '"max_difference": ', '"max_difference": 123', SCORES, " "),
    ("results/runs/base/train/*/metrics.jsonl", '"loss": ', '"loss": 1', SCORES, " "),
    ("results/runs/tuned/train/*/events.jsonl", '"finish"', '"finisH"', SCORES, " "),
    (f"{CARD}/README.md", " 3.", " 1.", SCORES, " "),
    ("results/card.html", "bits_per_byte", "bits_per_bite", SCORES, " "),
    (EVALUATION.replace(".json", "/bits_per_byte_a.jsonl"), "a", "b", SCORES, " "),
]


@pytest.mark.parametrize(("pattern", "old", "new", "start", "words"), FAULTS)
def test_broken_link_is_named(place, capsys, pattern, old, new, start, words):
    path = damaged(pattern, old, new)
    tree, error = chain(capsys, start)
    assert (words if "/" in words[:-1] and words[0] != " " else f"{path}{words}") in error
    assert ".jsonl" not in pattern or any("WRONG" in line for line in tree)


PART = "results/tokens/main/a/00000.json"
CORPUS = "results/tokens/main/manifest.json"
TOKENIZER = "results/tokenizers/main/manifest.json"
HASHES = Path("results/hashes/main/manifest.json")


def of_others(manifest_of, **keys):
    """Return a change of a manifest, signed again: keys of its identity."""
    return lambda: written_again(manifest_of, lambda data: data["identity"].update(keys))


def left_out(digest, *lists):
    """A part that left out the duplicates of a digest; `lists`: contents of the files that a manifest says it found."""
    of_others(PART, duplicates=digest)()
    for content in lists:
        HASHES.parent.mkdir(parents=True)
        (HASHES.parent / "duplicates.bin").write_bytes(content)
        found = {"duplicates.bin": manifest.describe(HASHES.parent / "duplicates.bin")}
        manifest.write(HASHES, "find_duplicates", {"outputs": found}, {})


def table(content):
    """Another table of scores, which its manifest has the digest of."""
    Path(SCORES).write_bytes(content)
    outputs = manifest.read("results/summary.json").identity["outputs"]
    of_others("results/summary.json", outputs=outputs | {"scores.csv": manifest.describe(SCORES)})()


def tasks(*names):
    """A suite with the user's task files of another digest; `names`: of the files that are there."""
    of_others(EVALUATION, include="0" * 64)()
    written_again(EVALUATION, lambda data: data["identity"]["recipe"].update(include_path="mine"))
    for name in names:
        Path("mine").mkdir()
        Path("mine", name).write_text("task: mine")


def taken(digest):
    """A tokenizer that was not trained here but taken from a file of a digest."""
    record = {"taken": {"path": "pairs.jsonl", "bytes": 1, "sha256": digest}}
    written_again(TOKENIZER, lambda data: data["record"].update(record))


@pytest.mark.parametrize(
    ("change", "start", "sentence"),
    [
        (of_others(PART, tokenizer="0" * 64), CORPUS, f"{PART} has another tokenizer than {CORPUS}"),
        (
            of_others(PART, train={"shards": []}, outputs={}),
            CORPUS,
            f"{PART} has other shards than the part that {CORPUS} was made from",
        ),
        (lambda: left_out("0" * 64), PART, f"{HASHES} is missing, and {PART} was made from it"),
        (lambda: left_out("0" * 64, b"others"), PART, f"{HASHES} lists other duplicates than {PART} left out"),
        (
            lambda: table(b"walk,step\n"),
            SCORES,
            f"{SCORES} must be a table with the columns run, step, task, metric and",
        ),
        (lambda: table(b"run,step,task,metric,value\n\xff"), SCORES, f"{SCORES} cannot be read as a table of scores: "),
        (tasks, EVALUATION, f"mine is missing, and {EVALUATION} was made with its task files"),
        (lambda: tasks("mine.yaml"), EVALUATION, f"mine has other task files than {EVALUATION} was made with"),
        (lambda: taken("0" * 64), TOKENIZER, f"pairs.jsonl changed since {TOKENIZER} was made from it: its sha256"),
        (
            lambda: (taken("0"), Path("pairs.jsonl").unlink()),
            TOKENIZER,
            "pairs.jsonl is missing, and results/tokenizer",
        ),
    ],
)
def test_what_a_manifest_was_made_from_and_differs_is_named(place, capsys, change, start, sentence):
    change()
    assert sentence in "\n".join(chain(capsys, start)[0])


def test_manifest_of_another_run_is_refused(place, capsys):
    shutil.copyfile(TUNED, MODEL)
    assert f"{MODEL} differs from the model that {EXPORT}" in chain(capsys, EVALUATION)[1]


def test_logs_of_a_training_that_continues_may_grow(place, capsys):
    (logs,) = Path("results/runs/base/train").iterdir()
    with open(logs / "metrics.jsonl", "a") as file:
        file.write("{}\n")
    assert chain(capsys)[1] == ""


def test_damaged_manifest_is_named_once_for_all_that_need_it(place, capsys):
    path = damaged("results/tokenizers/main/manifest.json", '"unk": 0', '"unk": 7')
    tree, error = chain(capsys)
    assert error == f"verify: {path} changed since it was written: its sha256 differs from its content's; " + (
        "delete it and run the workflow again"
    )
    assert sum("WRONG" in line for line in tree) == 1


def test_part_of_other_files_than_the_list_is_refused(place, capsys):
    path = Path("results/tokens/main/a/00000.json")
    more = {"name": "new.jsonl", "bytes": 10}
    written_again(LIST, lambda data: data["identity"]["files"].append(more))
    written_again(path, lambda data: data["record"].update(list=manifest.read(LIST).digest))
    assert " of the files of results/sources/a/list.json" in chain(capsys, path)[1]


def test_initial_model_from_elsewhere_and_remote_files_are_not_proven(place, capsys):
    shutil.rmtree("results/runs/base")
    tree, error = chain(capsys, TUNED)
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


def test_files_without_a_digest_are_named(place, capsys):
    weights, note = (Path(EXPORT) / name for name in ("pytorch_model.bin", "note.txt"))
    note.write_text("mine")
    Path("results/report.html").write_text("by Snakemake")
    tree, error = chain(capsys)
    assert error == "" and all(f"not proven: {path}: " in "".join(tree) for path in (note, "results/report.html"))
    weights.write_bytes(b"other weights")
    assert chain(capsys)[1].startswith(f"verify: {weights} lies in the export, and ")


def test_summary_of_an_earlier_version_says_what_it_does_not_prove(place, capsys):
    for path in Path("results").rglob("*.json"):
        data = json.loads(path.read_text())
        if manifest.is_manifest(data):
            record = {key: value for key, value in data["record"].items() if key not in ("files", "logs", "manifests")}
            manifest.write(path, data["stage"], data["identity"], record)
    tree, error = chain(capsys)
    assert error == ""
    unproven = ("curves, the plan", "the figures of", "its metrics.jsonl", "the losses and records", "its local tasks")
    for what in unproven:
        assert any("not proven: " in line and what in line for line in tree), what


def test_score_without_an_evaluation_is_found_though_the_summary_was_written_again(place, capsys):
    inside = Path(EVALUATION).relative_to("results").as_posix()
    written_again("results/summary.json", lambda data: data["identity"]["inputs"].pop(inside))
    _tree, error = chain(capsys)
    assert f"{SCORES} line 2 has bits_per_byte_a (bits_per_byte) of base at step {STEPS}, which no evaluation" in error


@pytest.fixture
def ladder(place):
    """A prediction from one model, that the summary was made with."""
    model = manifest.read(MODEL)
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
    Path(EXPORT, "card.json").unlink()
    return path


def test_chain_has_the_models_of_a_ladder(ladder, capsys):
    tree, error = chain(capsys)
    assert error == "" and f"  {ladder}: predict" in "\n".join(tree)
    tree, error = chain(capsys, ladder)
    assert error == "" and tree[2].startswith(f"  {MODEL}: pretrain")


def test_point_of_a_ladder_that_its_model_does_not_have_is_named(ladder, capsys):
    written_again(MODEL, lambda data: data["record"]["validation"]["a"].update(loss=1.0))
    tree, _ = chain(capsys)
    assert any(line.endswith(f"{ladder} has a validation loss of 2.0, and {MODEL} has 1.0") for line in tree)


def test_chain_goes_from_what_exists_so_far(place, capsys):
    assert summarize.main(["--results", "results"]) == 0
    capsys.readouterr()
    tree, error = chain(capsys, "results/so_far/scores.csv")
    assert error == "" and any("raw file of b" in line for line in tree)


def test_chain_goes_from_the_best_of_a_sweep(place, capsys):
    evaluation, model = manifest.read(EVALUATION), manifest.read(MODEL)
    best = Path("results/sweeps/lr/best.json")
    recipe = json.dumps({"metric": "bits_per_byte", "mode": "min"})
    arguments = ["--models", str(model.path), "--evaluations", str(evaluation.path), "--output", str(best)]
    assert select_best.main([*arguments, "--recipe", recipe]) == 0
    capsys.readouterr()
    tree, error = chain(capsys, best)
    assert error == "" and any(line.startswith(f"  {model.path}: pretrain") for line in tree)


CRATE = Path("results/ro-crate-metadata.json")


def ids(value):
    """The @id of the references in a value: none, one, or a list of them."""
    return [item["@id"] for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def test_crate_goes_from_the_scores_to_the_raw_files_and_has_the_sha256_of_each_file(place, capsys):
    Path("results/runs").rename("scratch")
    Path("results/runs").symlink_to("../scratch")
    tree, error = chain(capsys, SCORES, "--crate")
    assert error == "" and tree[-1] == f"{CRATE}: the directory is a Workflow Run RO-Crate of this chain"
    graph = json.loads(CRATE.read_text())["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    assert len(entities) == len(graph)
    named = {name for entity in graph for value in entity.values() for name in ids(value)}
    assert {name for name in named if not name.startswith("http")} <= entities.keys()
    listed = [entity for entity in graph if entity["@type"] == "File"]
    for entity in listed:
        described = {"bytes": int(entity["contentSize"]), "sha256": entity["sha256"]}
        assert manifest.describe(Path("results", entity["@id"])) == described
    assert {entity["@id"] for entity in listed} < set(ids(entities["./"]["hasPart"]))
    assert all(Path("results", entity["@id"]).exists() for entity in graph if entity["@id"].startswith("workflow/"))
    made_by = {name: action for action in graph for name in ids(action.get("result")) if action["@id"] != "#run"}
    reached, waiting = set(), ["scores.csv"]
    while waiting:
        name = waiting.pop()
        if name in made_by and name not in reached:
            waiting += ids(made_by[name]["object"])
        reached.add(name)
    assert {"#source/a", "#source/b", "#source/pairs", f"runs/base/models/{STEP}.json"} <= reached
    assert f"runs/base/export/{STEP}/README.md" not in reached  # the card is made of the export


PROFILES = ("workflow-ro-crate-1.0", "process-run-crate-0.5", "workflow-run-crate-0.5", "provenance-run-crate-0.5")


@pytest.mark.standards
def test_crate_conforms_to_the_profiles(place, capsys, monkeypatch):
    services = pytest.importorskip("rocrate_validator.services", reason="make test-standards installs it")
    requests, rocrate = pytest.importorskip("requests"), pytest.importorskip("rocrate")

    def send(self, request, **options):
        """Answer with the context of RO-Crate 1.1 as the package rocrate has it; nothing else is there."""
        if request.url != "https://w3id.org/ro/crate/1.1/context":
            raise requests.ConnectionError(request.url)
        response = requests.Response()
        response.status_code, response.url, response.request = 200, request.url, request
        content = Path(rocrate.__file__).with_name("data").joinpath("ro-crate.jsonld").read_bytes()
        response.raw = HTTPResponse(io.BytesIO(content), preload_content=False, status=200)
        response.headers["Content-Type"] = "application/ld+json"
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)

    def issues_of(profile):
        settings = services.ValidationSettings(rocrate_uri="results", profile_identifier=profile)
        return [issue.message for issue in services.validate(settings).get_issues()]

    assert chain(capsys, SCORES, "--crate")[1] == ""
    assert [issues_of(profile) for profile in PROFILES] == [[]] * len(PROFILES)
    crate = json.loads(CRATE.read_text())
    CRATE.write_text(json.dumps(crate | {"@graph": [entity for entity in crate["@graph"] if entity["@id"] != "#run"]}))
    assert issues_of(PROFILES[-1]), "the validator reads the crate"


CORPUS = "results/tokens/main/manifest.json"


@pytest.mark.parametrize(
    ("arguments", "made", "sentence"),
    [
        (["--crate", MODEL], None, "--crate must be given with --chain and one path, of the chain that the crate desc"),
        (["--crate", "--chain", SCORES, MODEL], None, "--crate must be given with --chain and one path"),
        (["--crate", "--chain", SCORES], CRATE, f"--crate would replace {CRATE}: delete or move what exists first"),
        (["--crate", "--chain", SCORES], "results/workflow", "--crate would replace results/workflow"),
        (["--crate", "--chain", CORPUS], None, f"{CORPUS} was made from no milestone of a run; --crate must be given"),
        (["--crate", "--chain", "results/none.json"], None, "results/none.json "),
    ],
)
def test_crate_that_cannot_be_written_is_one_sentence(place, capsys, arguments, made, sentence):
    if made:
        Path(made).write_text("mine")
    before = sorted(Path("results").iterdir())
    assert verify.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"verify: {sentence}") and error.count("\n") == 1
    assert sorted(Path("results").iterdir()) == before


def test_no_half_of_a_crate_is_left(place, capsys, monkeypatch):
    before = sorted(Path("results").iterdir())
    monkeypatch.setattr(verify.crate.files, "write_json", None)
    assert verify.main(["--crate", "--chain", SCORES]) == 1
    assert sorted(Path("results").iterdir()) == before


@pytest.mark.parametrize("damage", [(EVALUATION, '"step": 2', '"step": 3'), (LIST, None, None), (MODEL, "{", "")])
def test_no_crate_of_a_broken_chain_is_written(place, capsys, damage):
    path = damaged(*damage)
    assert str(path) in chain(capsys, SCORES, "--crate")[1]
    assert not CRATE.exists() and not Path("results/workflow").exists()
