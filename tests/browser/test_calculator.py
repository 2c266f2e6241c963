"""Chapter 02 in real JupyterLab: what a person sees before running anything, and when they move a control."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.browser.conftest import FIND_CALCULATOR

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Relative luminance and contrast as WCAG 2 defines them; 4.5 is its level AA for text.
CONTRAST = """element => {
    const opaque = colour => { const c = colour.match(/[\\d.]+/g).map(Number); return c[3] === 0 ? null : c }
    let behind = element
    while (!opaque(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement
    const luminance = ([r, g, b]) => [[r, .2126], [g, .7152], [b, .0722]].reduce((sum, [value, weight]) => {
        const s = value / 255
        return sum + weight * (s <= .03928 ? s / 12.92 : ((s + .055) / 1.055) ** 2.4)
    }, 0)
    const pair = [opaque(getComputedStyle(element).color), opaque(getComputedStyle(behind).backgroundColor)]
    const [low, high] = pair.map(luminance).sort((a, b) => a - b)
    return (high + .05) / (low + .05)
}"""


@pytest.fixture(scope="module")
def live(open_notebook) -> Iterator:
    """The page with the setup cells and the calculator's cell run."""
    page = open_notebook("calculator.ipynb")
    page.evaluate("jupyterapp.shell.currentWidget.context.sessionContext.ready")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".widget-html svg")
    yield page
    page.close()


def peak_gib(page) -> float:
    """The number in the picture's title."""
    title = page.locator(".widget-html svg > text").first.text_content()
    return float(re.search(r"([\d.]+) GiB at the peak", title)[1])


def bar_widths(page) -> dict[str, float]:
    """Pixels on the screen of each part of the bar, by name."""
    bars = page.locator(".widget-html svg rect.part").all()
    return {bar.get_attribute("data-part"): bar.bounding_box()["width"] for bar in bars}


def drag(page, name: str, pixels: float) -> None:
    """The knob beside the menu called `name`, by hand."""
    row = page.locator(".widget-hbox", has=page.get_by_text(name, exact=True))
    knob = row.locator(".noUi-touch-area").bounding_box()
    x, y = knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + pixels, y, steps=4)
    page.mouse.up()


def choose(page, name: str, value: str) -> None:
    page.locator(".widget-dropdown", has=page.get_by_text(name, exact=True)).locator("select").select_option(value)


def test_a_slider_moves_the_number_and_the_picture(live, screenshot) -> None:
    screenshot(live, "calculator-light")
    number, widths = peak_gib(live), bar_widths(live)
    drag(live, "micro-batch", 20)
    live.wait_for_function(
        "before => !document.querySelector('.widget-html svg').innerHTML.includes(before)",
        arg=f"{number:.2f} GiB at the peak",
    )
    assert peak_gib(live) > number > 0
    moved = bar_widths(live)
    share, share_before = (w["activations"] / sum(w.values()) for w in (moved, widths))
    assert share > share_before
    screenshot(live, "calculator-moved")


def test_the_whole_picture_is_inside_its_card(live) -> None:
    card = live.locator(".widget-html svg > rect").first.bounding_box()
    for text in live.locator(".widget-html svg text").all():
        box = text.bounding_box()
        assert card["x"] <= box["x"], text.text_content()
        assert box["x"] + box["width"] <= card["x"] + card["width"], text.text_content()


def test_a_choice_that_cannot_be_says_why_and_can_be_taken_back(live, screenshot) -> None:
    choose(live, "model", "gpt2")
    message = live.locator(".widget-html pre.error")
    message.wait_for()
    assert "position for 1,024 tokens" in message.text_content()
    screenshot(live, "calculator-error")
    choose(live, "model", "llama-2-7b")
    live.wait_for_selector(".widget-html svg")


def test_the_sentence_can_be_read_in_both_themes(live, set_theme, screenshot) -> None:
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        set_theme(live, theme)
        for text in (".widget-html .sentence", ".widget-html pre"):
            assert live.locator(text).evaluate(CONTRAST) > 4.5, (theme, text)
        screenshot(live, f"calculator-{theme.split()[1].lower()}-theme")


def test_the_command_is_selected_by_a_click(live) -> None:
    code = live.locator(".widget-html code.command")
    code.click()
    assert live.evaluate("getSelection().toString()") == code.text_content()
    assert code.text_content().startswith("workbook estimate train --model llama-2-7b")


def test_a_config_that_is_typed_takes_the_model_s_place(live) -> None:
    live.locator(".jupyter-widget-Collapse-header").click()
    path = live.locator(".widget-text", has=live.get_by_text("or a config", exact=True)).locator("input")
    path.fill("./nowhere/config.json")
    path.press("Enter")
    message = live.locator(".widget-html pre.error")
    message.wait_for()
    assert "there is no file" in message.text_content()
    path.fill("")
    path.press("Enter")
    live.wait_for_selector(".widget-html svg")


def test_the_stored_chapter_shows_a_picture_before_anything_runs(open_notebook, screenshot) -> None:
    """A fresh clone is not trusted: JupyterLab shows its PNG and text, and neither SVG nor widgets."""
    page = open_notebook("stored.ipynb")
    page.wait_for_function(f"{FIND_CALCULATOR} >= 0")  # a long notebook comes in pieces
    at = page.evaluate(FIND_CALCULATOR)
    cell = page.locator(".jp-Notebook-cell").nth(at)
    cell.scroll_into_view_if_needed()
    screenshot(page, "stored")
    picture = cell.locator(".jp-OutputArea-output img, .jp-OutputArea-output svg")
    picture.first.wait_for()
    assert picture.first.bounding_box()["width"] > 400
    assert "Error displaying widget" not in page.locator(".jp-Notebook").text_content()
