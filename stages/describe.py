"""Write the model card of an export: README.md beside its weights, made from manifests.

    python -m stages.describe --name base --model results/runs/base/models/00000300.json \\
        --export results/runs/base/export/00000300/manifest.json --corpus results/tokens/main/manifest.json \\
        --lists results/sources/*/list.json --evaluations results/runs/base/eval/00000300/*.json \\
        --output results/runs/base/export/00000300/card.json

The card has what the model is and how to load it, its data with licenses and shares, recipe, loss curve, scores with
standard errors, parity, digests, and known limits; and the metadata that the Hub reads. It is written again whenever a
score changes, so your own words belong into the recipe's `description`. Nothing depends on it: no score, no training.
`python -m tools.push` uploads the directory.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.manifest import CorpusManifest, ListManifest, Manifest
from stages.lib.manifest_types import CardIdentity, Record
from stages.lib.pages import card, card_inputs
from stages.lib.pages.card_inputs import CardInputs
from stages.lib.pages.inputs import read_lists
from stages.lib.recipe import identity
from stages.lib.run_directory import history

LICENSES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
"""Names of licenses that the Hub takes in a card; another name is refused there when the upload ends.
https://huggingface.co/docs/hub/repositories-licenses"""

TWO_LETTERS = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
"""Languages by ISO 639-1."""

WORDS = ("code", "multilingual")


@dataclass(frozen=True, kw_only=True)
class DescribeRecipe:
    """The author's part of a model card."""

    license: str | None = identity(None)
    """The license of the weights, as the Hub names it: apache-2.0, cc-by-4.0, llama3.1, other. Default: none is
    stated."""

    languages: list[str] = identity([])
    """The languages of the text, as ISO 639 codes (en, de)."""

    description: str | None = identity(None)
    """Markdown that stands under the card's title: what the model is for, who made it, how to cite it."""

    def check(self, where: str) -> None:
        """Raise UserError if the license or a language has no form that the Hub reads."""
        if self.license is not None and self.license not in LICENSES.split():
            near = difflib.get_close_matches(self.license.lower(), LICENSES.split(), 1)
            raise UserError(
                f"{where}.license must be a name that the Hub knows, such as {(near or ['apache-2.0'])[0]}, or other; "
                f"got {recipes.shown(self.license)}"
            )
        for number, language in enumerate(self.languages):
            if not (language in TWO_LETTERS.split() or language in WORDS or re.fullmatch("[a-z]{3}", language)):
                raise UserError(
                    f"{where}.languages[{number}] must be an ISO 639 code as the Hub takes it (en, deu, without a "
                    f"region), code or multilingual; got {recipes.shown(language)}"
                )


def licenses_of(corpus: CorpusManifest, lists: Iterable[ListManifest], given: Sequence[str]) -> dict[str, str]:
    """Return {source: license} by the lists and the corpus, and by `given` ("SOURCE=LICENSE"), which counts first."""
    found = {inputs.identity["source"]: inputs.record["license"] for inputs in lists if "license" in inputs.record}
    found = corpus.record.get("licenses", {}) | found
    for pair in given:
        source, equals, license_ = pair.partition("=")
        if not (source and equals and license_):
            raise UserError(f"--licenses must be given as SOURCE=LICENSE, got {pair}")
        found[source] = license_
    return found


def digests_of(named: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the digests of manifests."""
    return {name: result.digest for name, result in named.items()}


def read_inputs(arguments: argparse.Namespace) -> CardInputs:
    """Read all manifests. Raises UserError if they do not belong to one model."""
    corpus, lists = manifest.read(arguments.corpus, "index"), read_lists(arguments.lists)
    scores = [manifest.read(path, "evaluate") for path in arguments.evaluations]
    rates = [manifest.read(path, "find_contamination") for path in arguments.contamination]
    inputs = CardInputs(
        name=arguments.name,
        model=manifest.read(arguments.model, *manifest.MODELS),
        export=manifest.read(arguments.export, "convert"),
        corpus=corpus,
        lists=lists,
        evaluations=card_inputs.by_suite(scores, "--evaluations"),
        baselines=card_inputs.read_baselines(arguments.baselines),
        contamination=card_inputs.by_suite(rates, "--contamination"),
        licenses=licenses_of(corpus, lists.values(), arguments.licenses),
    )
    card_inputs.check(inputs)
    return inputs


def run(arguments: argparse.Namespace, recipe: DescribeRecipe) -> None:
    """Write the card beside the export, and its manifest."""
    clock = manifest.Clock(arguments.code)
    inputs = read_inputs(arguments)
    directory = inputs.export.directory
    if arguments.output.parent.resolve() != directory.resolve():
        raise UserError(f"--output {arguments.output} must be in the directory of the export, {directory}")
    readme = directory / card.FILE
    for path in (arguments.output, readme):
        files.clear_leftovers(path)
    text = card.text(inputs, recipe.license, recipe.languages, recipe.description)
    with files.atomic(readme, "w") as file:
        file.write(text)
    card_identity: CardIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "name": arguments.name,
        "model": inputs.model.digest,
        "export": inputs.export.digest,
        "corpus": inputs.corpus.digest,
        "lists": digests_of(inputs.lists),
        "evaluations": digests_of(inputs.evaluations),
        "contamination": digests_of(inputs.contamination),
        "baselines": {name: digests_of(suites) for name, suites in inputs.baselines.items()},
        "licenses": inputs.licenses,
        "step": inputs.step,
        "outputs": {readme.name: manifest.describe(readme)},
    }
    record: Record = {
        **clock.record(),
        "manifests": {manifest.relative(one.path, directory): one.sha256 for one in inputs.manifests()},
        "logs": manifest.described(history.logs(inputs.run_directory), directory),
    }
    manifest.write(arguments.output, arguments.stage_name, card_identity, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.describe", __doc__, DescribeRecipe)
    parser.add_argument("--name", required=True, help="the model's name, the title of the card")
    parser.add_argument("--model", type=Path, required=True, metavar="MANIFEST", help="the trained model")
    parser.add_argument("--export", type=Path, required=True, metavar="MANIFEST", help="the export to describe")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    several: dict[str, Any] = {"type": Path, "nargs": "*", "default": []}
    parser.add_argument("--lists", **several, metavar="LIST", help="lists of all sources of corpus and tuning")
    parser.add_argument("--evaluations", **several, metavar="MANIFEST", help="scores of the export")
    parser.add_argument("--baselines", **several, metavar="MANIFEST", help="scores of other models by the same suites")
    parser.add_argument("--contamination", **several, metavar="MANIFEST", help="contamination of the suites' tasks")
    parser.add_argument("--licenses", nargs="*", default=[], metavar="SOURCE=LICENSE", help="licenses of the sources")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the card's manifest to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
