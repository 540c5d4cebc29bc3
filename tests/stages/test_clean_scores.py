"""summarize: rates of contaminated items, and scores over the others, from manifests and per-sample logs."""

import csv
import math
import statistics

import pytest

from stages import summarize
from stages.lib import manifest
from stages.lib.contamination import rules
from stages.lib.contamination.items import write_lines
from tests.helpers.manifests import rewrite
from tests.helpers.summary_fixtures import lines

__all__ = ["lines"]
pytestmark = pytest.mark.usefixtures("lines")  # no figure is drawn

CORPUS = "c0ffee"
ACCURACIES = [1, 1, 1, 1, 0, 0, 1, 0, 0, 0]
ROLLING = [(-70.0 - number, 40 + number) for number in range(5)]
DIRTY = {"questions": [0, 1, 2, 3], "wiki": [4], "f1_task": [0], "clean_task": []}


def pairs_in_bits(pairs):
    return -sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs) / math.log(2)


RESULTS = {
    "questions": {"acc": {"value": 0.5, "stderr": 0.1}, "exact_match/strict": {"value": 0.5, "stderr": None}},
    "wiki": {"bits_per_byte": {"value": pairs_in_bits(ROLLING), "stderr": None}},
    "f1_task": {"f1": {"value": 0.9, "stderr": None}},
    "clean_task": {"acc": {"value": 0.6, "stderr": None}},
    "bits_per_byte_code": {"bits_per_byte": {"value": 2.0, "stderr": None}},
}
SAMPLES = {
    "questions": [{"filter": "none", "metrics": {"acc": value}} for value in ACCURACIES],
    "wiki": [{"filter": "none", "metrics": {"bits_per_byte": list(pair)}} for pair in ROLLING],
    "f1_task": [{"filter": "none", "metrics": {"f1": [1, 1]}} for _ in range(3)],
    "clean_task": [{"filter": "none", "metrics": {"acc": value}} for value in (1, 1, 1, 0, 0)],
}


@pytest.fixture
def results(tmp_path):
    """The directory of an evaluation of four tasks with items and of a local one, and of their contamination."""
    output, outputs = tmp_path / "runs/base/eval/00000100/suite.json", {}
    for task, samples in SAMPLES.items():
        rows = [{"doc_id": number, "doc_hash": f"{task} {number}", **sample} for number, sample in enumerate(samples)]
        rows += [
            row | {"filter": "strict", "metrics": {"exact_match": 1 - row["metrics"].get("acc", 1)}}
            for row in rows
            if task == "questions"
        ]
        path = output.with_suffix("") / f"samples/{task}.jsonl.gz"
        write_lines(path, rows)
        outputs[f"suite/samples/{task}.jsonl.gz"] = manifest.describe(path)
    identity = {"recipe": {}, "suite": "suite", "corpus": CORPUS, "export": "e", "step": 100, "tokens": 25600}
    manifest.write(output, "evaluate", identity | {"results": RESULTS, "outputs": outputs}, {})
    write_contamination(tmp_path)
    return tmp_path


def write_contamination(root, corpus=CORPUS):
    output, rates = root / "contamination/main/suite.json", {}
    rows = [{"task": task, "doc_id": number, "contaminated": True} for task, of in DIRTY.items() for number in of]
    rows.append({"task": "clean_task", "doc_id": 2, "contaminated": False})
    path = output.with_suffix("") / rules.FILE
    write_lines(path, rows)
    for task, of_task in DIRTY.items():
        num = len(SAMPLES[task])
        rates[task] = {"n": num, "contaminated": len(of_task), "rate": len(of_task) / num, "unchecked": 0}
    described = {f"suite/{rules.FILE}": manifest.describe(path)}
    identity = {"recipe": {}, "suite": "suite", "corpus": corpus, "items": "i", "results": rates, "outputs": described}
    manifest.write(output, "find_contamination", identity, {})


def summarized(root, contamination=True):
    """The rows of the table by (task, metric), and the summary's text."""
    argv = ["--evaluations", root / "runs/base/eval/00000100/suite.json", "--scores", root / "scores.csv"]
    argv += ["--figures", root / "figures", "--output", root / "summary.json"]
    argv += ["--contamination", root / "contamination/main/suite.json"] if contamination else []
    assert summarize.main([str(word) for word in argv]) == 0
    rows = csv.DictReader((root / "scores.csv").read_text().splitlines())
    return {(row["task"], row["metric"]): row for row in rows}, (root / "summary.txt").read_text()


def test_the_clean_score_is_that_over_the_other_items(results):
    rows, text = summarized(results)
    row = rows["questions", "acc"]
    kept = ACCURACIES[4:]
    assert float(row["contaminated"]) == 0.4
    assert float(row["clean"]) == pytest.approx(1 / 6) and int(row["clean_n"]) == 6
    assert float(row["clean_stderr"]) == pytest.approx(statistics.stdev(kept) / 6**0.5)
    strict = rows["questions", "exact_match/strict"]
    assert float(strict["clean"]) == pytest.approx(5 / 6)
    assert "contamination: 3 of 4 tasks have items that stand in the training text" in text
    assert "questions: 40.0% of the items; acc 0.500 +- 0.100, without them 0.167 +- 0.167 (6 items)" in text

    row = rows["wiki", "bits_per_byte"]  # a rolling task: a ratio of sums
    assert float(row["clean"]) == pytest.approx(pairs_in_bits(ROLLING[:4]))
    without_each = [pairs_in_bits([pair for pair in ROLLING[:4] if pair != left]) for left in ROLLING[:4]]
    jackknife = math.sqrt(3 / 4 * sum((value - statistics.fmean(without_each)) ** 2 for value in without_each))
    assert float(row["clean_stderr"]) == pytest.approx(jackknife, rel=0.05)
    row = rows["clean_task", "acc"]  # without contaminated items
    assert (float(row["contaminated"]), float(row["clean"]), int(row["clean_n"])) == (0, 0.6, 5)
    row = rows["f1_task", "f1"]  # no mean
    assert float(row["contaminated"]) == pytest.approx(1 / 3)
    assert row["clean"] == row["clean_stderr"] == row["clean_n"] == ""
    assert rows["bits_per_byte_code", "bits_per_byte"]["contaminated"] == "", "a local task has no items"


def test_a_score_that_its_samples_do_not_give_has_no_clean_score(results):
    scores = RESULTS["questions"] | {"acc": {"value": 0.51, "stderr": 0.1}}
    rewrite(results / "runs/base/eval/00000100/suite.json", results=RESULTS | {"questions": scores})
    assert summarized(results)[0]["questions", "acc"]["clean"] == ""


@pytest.mark.parametrize("contamination", [True, False])
def test_without_contamination_of_this_corpus_the_table_has_the_scores_alone(results, contamination):
    write_contamination(results, "another corpus")
    rows, text = summarized(results, contamination)
    assert float(rows["questions", "acc"]["value"]) == 0.5
    assert all(row["contaminated"] == row["clean"] == "" for row in rows.values()) and "  contamination: " not in text


def test_a_changed_list_of_contaminated_items_is_refused(results, capsys):
    path = results / "contamination/main/suite" / rules.FILE
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError):
        summarized(results)
    assert f"summarize: {path} changed since" in capsys.readouterr().err
