"""summarize: the report's sections on sweeps, ladders, and plans beside what came out."""

import json
import re

import pytest

from stages.lib import files, manifest
from stages.lib.pages import training
from tests.helpers.browser import browser, needs_chromium
from tests.helpers.report_fixtures import summarized, write_data, write_run

BITS = {(0.001, 2): 2.5, (0.001, 4): 2.4, (0.004, 2): 2.3, (0.004, 4): 2.2}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A sweep of four runs, a plan of two of them, and the prediction of one."""
    root = tmp_path_factory.mktemp("sections") / "results"
    write_data(root)
    names = []
    for (rate, layers), bits in BITS.items():
        names.append(f"grid-{rate}-{layers}")
        recipe = {"optimizer": {"learning_rate": rate}, "model": {"num_hidden_layers": layers}}
        write_run(root, names[-1], bits=bits, recipe=recipe)
    plan = {
        "model": {"parameters": 4_200_000},
        "batch": {"tokens": 80_000, "steps": 300, "ranks": 2},
        "memory": {"peak_bytes": 2e9, "device": "H100"},
        "disk": {"checkpoint_bytes": 1000},
        "time": {"tokens_per_second": 600.0, "step_seconds": 0.5, "jobs": 2},
    }
    plans = {names[0]: plan, names[1]: {"unknown": "the size of its vocabulary is not known"}, "other": plan}
    files.write_json(root / "plan.json", {"format": manifest.PLAN_FORMAT, "runs": plans})
    manifest.write(root / "ladders/tiny.json", "predict", prediction(names[0]), {})
    expect = json.dumps({"runs": {}, "sweeps": {"grid": names}})
    more = ["--expect", expect, "--plan", root / "plan.json", "--ladders", root / "ladders/tiny.json"]
    assert summarized(root, *more) == 0
    return root


def prediction(target):
    """Return the identity of a prediction from four models at 5.9 and 10 tokens per parameter."""
    result = {"value": 3.0, "low": 2.9, "high": 3.2, "level": 0.95}
    sizes = [(100, 590), (100, 1000), (200, 1210), (200, 2000)]
    return {
        "recipe": {"target": target, "tokens": 76_800, "weights": {"code": 1.0, "prose": 1.0}},
        "models": {},
        "parameters": 7680,
        "results": {"loss": result, "loss_bits_per_byte": result},
        "points": [
            {"run": "x", "parameters": n, "tokens": d, "loss": 4.0, "loss_bits_per_byte": 3.0} for n, d in sizes
        ],
        "curve": [{"parameters": n, "tokens": n * 10, "value": 3.5, "low": 3.4, "high": 3.6} for n in (100, 7680)],
    }


def section_of(results, anchor):
    """Return the HTML of a section of the card."""
    return re.search(f'<section id="{anchor}">(.*?)</section>', (results / "card.html").read_text(), re.DOTALL)[1]


def cells_of(html):
    """Return the text of all cells of tables."""
    return [
        " ".join(re.sub("<[^>]*>", "", cell).split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html, re.DOTALL)
    ]


def test_a_sweep_has_a_table_of_what_differs_with_the_best_first_and_a_heat_map_of_two_keys(results):
    html = section_of(results, "side-by-side")
    titles = [" ".join(re.sub("<[^>]*>", "", title).split()) for title in re.findall(r"<th[^>]*>(.*?)</th>", html)]
    assert titles[:5] == ["run", "num_hidden_layers", "learning_rate", "bits_per_byte_code ↓", "next_line ↑"]
    first = cells_of(html)[:5]
    assert first[:4] == ["grid-0.004-4", "4", "0.004", "2.273 ± 0.050"]
    assert "<b>2.273</b>" in html and "<b>2.583</b>" not in html
    assert "All 4" not in html  # the sweep has all runs
    heat = html.partition('class="heat"')[2].partition("</table>")[0]
    assert re.findall(r"--share: ([\d.]+)%", heat) == ["0.0", "66.7", "33.3", "100.0"]  # from the worst to the best
    assert "num_hidden_layers \\ learning_rate" in heat
    assert re.findall(r'<th class="number">(.*?)</th>', heat) == ["0.001", "0.004"]


def test_a_plan_stands_beside_what_came_out(results):
    html = section_of(results, "plan-against-actual")
    cells = dict(zip(re.findall(r">([^<>]+)</th>", html), cells_of(html), strict=False))
    assert cells["run"] == "grid-0.001-2"
    assert cells["parameters"] == "4,200,000 as planned"
    assert cells["tokens"] == "76,800 plan 80,000, -4.0%"
    assert cells["peak memory per rank"] == "2.5 GB plan 2.0 GB, +25.0%"
    assert cells["tokens/s per rank"] == "502 plan 600, -16.4%"  # 1,003 on two ranks
    assert cells["hours"] == "0.08 plan 0.04, +100.0%"
    assert cells["jobs"] == "2 as planned"
    assert "grid-0.001-4 has no plan: the size of its vocabulary is not known" in html
    assert "other" not in cells_of(html)


def test_a_plan_of_a_cpu_is_not_compared_with_all_that_is_resident(results, tmp_path):
    plans = json.loads((results / "plan.json").read_text())
    del plans["runs"]["grid-0.001-2"]["memory"]["device"]
    files.write_json(tmp_path / "plan.json", plans)
    assert summarized(results, "--plan", tmp_path / "plan.json", "--page", tmp_path / "card.html") == 0
    assert "2.5 GB plan 2.0 GB" in cells_of(section_of(tmp_path, "plan-against-actual"))


@pytest.mark.parametrize("content", ['{"runs": {"grid-0.001-2": {}}}', "garbage"])
def test_a_file_that_is_no_plan_is_named(results, tmp_path, capsys, content):
    (tmp_path / "plan.json").write_text(content)
    assert summarized(results, "--plan", tmp_path / "plan.json", "--page", tmp_path / "card.html") == 0
    assert f"{tmp_path / 'plan.json'} is not a plan by this version of tools.plan" in capsys.readouterr().err
    assert "plan-against-actual" not in (tmp_path / "card.html").read_text()


def test_a_prediction_stands_beside_the_trained_target(results):
    cells = cells_of(section_of(results, "ladders"))
    assert cells[:9] == ["tiny", "grid-0.001-2", "validation loss", "3.000", "2.900", "3.200", "3.100", "-3.2%", "yes"]
    assert cells[9:20] == ["-", "-", *cells[11:17], "1.550", "+93.5%", "no"]


def test_lines_join_models_with_about_the_same_tokens_per_parameter():
    lines = list(training.ladder_lines(prediction("base")))
    assert [(line.label, [tokens for tokens, *_ in line.points]) for line in lines] == [
        ("5.9 tokens per parameter", [590, 1210]),
        ("10 tokens per parameter", [1000, 2000]),
    ]


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_sections_open_without_error(results, tmp_path, width, dark):
    with browser(tmp_path) as page:
        page.open(results / "card.html", width=width, dark=dark, settle=0.1)
        assert (page.errors, page.requests) == ([], [])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.querySelector('.heat td.number:last-child')).backgroundColor")
