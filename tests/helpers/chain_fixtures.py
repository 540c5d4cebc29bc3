"""A results directory with every link from raw text to a table of scores, made by the real stages."""

import contextlib
from pathlib import Path

from stages import convert, describe, evaluate, finetune, summarize
from tests.helpers import training
from tests.helpers.data_fixtures import listed, make, run, tiny_corpus, write_jsonl
from tests.helpers.training import milestone

STEPS = 2
RESULTS = Path("results")
RECIPE = {"seq_len": 32, "global_batch_size": 4, "dtype": "float32", "schedule": {"warmup_steps": 1}}
SUITE = {"tasks": ["bits_per_byte"], "bytes_per_source": 500}
PAIRS = {"kind": "prompt_completion", "paths": ["pairs.jsonl"], "validation": 0.2}


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
