"""The configs of known sizes: their shapes have the published numbers of parameters, and every stage takes them."""

import functools
import re

import pytest
import torch
import yaml

from scripts.config_check import checked
from stages.convert import ConvertRecipe
from stages.evaluate import EvaluateRecipe
from stages.lib import recipe
from stages.lib.model import flops
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.transformer import Transformer
from stages.lib.sources.source import SourceRecipe
from stages.pretrain import PretrainRecipe
from stages.tokenize import TokenizeRecipe
from stages.train_tokenizer import TokenizerRecipe
from tests.workflow.checkout import HOME, Checkout

# What Hugging Face counts in the published weights: parameters, and ids of the tokenizer.
PUBLISHED = {
    "llama2-7b": (6_738_415_616, 32_000),
    "llama2-13b": (13_015_864_320, 32_000),
    "llama2-34b": (33_743_970_304, 32_000),  # of CodeLlama-34b, which has no infilling and so not the 32,016 ids
    "llama2-70b": (68_976_648_192, 32_000),
    "llama3-1b": (1_235_814_400, 128_256),
    "llama3-3b": (3_212_749_824, 128_256),
    "llama3-8b": (8_030_261_248, 128_256),
    "llama3-70b": (70_553_706_496, 128_256),
    "mixtral-8x7b": (46_702_792_704, 32_000),
    "mixtral-small": (787_907_584, 32_000),  # this project's own
    "qwen3-0.6b": (596_049_920, 151_936),
    "qwen3-1.7b": (1_720_574_976, 151_936),
    "qwen3-4b": (4_022_468_096, 151_936),
    "qwen3-8b": (8_190_735_360, 151_936),
}
# What a token uses: 12.9 billion by Mistral's announcement of Mixtral 8x7B.
ACTIVE = {"mixtral-8x7b": 12_879_925_248, "mixtral-small": 259_425_280}


def text_of(size):
    return (HOME / f"config/{size}.yaml").read_text(encoding="utf-8")


@functools.cache
def config_of(size):
    return checked(yaml.safe_load(text_of(size)))


def test_every_size_is_tested():
    others = {"config", "chess", "tulu"}
    assert {path.stem for path in (HOME / "config").glob("*.yaml")} - others == PUBLISHED.keys()


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_model_has_the_published_number_of_parameters(size):
    parameters, vocab_size = PUBLISHED[size]
    config = config_of(size)
    assert config["tokenizers"]["main"]["vocab_size"] == vocab_size
    with torch.device("meta"):
        model = Transformer(recipe.load(ARCHITECTURES, config["runs"][size]["model"], "model"), vocab_size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    described = text_of(size).splitlines()[1]  # after the line that names the schema
    assert f"{parameters:,} parameters" in described
    active = flops.active_count(model.recipe, vocab_size)
    assert active == ACTIVE.get(size, parameters)
    assert size not in ACTIVE or f"of which a token uses {active:,}" in described


@pytest.mark.parametrize("size", PUBLISHED)
def test_every_stage_takes_its_part(size):
    config = config_of(size)
    run = config["runs"][size]
    pretrain = {key: value for key, value in run["pretrain"].items() if key != "milestones"}
    plan = recipe.load(PretrainRecipe, {"model": run["model"], **pretrain}, "pretrain")
    assert 4e6 < plan.global_batch_size * plan.seq_len < 4.2e6
    plan.check_ranks(16 * 8, "pretrain")
    recipe.load(ConvertRecipe, run["convert"], "convert")
    recipe.load(TokenizerRecipe, config["tokenizers"]["main"], "train_tokenizer")
    recipe.load(TokenizeRecipe, config["corpora"]["main"]["tokenize"], "tokenize")
    for source in config["sources"].values():
        recipe.load(SourceRecipe, source, "list")
    for suite in run["suites"]:
        recipe.load(EvaluateRecipe, config["suites"][suite], "evaluate")


# Two seconds a plan. Two differ in their keys, the others in numbers alone.
@pytest.mark.long
@pytest.mark.parametrize("size", ["llama2-7b", "llama3-8b"])
def test_the_workflow_plans_it(size, tmp_path):
    for number in range(9):  # of the placeholders of the sources
        book = tmp_path / f"data/books/{number}/b.txt"
        book.parent.mkdir(parents=True)
        book.write_text("A text.", encoding="utf-8")
    (tmp_path / "data/web").mkdir()
    (tmp_path / "data/web/a.jsonl").write_text("".join(f'{{"text": "Text {number}."}}\n' for number in range(9)))
    path = tmp_path / "config.yaml"
    text = (HOME / f"config/{size}.yaml").read_text(encoding="utf-8")
    path.write_text(re.sub(r"validation: 0\.\d+", "validation: 0.5", text), encoding="utf-8")
    done = Checkout(HOME).snakemake("-n", "all", "--directory", tmp_path, "--configfile", path)
    milestones = len(config_of(size)["runs"][size]["pretrain"]["milestones"])
    assert re.search(rf"^pretrain +{milestones}$", done.stdout, re.M), done.stdout
