"""compare: paired differences recomputed by hand."""

import csv
import gzip
import json
import math

import numpy as np
import pytest
import scipy.stats

from stages.lib import manifest
from tools.compare import __main__ as compare

RECIPE = {"model": {"hidden_size": 64}, "optimizer": {"learning_rate": 0.002}, "weights": {"code": 1.0}}
SUITE = {"tasks": ["arc_easy"], "num_fewshot": 0, "dtype": "float32"}


def samples(metric, values, filtered="none", hashes=None, first=0):
    """The lines of a log: one per value."""
    return [
        {
            "doc_id": number,
            "doc_hash": (hashes or {}).get(number, f"hash {number}"),
            "filter": filtered,
            **{"doc": {"question": "?"}, "target": 0, "arguments": [["a", "b"]], "resps": [[-1.0, False]]},
            "metrics": {metric: value},
        }
        for number, value in enumerate(values, first)
    ]


def accuracy(values):
    """The score and the log of a task of right and wrong answers."""
    mean = sum(values) / len(values)
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"acc": {"value": mean, "stderr": error, "n": len(values)}}, samples("acc", values)


def bits(pairs):
    """The score and the log of a rolling task, of (log-likelihood, bytes)."""
    value = -sum(ll for ll, _ in pairs) / sum(size for _, size in pairs) / math.log(2)
    return {"bits_per_byte": {"value": value, "stderr": 0.01, "n": len(pairs)}}, samples("bits_per_byte", pairs)


def write_run(root, run, tasks, step=300, recipe=RECIPE, suite_recipe=SUITE, suite="cheap", **changes):
    """Write a scored milestone. `tasks`: {task: (its scores, the lines of its log, or bytes, or None for no log)}."""
    home = root / "runs" / run
    home_of_model, export, scored = home / "models", home / "export" / f"{step:08d}", home / "eval" / f"{step:08d}"
    for directory in (home_of_model, export):
        directory.mkdir(parents=True, exist_ok=True)
    tokens = step * 256
    identity = {"recipe": recipe, "corpus": "c" * 64, "tokenizer": "d" * 64, "step": step, "tokens": tokens}
    identity |= changes.get("model", {})
    record = {"run_directory": "../train/0123456789abcdef"}
    manifest.write(home_of_model / f"{step:08d}.json", "pretrain", identity | {"outputs": {}}, record)
    model = manifest.read(home_of_model / f"{step:08d}.json").digest
    identity = {"recipe": {}, "model": model, "step": step, "seq_len": 128}
    manifest.write(export / "manifest.json", "convert", identity | changes.get("export", {}), {"parameters": 4_212_992})
    outputs = write_logs(scored, suite, tasks)
    identity = {"recipe": suite_recipe, "suite": suite, "export": manifest.read(export / "manifest.json").digest}
    identity |= {"corpus": "c" * 64, "step": step, "tokens": tokens, "harness": "0.4.13", "outputs": outputs}
    identity |= {"results": {task: scores for task, (scores, _) in tasks.items()}} | changes.get("evaluation", {})
    manifest.write(scored / f"{suite}.json", "evaluate", identity, {"device": "cpu"})
    return scored / f"{suite}.json"


def write_logs(scored, suite, tasks):
    """Write the logs of a suite; returns their entries in the outputs of its manifest."""
    outputs = {}
    (scored / suite / "samples").mkdir(parents=True, exist_ok=True)
    for task, (_, lines) in tasks.items():
        if lines is not None:
            path = scored / suite / "samples" / f"{task}.jsonl.gz"
            text = lines if isinstance(lines, bytes) else "".join(json.dumps(line) + "\n" for line in lines).encode()
            path.write_bytes(gzip.compress(text, mtime=0))
            outputs[f"{suite}/samples/{task}.jsonl.gz"] = manifest.describe(path)
    return outputs


def run_compare(root, *words):
    return compare.main([*map(str, words), "--results", str(root)])


def differences(root, *names):
    """{(run, task): row of the CSV}."""
    path = root / "comparison.csv"
    assert run_compare(root, *names, "--csv", path) == 0
    with open(path, encoding="utf-8") as file:
        return {(row["run"], row["task"]): row for row in csv.DictReader(file) if row["kind"] == "difference"}


def refused(root, capsys, *words):
    assert run_compare(root, *words) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def printed(root, capsys, *words):
    assert run_compare(root, *words) == 0
    return capsys.readouterr().out


def two_sided(smaller, larger):
    """The exact p-value of McNemar's test: a fair coin falls so unequally."""
    flips = smaller + larger
    return min(1.0, 2 * sum(math.comb(flips, count) for count in range(smaller + 1)) / 2**flips)


BASE = [1, 1, 0, 0, 1, 0, 0, 0, 1, 0] * 4
WIDE = [1, 1, 0, 1, 1, 0, 1, 0, 1, 0] * 3 + [1, 0, 0, 1, 1, 0, 0, 0, 1, 0]


def test_paired_difference_is_the_one_recomputed_by_hand(tmp_path):
    write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)})
    write_run(tmp_path, "wide", {"arc_easy": accuracy(WIDE)})
    row = differences(tmp_path, "base", "wide")["wide", "arc_easy"]
    changes = np.array(WIDE) - np.array(BASE)
    assert float(row["difference"]) == pytest.approx(changes.mean())
    error = changes.std(ddof=1) / math.sqrt(len(changes))
    assert float(row["low"]) == pytest.approx(changes.mean() - 1.96 * error, abs=0.026)  # one document is 0.025
    assert float(row["high"]) == pytest.approx(changes.mean() + 1.96 * error, abs=0.026)
    assert float(row["p"]) == pytest.approx(two_sided((changes < 0).sum(), (changes > 0).sum()), abs=0.015)
    assert (row["n"], row["paired"], row["reference"], row["metric"]) == ("40", "true", "base:300", "acc")


def bits_of(value, spread=0.0):
    """A rolling task of 40 documents of 100 bytes with these bits per byte, which differ by up to `spread`."""
    return bits([(-(value + spread * (at % 5 - 2)) * 100 * math.log(2), 100) for at in range(40)])


def write_seeds(root, run, values, spread=0.0, **recipe):
    for seed, value in enumerate(values):
        name = f"{run}-{seed}" if seed else run
        write_run(
            root, name, {"text": bits_of(value, spread)}, recipe=RECIPE | recipe | ({"seed": seed} if seed else {})
        )


def test_means_over_seeds_are_compared_by_the_deviation_of_the_runs(tmp_path, capsys):
    base, wide = [2.0, 2.03, 1.99], [1.97, 2.02, 1.98]
    write_seeds(tmp_path, "base", base)
    write_seeds(tmp_path, "wide", wide, warmup_steps=3)
    row = differences(tmp_path, "base", "wide")["wide", "text"]
    test = scipy.stats.ttest_ind(wide, base)
    assert float(row["difference"]) == pytest.approx(np.mean(wide) - np.mean(base))
    assert float(row["reference_value"]) == pytest.approx(np.mean(base))
    assert float(row["p"]) == pytest.approx(test.pvalue)
    low, high = test.confidence_interval(0.95)
    assert (float(row["low"]), float(row["high"])) == pytest.approx((low, high))
    assert row["verdict"] == "not significant"
    text = capsys.readouterr().out
    deviation = math.sqrt((np.var(base, ddof=1) + np.var(wide, ddof=1)) / 2)
    assert f"means of 3 and 3 runs, standard deviation over seeds {deviation:.3g}, p {test.pvalue:.3f}" in text
    assert "scores and differences are means over them" in text

    better = [value - 0.1 for value in wide]
    write_seeds(tmp_path, "wide", better, warmup_steps=3)
    assert differences(tmp_path, "base", "wide")["wide", "text"]["verdict"] == "better"

    write_seeds(tmp_path, "wide", better, spread=0.5, warmup_steps=3)  # documents differ more than seeds
    row = differences(tmp_path, "base", "wide")["wide", "text"]
    error = np.std([0.5 * (at % 5 - 2) for at in range(40)], ddof=1) / math.sqrt(40)
    expected = 2 * scipy.stats.norm.sf(abs(float(row["difference"])) / error)
    assert float(row["p"]) == pytest.approx(expected, rel=1e-3)
    assert "whose error over documents, 0.113, is larger than over seeds" in capsys.readouterr().out


def test_a_seed_that_was_scored_by_another_suite_does_not_count(tmp_path):
    write_seeds(tmp_path, "base", [2.0, 2.1])
    write_seeds(tmp_path, "wide", [1.9], warmup_steps=3)
    other = SUITE | {"num_fewshot": 5}
    write_run(tmp_path, "base-2", {"text": bits_of(3.0)}, recipe=RECIPE | {"seed": 2}, suite_recipe=other)
    row = differences(tmp_path, "base", "wide")["wide", "text"]
    assert float(row["reference_value"]) == pytest.approx(2.05)


def test_runs_that_differ_by_their_seed_alone_are_no_different(tmp_path):
    values = np.random.default_rng(0).normal(2.0, 0.02, size=12)
    write_seeds(tmp_path, "base", values)
    names = ["base", *(f"base-{seed}" for seed in range(1, 12))]
    found = differences(tmp_path, *names)
    verdicts = [found[name, "text"]["verdict"] for name in names[1:]]
    assert verdicts.count("not significant") >= 10
    p = float(found["base-5", "text"]["p"])
    assert p == pytest.approx(
        2 * scipy.stats.t.sf(abs(values[5] - values[0]) / np.std(values, ddof=1) / math.sqrt(2), 11)
    )


def test_averaged_milestones_are_paired_by_the_mean_of_each_document(tmp_path, capsys):
    rng, size = np.random.default_rng(3), 40
    right = {name: [[int(rng.random() < chance) for _ in range(size)] for _ in range(3)]
             for name, chance in (("base", 0.4), ("wide", 0.6))}  # fmt: skip
    for name, of_steps in right.items():
        for step, values in zip((100, 200, 300), of_steps, strict=True):
            write_run(tmp_path, name, {"arc_easy": accuracy(values)}, step=step)
    row = differences(tmp_path, "base", "wide", "--average", 3)["wide", "arc_easy"]
    changes = np.mean(right["wide"], axis=0) - np.mean(right["base"], axis=0)
    assert float(row["difference"]) == pytest.approx(changes.mean())
    error = changes.std(ddof=1) / math.sqrt(size)
    assert (float(row["high"]) - float(row["low"])) / 2 == pytest.approx(1.96 * error, rel=0.05)
    swapped = rng.choice([-1, 1], size=(20_000, size)) @ changes / size
    assert float(row["p"]) == pytest.approx((abs(swapped) >= abs(changes.mean()) - 1e-9).mean(), abs=0.01)
    single = differences(tmp_path, "base", "wide")["wide", "arc_easy"]
    assert float(single["difference"]) == pytest.approx(np.mean(right["wide"][2]) - np.mean(right["base"][2]))
    capsys.readouterr()
    text = printed(tmp_path, capsys, "base:200", "wide:300", "--average", 2)
    assert "Scores are means over 2 milestones up to each step." in text
    assert refused(tmp_path, capsys, "base:200", "wide", "--average", 3) == (
        "compare: run base is not averaged at step 200: the suite cheap must have scores of 3 milestones up to there, "
        "and has 100, 200"
    )
    assert refused(tmp_path, capsys, "base", "wide", "--average", 1) == "compare: --average must be at least 2, got 1"


def test_pieces_of_one_document_count_once(tmp_path):
    """Eight documents, all better: cut into five pieces each, they show no more than whole."""
    better = [[(-300.0 + 9 * number, 200) for number in range(8)], [(-280.0 + 10 * number, 200) for number in range(8)]]
    for name, count in (("whole", 1), ("pieces", 5)):
        root = tmp_path / name
        for run, pairs in zip(("base", "wide"), better, strict=True):
            scores, log = bits([(ll / count, size / count) for ll, size in pairs for _ in range(count)])
            for number, line in enumerate(log):
                line["doc"] = {"id": f"d{number // count}#{number}", "document": f"d{number // count}"}
            changes = {"evaluation": {"trivial": {"bits_per_byte_code": {}}}}
            write_run(root, run, {"bits_per_byte_code": (scores, log)}, **changes)
    whole, pieces = (
        differences(tmp_path / name, "base", "wide")["wide", "bits_per_byte_code"] for name in ("whole", "pieces")
    )
    assert pieces["n"] == "40"
    for key in ("difference", "low", "high", "p"):
        assert float(pieces[key]) == pytest.approx(float(whole[key]))
    assert float(whole["p"]) == pytest.approx(two_sided(0, 8), abs=0.004)


def rolling(rng, mean, count=60):
    sizes = np.random.default_rng(5).integers(50, 3000, size=count)
    return [[float(-size * mean * math.log(2) * rng.normal(1, 0.02)), int(size)] for size in sizes]


def test_bits_per_byte_is_the_ratio_of_sums_and_lower_is_better(tmp_path):
    base, wide = rolling(np.random.default_rng(1), 2.0), rolling(np.random.default_rng(2), 1.9)
    write_run(tmp_path, "base", {"bits_per_byte_code": bits(base)})
    write_run(tmp_path, "wide", {"bits_per_byte_code": bits(wide)})
    row = differences(tmp_path, "base", "wide")["wide", "bits_per_byte_code"]
    nats, size = np.array([ll for ll, _ in base]) - [ll for ll, _ in wide], np.array([size for _, size in base])
    ratio = nats.sum() / size.sum() / math.log(2)
    assert float(row["difference"]) == pytest.approx(ratio)
    linear = (nats / math.log(2) - ratio * size) / size.mean()  # the delta method
    error = linear.std(ddof=1) / math.sqrt(len(size))
    assert (float(row["high"]) - float(row["low"])) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert float(row["p"]) == pytest.approx(1 / 10_001)
    assert row["verdict"] == "better"


def test_p_values_are_corrected_by_holm_over_the_tasks_of_two_models(tmp_path):
    rng = np.random.default_rng(3)
    for number, run in enumerate(["base", "wide", "deep"]):
        shift = [0, 0.1, 0.25][number]
        tasks = {f"task{at}": accuracy([int(x) for x in rng.uniform(size=80) < 0.4 + shift]) for at in range(3)}
        write_run(tmp_path, run, tasks)
    all_rows = differences(tmp_path, "base", "wide", "deep")
    for run in ("wide", "deep"):
        expected, rows = 0.0, [row for (name, _), row in all_rows.items() if name == run]
        for rank, row in enumerate(sorted(rows, key=lambda row: float(row["p"]))):
            expected = max(expected, min(1.0, float(row["p"]) * (3 - rank)))
            assert float(row["p_holm"]) == pytest.approx(expected)
            assert row["verdict"] == ("better" if expected < 0.05 else "not significant")
    assert len({row["verdict"] for row in all_rows.values()}) == 2


def test_models_with_equal_samples_do_not_differ(tmp_path, capsys):
    tasks = {"arc_easy": accuracy(BASE), "bits_per_byte_code": bits(rolling(np.random.default_rng(1), 2.0))}
    write_run(tmp_path, "base", tasks)
    write_run(tmp_path, "twin", tasks)
    for row in differences(tmp_path, "base", "twin").values():
        assert [float(row[key]) for key in ("difference", "low", "high", "p", "p_holm")] == [0, 0, 0, 1, 1]
    assert "The recipes are equal." in capsys.readouterr().out


def test_metric_of_a_filter_and_perplexities_are_paired(tmp_path):
    def tasks(shift):
        answers = [int(number % 10 < 3 + shift) for number in range(50)]
        exact = {"exact_match/strict-match": {"value": sum(answers) / 50, "stderr": 0.05}}
        lines = samples("exact_match", answers, "strict-match") + samples("exact_match", [1] * 50, "flexible")
        lls = [-2.0 - number / 50 + shift / 10 for number in range(50)]
        words = {"perplexity": {"value": math.exp(-sum(lls) / 50), "stderr": 0.1}}
        text = [[50 * ll, 40 + number] for number, ll in enumerate(lls)]
        rolled = math.exp(-sum(ll for ll, _ in text) / sum(size for _, size in text))
        pile = {"word_perplexity": {"value": rolled, "stderr": None}}
        return {
            "gsm8k": (exact, lines),
            "lambada": (words, samples("perplexity", lls)),
            "pile": (pile, samples("word_perplexity", text)),
        }

    write_run(tmp_path, "base", tasks(0))
    write_run(tmp_path, "wide", tasks(3))
    rows = differences(tmp_path, "base", "wide")
    assert float(rows["wide", "gsm8k"]["difference"]) == pytest.approx(0.3)
    lambada = rows["wide", "lambada"]
    assert float(lambada["difference"]) == pytest.approx(math.exp(2.19) - math.exp(2.49))
    found = rows["wide", "pile"]
    assert float(found["difference"]) == pytest.approx(float(found["value"]) - float(found["reference_value"]))
    assert [row["paired"] for row in rows.values()] == ["true"] * 3
    assert [row["verdict"] for row in rows.values()] == ["better"] * 3


def test_scores_without_logs_are_compared_unpaired_by_their_standard_errors(tmp_path, capsys):
    for run, scores, bits_ in (("base", (0.4, 0.03), 2.0), ("wide", (0.54, 0.04), 1.9)):
        acc = {"acc": dict(zip(("value", "stderr"), scores, strict=True))}
        write_run(
            tmp_path, run, {"arc_easy": (acc, None), "bits_per_byte_code": ({"bits_per_byte": {"value": bits_}}, None)}
        )
    rows = differences(tmp_path, "base", "wide")
    row = rows["wide", "arc_easy"]
    assert (row["paired"], row["n"]) == ("false", "")
    assert float(row["low"]) == pytest.approx(0.14 - 1.96 * 0.05, abs=1e-5)
    assert (row["p"], row["verdict"]) == ("", "not significant")
    unknown = rows["wide", "bits_per_byte_code"]
    assert float(unknown["difference"]) == pytest.approx(-0.1)
    assert (unknown["p"], unknown["verdict"]) == ("", "unknown")
    text = capsys.readouterr().out
    assert "| not significant 2.8 independent standard errors |" in text
    assert "| unknown no standard errors |" in text


def test_metric_that_is_no_sum_over_documents_is_not_paired(tmp_path, capsys):
    f1 = samples("f1", [[1, 0], [1, 1], [0, 0]])
    median = samples("exact", [0.0, 0.0, 1.0])
    tasks = {
        "qa": ({"f1": {"value": 0.5, "stderr": 0.1}}, f1),
        "odd": ({"exact": {"value": 0.0, "stderr": 0.1}}, median),
    }
    write_run(tmp_path, "base", tasks)
    write_run(tmp_path, "wide", tasks)
    assert {row["paired"] for row in differences(tmp_path, "base", "wide").values()} == {"false"}
    text = capsys.readouterr().out
    assert "task qa of suite cheap: not paired, since f1 is no function of a sum over documents" in text
    assert "task odd of suite cheap: not paired, since exact of its samples is 0.333333, and its score is 0" in text


def test_group_is_paired_over_the_documents_of_its_tasks(tmp_path):
    for run, values in (("base", BASE), ("wide", WIDE)):
        pooled, _ = accuracy(values)
        parts = {"mmlu_law": accuracy(values[:30]), "mmlu_math": accuracy(values[30:])}
        unweighted = {"acc": {"value": np.mean([np.mean(values[:30]), np.mean(values[30:])]), "stderr": 0.01}}
        other = {"odd_law": accuracy(values[:30]), "odd_math": accuracy(values[30:])}
        groups = {"groups": {"mmlu": [*parts], "odd": [*other]}}
        tasks = parts | other | {"mmlu": (pooled, None), "odd": (unweighted, None)}
        write_run(tmp_path, run, tasks, evaluation=groups)
    rows = differences(tmp_path, "base", "wide")
    group = rows["wide", "mmlu"]
    assert (group["paired"], group["n"]) == ("true", "40")
    assert float(group["difference"]) == pytest.approx(np.mean(WIDE) - np.mean(BASE))
    assert rows["wide", "odd"]["paired"] == "false"  # its score is no mean over documents


def test_difference_is_over_the_documents_that_both_logs_have(tmp_path, capsys):
    scores, lines = accuracy(BASE)
    write_run(tmp_path, "base", {"arc_easy": (scores, lines)})
    part = WIDE[:30]
    write_run(tmp_path, "wide", {"arc_easy": accuracy(part)})
    row = differences(tmp_path, "base", "wide")["wide", "arc_easy"]
    assert float(row["difference"]) == pytest.approx(np.mean(part) - np.mean(BASE[:30]))
    assert row["n"] == "30"
    assert "arc_easy of suite cheap: 30 documents are in both logs, which have 40 and 30" in capsys.readouterr().out


def test_tasks_of_other_documents_are_left_out_and_a_score_that_is_not_finite_has_no_difference(tmp_path, capsys):
    scores, log = accuracy(BASE)
    write_run(tmp_path, "base", {"arc_easy": (scores, log), "next_line": (scores, None), "piqa": (scores, log)})
    changed = {"arc_easy": (scores, samples("acc", BASE, hashes={7: "another"})), "next_line": (scores, None)}
    nan = {"piqa": ({"acc": {"value": None, "stderr": None, "n": 40}}, None)}
    write_run(tmp_path, "wide", changed | nan, evaluation={"corpus": "e" * 64})
    ((key, row),) = differences(tmp_path, "base", "wide").items()
    assert (key, row["verdict"]) == (("wide", "piqa"), "unknown")
    text = capsys.readouterr().out
    assert "left out, since 1 of 40 documents have another hash: the task or its data" in text
    assert "next_line of suite cheap: left out, since it was made from other" in text
    assert "not finite" in text
    write_run(tmp_path, "odd", {"arc_easy": changed["arc_easy"]})
    assert differences(tmp_path, "base", "odd") == {}
    assert "No task can be compared." in capsys.readouterr().out


def test_few_documents_that_differ_are_not_significant_and_swapped_models_have_the_negative_difference(tmp_path):
    write_run(tmp_path, "base", {"arc_easy": accuracy([0] * 5 + [1] * 195)})
    write_run(tmp_path, "wide", {"arc_easy": accuracy([1] * 200)})  # all favor one model
    there = differences(tmp_path, "base", "wide")["wide", "arc_easy"]
    assert float(there["p"]) == pytest.approx(two_sided(0, 5), abs=0.01)
    assert there["verdict"] == "not significant"
    back = differences(tmp_path, "wide", "base")["base", "arc_easy"]
    assert float(there["difference"]) == -float(back["difference"])
    assert float(there["low"]) == pytest.approx(-float(back["high"]))
    assert float(there["high"]) == pytest.approx(-float(back["low"]))
    assert there["p"] == back["p"]
