"""Tables of several runs: what differs between them, final scores, the best marked, means over seeds."""

import csv
import json

import pytest

from stages import summarize
from stages.lib import manifest
from stages.lib.results.manifests import Results
from stages.lib.results.run_tables import Column, heat_map, run_tables
from stages.lib.results.scores import score_rows
from tests.helpers.export_fixtures import argv_of
from tests.helpers.manifests import rewrite
from tests.helpers.summary_fixtures import lines

__all__ = ["lines"]
pytestmark = pytest.mark.usefixtures("lines")  # no figure is drawn

MODEL = {"num_hidden_layers": 1, "hidden_size": 8}
DEFAULTS = {"pretrain": {"seed": 0, "optimizer.learning_rate": 0.0003, "optimizer.beta1": 0.9}}


def write_run(root, name, bits, stage="pretrain", acc=0.5, **keys):
    """Write a model of 20 steps, and its scores after 10 and 20. `keys`: of its recipe."""
    recipe = {"model": MODEL, "weights": {"code": 1.0}} | keys
    identity = {"recipe": recipe, "step": 20, "tokens": 5120, "outputs": {}, "initial": "0", "corpus": "c" * 64}
    path = root / "runs" / name / "models/00000020.json"
    manifest.write(path, stage, identity, {"run_directory": "../train/0", "horizon": {"steps": 20}})
    for step, value in ((10, bits + 1), (20, bits)):
        scores = {
            "bits_per_byte_code": {"bits_per_byte": {"value": value, "stderr": 0.02, "n": 9}},
            "next_line": {"acc_mutual_info": {"value": acc, "stderr": None}},
        }
        path = root / "runs" / name / f"eval/{step:08d}/validation.json"
        identity = {"recipe": {}, "export": "e", "step": step, "tokens": step * 256, "results": scores, "outputs": {}}
        manifest.write(path, "evaluate", identity, {})


@pytest.fixture
def root(tmp_path):
    """Four runs: two learning rates, of which one is the default, and two seeds."""
    for rate in (None, 0.001):
        for seed in (0, 1):
            keys = {"optimizer": {"learning_rate": rate}} if rate else {}
            keys |= {"seed": seed} if seed else {}
            bits = 2.5 + (rate or 0) * 100 - seed / 10
            write_run(tmp_path, f"lr-{rate or 0.0003}-{seed}", bits, acc=0.5 + seed / 10, **keys)
    return tmp_path


def files_of(root):
    return [sorted(root.glob(f"runs/*/{pattern}")) for pattern in ("models/*.json", "export/*/m.json", "eval/*/*.json")]


def summarized(root):
    """Run the stage; return the lines of the summary, and the rows of the table of scores."""
    models, _, evaluations = files_of(root)
    argv = ["--models", *map(str, models), "--evaluations", *map(str, evaluations)]
    more = {"--scores": root / "scores.csv", "--figures": root / "figures", "--output": root / "summary.json"}
    assert summarize.main([*argv, *argv_of(more), "--expect", json.dumps({"runs": {}, "defaults": DEFAULTS})]) == 0
    with open(root / "scores.csv", newline="") as file:
        return (root / "summary.txt").read_text().splitlines(), list(csv.DictReader(file))


def tables_of(root, runs=None):
    results = Results(*files_of(root))
    return run_tables(results, score_rows(results), {"defaults": DEFAULTS}, runs)


def test_text_has_the_means_over_seeds_and_all_runs_with_the_best_marked_and_csv_what_differs(root):
    lines, rows = summarized(root)
    assert lines[:9] == [
        "Means over seeds of 4 pretrained runs (+- deviation over seeds; error over documents), best bits_per_byte_code"
        " first, * the best of a column:",
        "  run                     learning_rate      bits_per_byte_code        next_line",
        "  lr-0.0003-0 and 1 more         0.0003  2.450 +- 0.071 (0.020)*  0.550 +- 0.071",
        "  lr-0.001-0 and 1 more           0.001  2.550 +- 0.071 (0.020)   0.550 +- 0.071",
        "",
        "4 pretrained runs (+- standard error), best bits_per_byte_code first, * the best of a column:",
        "  run          learning_rate  seed  bits_per_byte_code   next_line",
        "  lr-0.0003-1         0.0003     1      2.400 +- 0.020*      0.600*",
        "  lr-0.0003-0         0.0003     0      2.500 +- 0.020       0.500",
    ]
    assert list(rows[0])[-3:] == ["clean_n", "optimizer.learning_rate", "seed"]
    found = {(row["run"], row["optimizer.learning_rate"], row["seed"]) for row in rows}
    assert found == {(f"lr-{rate}-{seed}", rate, seed) for rate in ("0.0003", "0.001") for seed in ("0", "1")}
    assert len(rows) == 4 * 2 * 2


def test_steps_corpus_and_initial_model_are_keys_too(root, tmp_path):
    write_run(tmp_path, "other", 2.0)
    record = {"horizon": {"steps": 40}, "initial": "results/runs/base/models/00000300.json"}
    rewrite(tmp_path / "runs/other/models/00000020.json", record=record)
    corpora = {name: {"corpus": "a"} for name in ("lr-0.0003-0",)}
    results = Results(*files_of(root))
    (table,) = run_tables(results, score_rows(results), {"defaults": DEFAULTS, "runs": corpora | {"other": {}}})
    assert table.keys == ("corpus", "initial", "optimizer.learning_rate", "steps", "seed")
    values = {row.runs[0]: row.values for row in table.rows}
    assert (values["other"]["steps"], values["other"]["initial"]) == (40, "base, step 300")
    assert (values["lr-0.0003-0"]["corpus"], values["lr-0.001-0"]["corpus"]) == ("a", "c" * 12)


def test_what_is_taken_from_an_initial_model_differs_only_among_runs_that_have_one(root):
    for name, optimizer in (("kept", "keep"), ("reset", "reset")):
        write_run(root, name, 2.0, initial={"optimizer": optimizer, "data": "reset"})
        rewrite(root / f"runs/{name}/models/00000020.json", record={"initial": "results/sweeps/lr/best.json"})
    (table,) = tables_of(root)
    assert table.keys == ("initial", "initial.optimizer", "optimizer.learning_rate", "seed")
    assert {row.values["initial"] for row in table.rows} == {None, "best run of the sweep lr"}
    assert tables_of(root, {"kept", "lr-0.001-0"})[0].keys == ("initial", "optimizer.learning_rate")


def test_a_heat_map_needs_two_keys_beside_the_seed(root):
    assert heat_map(tables_of(root)[0], Column(task="next_line", metric="acc_mutual_info")) is None
    for rate in (0.0003, 0.001):
        write_run(root, f"beta-{rate}", 3.0, optimizer={"learning_rate": rate, "beta1": 0.8})
    (table,) = tables_of(root)
    found = heat_map(table, Column(task="bits_per_byte_code", metric="bits_per_byte"))
    assert (found.y_key, found.y_values) == ("optimizer.beta1", (0.8, 0.9))
    assert (found.x_key, found.x_values) == ("optimizer.learning_rate", (0.0003, 0.001))
    values = [[round(score.value, 3) for score in row] for row in found.scores]
    assert values == [[3.0, 3.0], [2.45, 2.55]]
    assert [[score.is_best for score in row] for row in found.scores] == [[False, False], [True, False]]


def test_a_table_may_have_the_runs_of_one_sweep(root):
    (table,) = tables_of(root, {"lr-0.001-0", "lr-0.001-1"})
    assert table.keys == ("seed",)
    assert [row.runs for row in table.means] == [("lr-0.001-0", "lr-0.001-1")]
    assert tables_of(root, {"lr-0.001-0"}) == []


def test_tuned_runs_have_a_table_of_their_own(root):
    for rank in (4, 8):
        write_run(root, f"tuned-{rank}", 1.0, stage="finetune", lora={"rank": rank})
    lines, rows = summarized(root)
    assert "2 fine-tuned runs (+- standard error), best bits_per_byte_code first, * the best of a column:" in lines
    values = {row["run"]: (row["lora.rank"], row["seed"]) for row in rows}
    assert (values["tuned-4"], values["lr-0.001-1"]) == (("4", ""), ("", "1"))


def test_one_run_has_no_table(tmp_path):
    write_run(tmp_path, "base", 2.0)
    lines, rows = summarized(tmp_path)
    assert lines[0].startswith("Run base: 5,120 training tokens in 20 steps")
    assert list(rows[0])[-1] == "clean_n"


def test_the_text_of_60_runs_is_short_and_names_only_files_that_exist(tmp_path):
    for number in range(60):
        write_run(tmp_path, f"run{number:03d}", 2 + number / 1000, optimizer={"learning_rate": number / 1e5 + 1e-5})
    lines, _ = summarized(tmp_path)
    assert len(lines) < 40
    assert max(map(len, lines[:-1])) < 120
    assert "  scores.csv also has 30 runs" in lines
    assert [line.split()[0] for line in lines if line.startswith("  run0")] == [f"run{n:03d}" for n in range(30)]
    assert lines[-1] == f"See {tmp_path / 'card.html'}, {tmp_path / 'scores.csv'}, {tmp_path / 'figures'}"


def test_many_keys_and_tasks_are_cut_and_named(tmp_path):
    for number in (1, 2):
        write_run(tmp_path, f"run{number}", 2.0, **{f"key{key}": number for key in range(8)})
    lines, rows = summarized(tmp_path)
    assert "  scores.csv also has the keys key6, key7" in lines
    assert rows[0]["key7"] == "1"
