"""The grader's pages in a real browser: no script runs, no request leaves, they fit a phone, the text is legible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.grading.reports import feedback, summary
from tests.browser.test_calculator import CONTRAST
from tests.grading.reports.marked_class import BREAKOUT, FETCHING, SCRIPT, hostile_class, small_class

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CSP_TAG = '<meta http-equiv="Content-Security-Policy"'
# What an unescaped message would be, were there a hole in a template.
HOLE = (
    f"{SCRIPT}{BREAKOUT}{FETCHING}<iframe src='http://127.0.0.1:9/'></iframe><a id=go href='javascript:window.ran=1'>"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A run folder with hostile and harmless learners."""
    out, results = tmp_path_factory.mktemp("run"), [*hostile_class(), *small_class()]
    feedback.write(results, out, lab="05_numbers", title=f"Lab 05 {SCRIPT}")
    summary.write(results, out, {"title": f"Lab 05 {SCRIPT}", "seed": SCRIPT, "versions": {SCRIPT: BREAKOUT}})
    many = [
        replace(one, questions=[replace(each, key=f"{each.key}{n}") for n in range(8) for each in one.questions])
        for one in results
    ]
    summary.write(many, out / "many", {})
    return out


@pytest.fixture(scope="module")
def all_pages(written: Path) -> list[Path]:
    return [*written.rglob("summary.html"), *sorted((written / "feedback").glob("*.html"))]


@pytest.fixture
def visit(browser) -> Iterator[Callable]:
    """`visit(path)` loads a page and gives (page, the requests that would have left, the dialogs that opened).

    What leaves is what comes to the router, which refuses all but the page: the browser also announces requests that
    the page's policy then stops.
    """
    page = browser.new_page()
    left, dialogs, wanted = [], [], []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))

    def route(asked) -> None:
        if asked.request.url in wanted:
            asked.continue_()
        else:
            left.append(asked.request.url)
            asked.abort()

    page.route("**/*", route)

    def load(path: Path):
        wanted[:] = [path.as_uri()]
        page.goto(path.as_uri(), wait_until="load")
        return page, left, dialogs

    yield load
    page.close()


def test_no_script_runs_and_no_request_leaves(visit, all_pages):
    for path in all_pages:
        page, left, dialogs = visit(path)
        assert page.evaluate("window.ran") is None, path.name
        assert page.title().startswith("Lab 05 <script>") or path.parent.name == "many", path.name
        assert (left, dialogs) == ([], []), path.name


def with_a_hole(written: Path, tmp_path: Path, *, policy: bool) -> Path:
    html = (written / "feedback" / "ada.html").read_text(encoding="utf-8").replace("<main>", f"<main>{HOLE}")
    if not policy:
        html = html.replace(CSP_TAG, "<meta name=x ")
    path = tmp_path / "hole.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_the_policy_holds_where_a_template_had_a_hole(visit, written, tmp_path):
    page, left, dialogs = visit(with_a_hole(written, tmp_path, policy=True))
    page.evaluate("document.getElementById('go').click()")
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran") is None
    assert (left, dialogs) == ([], [])


def test_without_the_policy_the_hole_is_seen(visit, written, tmp_path):
    """The two tests above can fail: this is what they would find."""
    page, left, _ = visit(with_a_hole(written, tmp_path, policy=False))
    assert page.evaluate("window.ran") == 1
    assert {"http://127.0.0.1:9/x.css", "http://127.0.0.1:9/x.png", "http://127.0.0.1:9/"} <= set(left)


def test_pages_are_no_wider_than_the_screen(visit, all_pages, screenshot):
    for path in all_pages:
        page, _, _ = visit(path)
        for width in (1200, 400, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path.name, width)
            screenshot(page, f"grading-{path.stem[:40]}-{width}")


@pytest.mark.parametrize(
    ("media", "scheme", "behind"),
    [("screen", "light", "246, 245, 241"), ("screen", "dark", "20, 22, 26"), ("print", "dark", "255, 255, 255")],
)
def test_text_is_legible(visit, written, media, scheme, behind):
    """4.5 is WCAG's level AA for text."""
    places = {
        "feedback/ben.html": [
            "p.soft",
            ".above",
            ".outcome",
            "pre .expected",
            "pre .yours",
            "code",
            ".hint strong",
            "a",
        ],
        "feedback/cleo.html": [".open .outcome", ".part .outcome", ".next span"],
        "feedback/eve.html": [".notice p", ".notice code"],
        "summary.html": ["dt", "th", "td", "th a", ".legend", ".error code"],
    }
    for name, selectors in places.items():
        page, _, _ = visit(written / name)
        page.emulate_media(media=media, color_scheme=scheme)
        for selector in selectors:
            assert page.eval_on_selector(selector, CONTRAST) >= 4.5, (name, selector)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb({behind})"
