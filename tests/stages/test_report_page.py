"""summarize: the report as HTML pages, opened in a browser: no error, no request, names are inert, curves react."""

import json
import re
from urllib.parse import unquote

import pytest

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
    assert summarized(root) == 0
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
    for words in ("code 59%, prose 41%", "76,800", "4.2 M", "0123456789", "ffffffffff+", "2.273", "0.05", "indent"):
        assert words in first, words
    assert "is better than base by 0.310, 4.4 standard errors" in first
    assert "0.350 " in first and "0.25" in first  # the best rule without a model, and chance


def test_best_score_of_a_column_is_bold(results):
    assert "<b>2.273</b>" in text_of(results)
    assert "<b>2.583</b>" not in text_of(results)


def test_data_and_provenance_have_sources_digests_and_code_that_differs(results):
    text = text_of(results)
    for words in ("3 duplicate", "50.0%", "58.6%", "45,000", "base, step 100", "differs", "torch", "rank-hours"):
        assert words in text, words


def test_links_of_the_card_lead_to_files(results):
    paths = re.findall(r'<a href="([^"#]+)"', text_of(results))
    assert len(paths) >= 10
    for path in map(unquote, paths):
        assert (results / path).exists(), path


def test_page_of_a_category_links_to_no_file(results):
    assert sorted(path.stem for path in (results / "pages").iterdir()) == [
        *("answer", "data", "provenance", "scores", "training")
    ]
    assert "<a href" not in text_of(results, "pages/provenance.html")


def test_pages_are_the_same_bytes_twice(results):
    first = text_of(results)
    assert summarized(results) == 0
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


def test_no_results_make_a_page_that_says_so(tmp_path):
    assert summarized(tmp_path) == 0
    assert "There are no results yet." in text_of(tmp_path)


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


@needs_chromium
def test_dark_page_is_dark(results, page):
    page.open(results / "card.html", dark=True, settle=0)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"


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
    names = page.evaluate(
        "[...document.querySelector('.u-legend').querySelectorAll('.u-label')].map(e => e.textContent)"
    )
    assert names[1:] == [
        f"{run}, {part}" for run in (HOSTILE, "base") for part in ("training", "validation code", "validation prose")
    ]


@needs_chromium
def test_drag_zooms_and_pointing_shows_values(results, page):
    page.open(results / "card.html", settle=0.1)
    box = "document.querySelector('.u-over').getBoundingClientRect()"
    left, top, width = (page.evaluate(f"{box}.{edge}") for edge in ("left", "top", "width"))
    before = pixels(page)
    page.drag((left + width * 0.2, top + 50), (left + width * 0.4, top + 50))
    page.until("document.querySelector('.u-legend .u-value').textContent !== '-'")
    assert page.evaluate("document.querySelector('.u-legend .u-value').textContent") != "-"
    page.until(f"document.querySelector('.plot canvas').toDataURL() !== {json.dumps(before)}")


def pixels(page):
    return page.evaluate("document.querySelector('.plot canvas').toDataURL()")
