"""The prediction of a target from a ladder's manifests, and the summary that tells how far off it was."""

import json
import re

import numpy as np
import pytest

from stages import predict, summarize
from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.flops import parameter_count
from stages.lib.scaling_law import law, outcome
from stages.lib.scaling_law.law import Law
from tests.helpers.manifests import rewrite
from tests.helpers.training import MODEL

LAW = Law(E=1.8, A=30.0, B=60.0, alpha=0.3, beta=0.32)
WEIGHTS = {"a": 3, "b": 1}
TARGET = MODEL | {"num_hidden_layers": 4, "hidden_size": 64}
TOKENS = 400_000


def parameters_of(model, corpus):
    vocab_size = manifest.read(corpus).identity["tokenizer"]["vocab_size"]
    return parameter_count(recipes.load(ARCHITECTURES, model, "model"), vocab_size)


def write_model(directory, corpus, run, model, tokens, error=0.0):
    """Write the manifest of a model whose losses follow the law, that of source `b` 20% above that of `a`."""
    loss = float(LAW.loss(parameters_of(model, corpus), tokens)) * (1 + error)
    losses = {name: loss * factor for name, factor in SOURCES.items()}
    sources = {name: {"loss": of_source, "loss_bits_per_byte": of_source / 2} for name, of_source in losses.items()}
    identity = {"recipe": {"model": model, "weights": WEIGHTS}, "corpus": manifest.read(corpus).digest}
    identity |= {"step": 30, "tokens": tokens, "outputs": {}}
    path = directory / f"results/runs/{run}/models/00000030.json"
    record = {"validation": sources, "run_directory": "../train"}
    manifest.write(path, "pretrain", identity, record)
    return str(path)


SOURCES = {"a": 1.0, "b": 1.2}
MEAN = (3 * 1.0 + 1 * 1.2) / 4


@pytest.fixture
def ladder(corpus, tmp_path):
    """Manifests of nine models of three sizes, with a scatter of half a percent."""
    noise, made = np.random.default_rng(3), []
    for width in (16, 24, 32):
        model = MODEL | {"hidden_size": width}
        for tokens in (40_000, 80_000, 160_000):
            name = f"tiny-{width}-{tokens}"
            made.append(write_model(tmp_path, corpus, name, model, tokens, 0.005 * noise.standard_normal()))
    return made


@pytest.fixture
def few_resamples(monkeypatch):
    """Let intervals come from 5 resamples, which take less time."""
    resampled = law.resampled_laws
    monkeypatch.setattr(law, "resampled_laws", lambda points, law, seed, _: resampled(points, law, seed, 5))


def run(models, corpus, output, **changes):
    recipe = {"target": "base", "model": TARGET, "tokens": TOKENS, "weights": WEIGHTS} | changes
    options = ["--corpus", str(corpus), "--recipe", json.dumps(recipe), "--output", str(output)]
    return predict.main(["--models", *models, *options])


@pytest.mark.long
def test_the_target_is_predicted_before_it_is_trained_and_told_how_far_off_after(ladder, corpus, tmp_path, capsys):
    output = tmp_path / "results/ladders/tiny.json"
    assert run(ladder, corpus, output) == 0
    made = manifest.read(output, "predict")
    expected = float(LAW.loss(parameters_of(TARGET, corpus), TOKENS)) * MEAN
    results = made.identity["results"]
    for name, value in (("loss", expected), ("loss_bits_per_byte", expected / 2)):
        assert results[name]["low"] < value < results[name]["high"]
        assert results[name]["value"] == pytest.approx(value, rel=0.03)
    assert made.identity["parameters"] == parameters_of(TARGET, corpus)
    assert len(made.identity["models"]) == len(made.identity["points"]) == 9
    assert "models read more tokens than the corpus has" in capsys.readouterr().err

    text = tmp_path / "results/summary.txt"
    options = ["--scores", tmp_path / "scores.csv", "--figures", tmp_path / "figures", "--text", text]
    options += ["--output", tmp_path / "results/summary.json", "--ladders", output]
    assert summarize.main([str(word) for word in options]) == 0
    assert "Ladder tiny: base (" in text.read_text()
    assert text.read_text().count("not trained yet") == 2

    assert summarize.main(["--results", str(tmp_path / "results")]) == 0
    assert "runs" not in (tmp_path / "results/so_far/summary.txt").read_text().partition("Ladder")[0]

    trained = manifest.read(write_model(tmp_path, corpus, "base", TARGET, TOKENS, 0.01))
    models = {("base", 30): trained}
    lines = outcome.text([made], models)
    error = results["loss"]["value"] / (expected * 1.01) - 1
    assert f"{expected * 1.01:.3f} measured: off by {error:+.1%}, inside the interval" in lines[2]
    assert re.fullmatch(r"    the law of the other points is off by [\d.]+% leaving out each point", lines[3])
    assert f"digest {made.digest[:12]}; the target's last job began" in lines[1]

    data = outcome.figure(made, outcome.measured(made, models))
    assert data["target"]["measured"] == pytest.approx(expected * 1.01)
    last = data["curve"][-1]
    assert last["parameters"] == pytest.approx(data["target"]["parameters"], rel=1e-5)
    assert last["value"] == results["loss"]["value"]
    assert all(point["low"] <= point["value"] <= point["high"] for point in data["curve"])


def of_another_corpus(ladder):
    rewrite(ladder[0], corpus="0" * 64)
    return ladder


@pytest.mark.parametrize(
    ("change", "recipe", "sentence"),
    [
        (lambda ladder: ladder[:6], {}, "--models must be at least 7 trained models (5 constants are fitted) with 3"),
        (lambda ladder: ladder, {"weights": {"a": 1, "web": 1}}, "{first} has no validation loss of source web; train"),
        (of_another_corpus, {}, "{first} was trained on a different corpus than {corpus}"),
    ],
)
def test_models_that_give_no_prediction_are_one_sentence(ladder, corpus, tmp_path, capsys, change, recipe, sentence):
    assert run(change(ladder), corpus, tmp_path / "tiny.json", **recipe) == 2
    assert f"predict: {sentence.format(first=ladder[0], corpus=corpus)}" in capsys.readouterr().err
    assert not (tmp_path / "tiny.json").exists()


@pytest.mark.usefixtures("few_resamples")
def test_the_same_models_give_the_same_identity_and_a_target_of_other_tokens_is_no_outcome(ladder, corpus, tmp_path):
    outputs = [tmp_path / "one.json", tmp_path / "two.json"]
    assert [run(ladder, corpus, output) for output in outputs] == [0, 0]
    assert manifest.read(outputs[0]).digest == manifest.read(outputs[1]).digest
    trained = manifest.read(write_model(tmp_path, corpus, "base", TARGET, TOKENS // 2))
    assert outcome.measured(manifest.read(outputs[0]), {("base", 30): trained}) == {}


@pytest.mark.usefixtures("few_resamples")
def test_a_target_of_other_tokens_per_parameter_than_the_ladders_is_named(ladder, corpus, tmp_path, capsys):
    for tokens, warned in ((parameters_of(TARGET, corpus) * 4, False), (1000, True)):
        assert run(ladder, corpus, tmp_path / "tiny.json", tokens=tokens) == 0
        assert ("tokens per parameter and the ladder" in capsys.readouterr().err) == warned
