"""summarize: the report as HTML pages, opened in a browser: no error, no request, names are inert, curves react."""

import html
import json
import re

import pytest

from stages.lib.render import chart
from tests.helpers.browser import browser, needs_chromium
from tests.helpers.report_fixtures import summarized, write_data, write_run

HOSTILE = "<script>alert(1)<!--"
CLICK_SECOND_RUN = "document.querySelectorAll('#shown-runs button')[1].click()"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two runs, of which one has a name with markup, and the pages of them."""
    root = tmp_path_factory.mktemp("report") / "results"
    write_data(root)
    write_run(root)
    write_run(root, HOSTILE, bits=2.2, commit="f" * 40 + "+", code="p2")
    written = [{"prompt": "once ", "text": "upon <b>"}]
    for export in root.glob("runs/base/export/*"):
        (export / "parity.json").write_text(json.dumps({"passed": True, "greedy": {"continuations": written}}))
    assert summarized(root, "--config", "my.yaml", "--made-by", "snakemake all --configfile my.yaml") == 0
    return root


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    """A browser."""
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


def text_of(results, name="card.html"):
    return (results / name).read_text()


def chart_data(results):
    """Return the data of the charts of card.html."""
    return json.loads(re.search(r'id="chart-data">(.*?)</script>', text_of(results), re.DOTALL)[1])


def test_first_screen_says_what_was_trained_on_what_by_which_code_and_how_good_it_is(results):
    first = re.sub(r"<[^>]*>", " ", text_of(results).partition('<section id="data">')[0].partition("<main>")[2])
    for words in ("code 59%, prose 41%", "76,800", "4.2M", "0123456789", "ffffffffff+", "2.273", "0.05", "indent"):
        assert words in first, words
    assert "is better than base by 0.310 (4.4 independent standard errors)" in first
    assert "0.350 " in first and "0.25" in first  # the best trivial baseline, and chance


def test_pages_link_to_no_file_which_a_mailed_page_would_not_have(results):
    pages = sorted(path.stem for path in (results / "pages").iterdir())
    assert pages == ["answer", "data", "provenance", "scores", "training"]
    for name in ("card.html", "pages/provenance.html"):
        assert re.findall(r'<a href="[^#]', text_of(results, name)) == []
    paths = re.findall(r'title="[0-9a-f]{64} ([^"]+)"', text_of(results))  # on hover
    assert len(paths) >= 10 and all((results / html.unescape(path)).exists() for path in paths)


def test_page_has_sources_digests_code_that_differs_and_texts_of_the_model_as_text(results):
    text = text_of(results)
    assert "duplicate 3" in re.sub(r"(<[^>]*>|\s)+", " ", text)
    for words in ("50.0%", "58.6%", "45,000", "base, step 100", "differs", "torch", "rank-hours"):
        assert words in text, words
    assert '<span class="prompt">once </span><mark>upon &lt;b&gt;</mark>' in text
    assert "<title>Results of my.yaml, 2026-11-25</title>" in text and "<h1>Results of my.yaml</h1>" in text
    assert "<code>snakemake all --configfile my.yaml</code>" in text
    assert "<title>Results of my.yaml: scores, 2026-11-25</title>" in text_of(results, "pages/scores.html")


def test_loss_has_a_color_per_source_which_is_that_of_the_mix_and_a_dash_per_run(results):
    loss, *_ = chart_data(results)["charts"]
    looks = {line["label"]: (line["color"], line["dash"]) for line in loss["lines"]}
    base, other = ([look for label, look in looks.items() if (run in label)] for run in ("base,", HOSTILE))
    assert [color for color, _ in base] == [color for color, _ in other] == [-1, 0, 1]  # training, code, prose
    assert len({dash for _, dash in base}) == 1 and {dash for _, dash in base} != {dash for _, dash in other}
    mix = text_of(results).partition('<section id="data">')[0]
    bars = re.findall(r'width: [0-9.]+%; background: var\(--c(\d)\)" title="(\w+) ', mix)
    assert set(bars) == {("0", "code"), ("1", "prose")}
    drawn = (results / "figures/loss.svg").read_text()
    assert all(color in drawn for color in chart.COLORS[:2])
    assert len({chart.color_of(number) for number in range(-1, 40)}) == 41


def test_pages_are_the_same_bytes_twice(results):
    first = text_of(results)
    assert summarized(results, "--config", "my.yaml", "--made-by", "snakemake all --configfile my.yaml") == 0
    assert text_of(results) == first


def test_long_curves_are_thinned_and_the_page_says_so(tmp_path):
    root = tmp_path / "results"
    write_data(root)
    write_run(root, steps=3000, milestones=(300, 3000))
    assert summarized(root) == 0
    (loss, *_) = chart_data(root)["charts"]
    assert loss["steps_per_point"] == 3
    assert len(loss["lines"][0]["x"]) == 1000


def test_runs_of_different_sources_stand_beside_each_other(tmp_path):
    root = tmp_path / "results"
    write_data(root)
    write_run(root)
    write_run(root, "small", sources=("code",))
    assert summarized(root) == 0
    text = text_of(root)
    assert "code 59%, prose 41%" in text
    assert "code 100%" in text


@needs_chromium
@pytest.mark.parametrize("name", ["card.html", "pages/answer.html", "pages/provenance.html"])
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_page_opens_without_error_or_request(results, page, name, width, dark):
    page.errors.clear()
    page.open(results / name, width=width, dark=dark, settle=0.1)
    assert (page.errors, page.requests) == ([], [])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    drawn = page.evaluate("[...document.querySelectorAll('.plot canvas')].every(canvas => canvas.width > 250)")
    assert drawn
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 24, 28)") == dark


@needs_chromium
def test_runs_are_hidden_and_shown_in_all_charts(results, page):
    page.open(results / "card.html", settle=0.1)
    off = "document.querySelectorAll('.u-legend .u-off').length"
    assert page.evaluate(off) == 0
    page.evaluate(CLICK_SECOND_RUN)
    assert page.evaluate(off) >= 6  # loss of three texts, and further charts
    page.evaluate(CLICK_SECOND_RUN)
    assert page.evaluate(off) == 0


@needs_chromium
def test_legend_names_every_line_and_markup_is_text(results, page):
    page.open(results / "card.html", settle=0.1)
    labels = "[...document.querySelector('.u-legend').querySelectorAll('.u-label')].map(label => label.textContent)"
    parts = ("training", "validation code", "validation prose")
    assert page.evaluate(labels)[1:] == [f"{run}, {part}" for run in (HOSTILE, "base") for part in parts]


@needs_chromium
def test_drag_zooms_and_pointing_shows_values(results, page):
    page.open(results / "card.html", settle=0.1)
    box = "document.querySelector('.u-over').getBoundingClientRect()"
    left, top, width = (page.evaluate(f"{box}.{edge}") for edge in ("left", "top", "width"))
    before = page.evaluate("document.querySelector('.plot canvas').toDataURL()")
    page.drag((left + width * 0.2, top + 50), (left + width * 0.4, top + 50))
    page.until("document.querySelector('.u-legend .u-value').textContent !== '-'")
    assert page.evaluate("document.querySelector('.u-legend .u-value').textContent") != "-"
    page.until(f"document.querySelector('.plot canvas').toDataURL() !== {json.dumps(before)}")


@needs_chromium
def test_table_of_scores_is_sorted_filtered_and_saved(results, page):
    page.open(results / "card.html", settle=0.1)
    rows = "[...document.querySelectorAll('table[data-saved-as] tbody tr')].filter(row => !row.hidden)"
    values = f"{rows}.map(row => +row.cells[5].dataset.value)"
    page.evaluate("document.querySelectorAll('table[data-saved-as] th button')[5].click()")
    found = page.evaluate(values)
    assert len(found) > 4 and found == sorted(found)
    filter_to = "filter.value = {}; filter.dispatchEvent(new Event('input'))"
    page.evaluate("{ const filter = document.querySelector('.tools input'); " + filter_to.format("'base bits'") + " }")
    assert len(page.evaluate(values)) == 2
    page.evaluate("URL.createObjectURL = blob => { window.saved = blob.text(); return 'data:,'; }")
    page.evaluate("document.querySelector('.tools button').click()")
    head, first, _ = page.evaluate("window.saved").splitlines()
    assert head.startswith("run,step,tokens,task,metric,value")
    assert first.startswith("base,300,76800,bits_per_byte_code")


@needs_chromium
def test_table_that_is_cut_on_a_phone_says_that_it_scrolls(results, page):
    shown = "[...document.querySelectorAll('.hint')].filter(hint => !hint.hidden).length"
    page.open(results / "card.html", width=390, settle=0.2)
    before = page.evaluate(shown)
    assert before > 0
    page.evaluate("document.querySelector('.wide.cut').scrollLeft = 9999")
    page.until(f"{shown} === {before - 1}")
