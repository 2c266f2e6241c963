"""The built site in Chromium from a plain file server: what it computes, shows, fetches, and how quickly."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import random
import re
import shlex
import shutil
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from PIL import Image

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course.site import compressed_bytes, packages, site_files
from helpers.course.site.tools import examples
from helpers.lesson.calculators.from_address import OFFERED, calculator, drawn, drawn_as_json
from helpers.memory.oom import explain
from helpers.questions.parameter import CONFIG
from tests.catalog.gguf_files import gguf, llama, llama_tensors
from tests.house.tree import ROOT
from tests.memory.oom.oom_messages import REAL
from tests.needs import missing

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ALL = pytest.mark.all
MOST_SHIFT, NO_SHIFT = 0.005, 0.0001  # of layout, as the browser counts what moves
QUICK = ("can_i_run", "training_memory", "kv_cache", "checkpointing", "numbers")
PLANNERS = ("planner", "service_planner")
SETTINGS, SEED = 100, 30
MOST_BYTES = 12_000_000
OWN_MODEL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OWN_MODEL |= {"vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 8192}
MOVE = """([id, place]) => {
    const control = document.getElementById(id)
    control.value = place
    control.dispatchEvent(new Event('input', {bubbles: true}))
}"""
DRAWN = "Number(document.querySelector('#answer').dataset.drawn ?? 0)"
TEXTS = [*(example["text"] for example in examples()), *(case[0] for case in list(REAL.values())[:5])]
TALL = {"width": 1280, "height": 2000}  # a shift counts where it is seen
SIZES = {"desktop": (1280, 900), "half": (800, 900), "phone": (390, 844), "narrow": (320, 640)}
PAGES = ("index.html", "calculators/index.html", "calculators/kv_cache.html", "explain-oom.html", "console.html")
PAGES += ("book/index.html", "book/02_where_training_memory_goes.html", "labs/02_where_training_memory_goes.html")
PAGES += ("calculators/numbers.html", "calculators/block_map.html", "claims.html", "accuracy.html", "licences.html")
SHIFTED = """new PerformanceObserver(list => list.getEntries().forEach(entry => { window.shifted += entry.value }))
    .observe({type: 'layout-shift', buffered: false}); window.shifted = 0"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The site's files; skipped where Pyodide is neither cached nor to be had."""
    try:
        return site_files(ROOT)
    except WorkbookError as error:
        if packages.is_cached(ROOT, "pyodide"):
            raise
        missing(f"Pyodide ({error})")


@pytest.fixture(scope="module")
def address(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """One cache for the tests that do not ask how quickly a first visit goes."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def page(context: Any, address: str) -> Iterator[Any]:
    """A page; at its end: nothing was asked of another origin, nothing failed, and the console is silent."""
    page = context.new_page()
    wrong = watched(page, address)
    yield page
    page.close()
    assert wrong == []


def watched(page: Any, address: str) -> list[str]:
    """What goes wrong on the page from now on; a picture that a reader leaves before it has come is nothing wrong."""
    wrong: list[str] = []

    def failed(request: Any) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):
            wrong.append(f"failed: {request.url}")

    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", failed)
    page.on("request", lambda asked: None if _ours(asked.url, address) else wrong.append(f"elsewhere: {asked.url}"))
    return wrong


def _ours(url: str, address: str) -> bool:
    return url.startswith((address, "data:", f"blob:{address}"))


def until(page: Any, condition: str, timeout_s: float = 60) -> None:
    """The page's policy forbids Playwright's own waiting, which evaluates a text in the page again and again."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"{condition}; {page.inner_text('#python')}"
        page.wait_for_timeout(10)


def move(page: Any, settings: dict[str, str]) -> None:
    """Go to the settings by their address, and wait until their answer stands there."""
    before = page.evaluate(DRAWN)
    page.evaluate("hash => { location.hash = hash }", urlencode(settings))
    until(page, f"{DRAWN} > {before}")


def some_settings(name: str, rng: random.Random) -> dict[str, str]:
    of = calculator(name)
    values = {control: rng.choice(list(choices)) for control, (_, choices) in of.options.items() if control != CONFIG}
    return {control: str(value) for control, value in values.items() if value != of.start[control]}


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=ALL) for name in OFFERED])
def test_a_calculator_says_what_the_command_line_says_and_nothing_moves(
    page: Any, address: str, name: str, capsys: Any
) -> None:
    page.set_viewport_size(TALL)
    page.goto(f"{address}calculators/{name}.html")
    until(page, f"{DRAWN} > 0")
    (first, slowest), (again, _) = slide(page), slide(page)
    rng = random.Random(SEED)
    for _ in range(-(-SETTINGS // len(OFFERED))):
        settings = some_settings(name, rng)
        move(page, settings)
        expected, text = drawn(name, settings), page.evaluate("document.querySelector('#answer').dataset.text")
        assert text == expected.text, settings
        if expected.command:
            late = expected.title.endswith(("too late", "too slow"))  # a planner's answer alone
            assert main(shlex.split(expected.command)[1:]) == late
            printed = capsys.readouterr().out.rstrip("\n")
            assert text == printed if name not in PLANNERS else plans_alike(expected.title, printed), expected.command
    print(f"{name}: a slider moved the page by {first:.4f}, then {again:.4f}; redrawn within {1000 * slowest:.0f} ms")
    assert first < MOST_SHIFT  # where an answer is longer than any before it
    assert again < NO_SHIFT


def plans_alike(title: str, printed: str) -> bool:
    """`workbook plan` says more than the calculator: its first plan has the same cost, time and cards, or is late."""
    found = re.fullmatch(r"\S+: (\S+(?: \S+illion)?)(?: an hour)?, (.+?)(?: a token)? on (.+?)(, too \w+)?", title)
    assert found, title
    cost, took, cards, late = found.groups()
    if late == ", too slow":  # the calculator shows the quickest, the command what would do
        return "No plan." in printed
    first = next((line for line in printed.splitlines() if line.startswith("1  ")), "")
    return cards in printed if late else all(word in first for word in (cost, took, cards))


def slide(page: Any) -> tuple[float, float]:
    """Move the first slider over its whole range; returns the layout's shift, and the longest time to an answer."""
    page.evaluate(SHIFTED)
    slider = page.evaluate("document.querySelector('.control:not(.unused) input[type=range]')?.id")
    if slider is None:
        return 0.0, 0.0
    last, slowest = page.evaluate(f"Number(document.querySelector('#{slider}').max)"), 0.0
    for place in range(0, last + 1, max(1, last // 6)):
        before, start = page.evaluate(DRAWN), time.monotonic()
        page.evaluate(MOVE, [slider, place])
        until(page, f"{DRAWN} > {before}")
        slowest = max(slowest, time.monotonic() - start)
    return page.evaluate("window.shifted"), slowest


def test_a_link_restores_its_settings(page: Any, address: str) -> None:
    page.goto(f"{address}calculators/kv_cache.html#model=deepseek-v3&users=3&context=32768")
    until(page, f"{DRAWN} > 0")
    assert page.evaluate("document.querySelector('#set-model').value") == "deepseek-v3"
    assert page.inner_text('output[for="set-users"]') == "3"
    told = page.evaluate("document.querySelector('#answer').dataset.text")
    assert told == drawn("kv_cache", {"model": "deepseek-v3", "users": "3", "context": "32768"}).text
    page.click("button[type=reset]")
    until(page, f"{DRAWN} > 1")
    assert "#" not in page.url


def test_a_config_is_chosen_from_a_file_and_stays_in_the_page(
    page: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = tmp_path / "mine.json", tmp_path / "bad.json"
    good.write_text(json.dumps(OWN_MODEL))
    bad.write_text("[1]")
    page.goto(f"{address}calculators/kv_cache.html")
    until(page, f"{DRAWN} > 0")
    page.set_input_files("#set-config", good)
    until(page, f"{DRAWN} > 1")
    told = page.evaluate("document.querySelector('#answer').dataset.text")
    assert told == json.loads(drawn_as_json("kv_cache", "{}", good.read_text()))["text"]
    assert "--model ./config.json" in page.inner_text("#answer .command")
    assert "#" not in page.url
    page.set_input_files("#set-config", bad)
    until(page, "!!document.querySelector('#answer pre.error')")
    assert "the chosen file is no model" in page.inner_text("#answer pre.error")
    page.select_option("#set-model", "gpt2")  # the menu takes over again
    until(page, "document.querySelector('#answer').dataset.text.startsWith('gpt2')")
    assert page.evaluate("document.querySelector('#set-config').files.length") == 0


def test_the_header_of_a_gguf_file_is_read_in_the_page(page: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(gguf(llama(), llama_tensors()))
    page.goto(f"{address}index.html")
    until(page, f"{DRAWN} > 0")
    page.set_input_files("#set-config", tmp_path / "model-Q4_K_M.gguf")
    until(page, f"{DRAWN} > 1")
    assert "serve with llama.cpp" in page.inner_text("table.uses")
    command = page.evaluate("[...document.querySelectorAll('table.uses code')].at(-1).textContent")
    assert "--model ./model-Q4_K_M.gguf" in command
    assert "--engine llama.cpp" in command
    assert page.query_selector(".control.replaced #set-model")  # the model's name counts no more
    page.evaluate("navigator.clipboard.writeText = async () => {}")
    page.click("#copy")
    assert page.inner_text("#copy") == "Link copied, without the file"
    page.click("[data-preset*='h100']")
    until(page, "document.querySelector('#status').textContent.startsWith('llama-3.1-70b')")
    assert page.evaluate("document.querySelector('#set-config').files.length") == 0
    assert page.query_selector(".control.replaced") is None


def test_a_phone_sees_the_verdict_beside_the_controls(page: Any, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}index.html")
    until(page, f"{DRAWN} > 0")
    for gpu, told in (("16GB", "fit"), ("asdf", "No answer: unknown device 'asdf'")):
        page.fill("#set-gpu", gpu)
        page.keyboard.press("Tab")
        until(page, f"document.querySelector('#status').textContent.includes({json.dumps(told)})")
        box, shown = page.locator("#status").bounding_box(), page.evaluate("innerHeight")
        assert 0 < box["y"] < shown - box["height"] + 1, "it is on the screen, although the answer is below it"
        assert page.locator("#answer").bounding_box()["y"] > shown


def test_the_front_page_answers_for_any_model_and_leads_on(page: Any, address: str) -> None:
    """Python is loaded once in a visit, whatever pages it leads to; back again, the settings are the same."""
    loaded: list[str] = []
    page.on("request", lambda asked: loaded.append(asked.url) if asked.url.endswith("/manifest.json") else None)
    page.goto(f"{address}index.html")
    until(page, f"{DRAWN} > 0")
    page.fill("#set-model", "Qwen/Qwen2.5-14B-Instruct-AWQ")
    page.fill("#set-gpu", "16GiB")
    page.keyboard.press("Tab")
    settings = {"model": "Qwen/Qwen2.5-14B-Instruct-AWQ", "gpu": "16GiB"}
    expected = drawn("can_i_run", settings)
    until(page, f"document.querySelector('#status').textContent === {json.dumps(expected.title)}")
    assert page.evaluate("document.querySelector('#answer').dataset.text") == expected.text
    page.click("table.uses a[href*='fine_tuning']")
    until(page, f"document.title.startsWith('Fine-tuning') && {DRAWN} > 0")
    assert "QLoRA of Qwen/Qwen2.5-14B" in page.inner_text("#status")
    page.click("nav a[href$='book/index.html']")
    until(page, "document.title.startsWith('The book')")
    page.go_back()
    until(page, "document.title.startsWith('Fine-tuning')")
    page.go_back()
    until(page, f"document.title === 'The GPU Memory Workbook' && {DRAWN} > 0")
    assert page.input_value("#set-gpu") == "16GiB"
    assert page.evaluate("document.activeElement.tagName") == "MAIN"  # where a screen reader goes on
    assert len(loaded) == 1


def test_an_answer_that_is_not_yet_that_of_its_settings_says_so(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{address}calculators/kv_cache.html#users=3")
    until(page, "document.querySelector('#answer').getAttribute('aria-busy') === 'true'")
    until(page, f"{DRAWN} > 0")
    assert page.evaluate("document.querySelector('#answer').hasAttribute('aria-busy')") is False
    page.context.close()


@pytest.mark.parametrize("settings", ["modle=gpt2", "model=%3Cimg%20src=x%3E", "micro_batch=0", "micro_batch=-1"])
def test_a_broken_link_says_what_is_wrong(page: Any, address: str, settings: str) -> None:
    page.goto(f"{address}calculators/training_memory.html#{settings}")
    until(page, "!!document.querySelector('#answer pre.error')")
    assert "expected:" in page.inner_text("#answer pre.error")
    assert page.evaluate("document.querySelectorAll('#answer img').length") == 0


def test_text_stands_long_before_python_does(browser: Any, address: str) -> None:
    """With nothing cached. What a quiet machine took is in NOTES.md; this one may be busy."""
    context = browser.new_context()
    page, start = context.new_page(), time.monotonic()
    page.goto(f"{address}calculators/training_memory.html")
    assert "Training llama-2-7b" in page.inner_text("#answer")
    until(page, f"{DRAWN} > 0")
    seconds = time.monotonic() - start
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    print(f"first text after {painted:.0f} ms, interactive after {seconds:.1f} s")
    assert painted < 1000 * seconds / 4


def test_a_pasted_error_is_explained_as_in_the_terminal(page: Any, address: str) -> None:
    page.goto(f"{address}index.html")
    for at, text in enumerate(TEXTS, 1):
        page.fill("#error", text)
        page.click("form.paste button")
        until(page, f"Number(document.querySelector('#explained').dataset.drawn ?? 0) === {at}")
        assert page.evaluate("document.querySelector('#explained').dataset.text") == str(explain(text))
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert "#" not in page.url


def test_the_console_answers(page: Any, address: str, capsys: Any) -> None:
    line = "estimate serve --model llama-3-8b --users 8 --gpu rtx-4090"
    page.goto(f"{address}console.html#{line.replace(' ', '%20')}")
    until(page, "document.querySelector('#log section')?.dataset.code === '0'")
    assert main(shlex.split(line)) == 0
    assert page.evaluate("document.querySelector('#log pre').textContent") == capsys.readouterr().out


def test_the_book_typesets_its_formulas_and_finds_words(page: Any, address: str, files: dict[str, bytes]) -> None:
    chapter = next(name for name, content in files.items() if name.endswith(".html") and b'class="math"' in content)
    page.goto(f"{address}{chapter}")
    end = time.monotonic() + 20
    while page.evaluate("document.querySelectorAll('.math:not(:has(mjx-container svg))').length"):
        assert time.monotonic() < end
        page.wait_for_timeout(50)
    page.fill("#search", "fragmentation expandable")
    page.wait_for_selector("#found a")
    page.keyboard.press("Enter")
    end = time.monotonic() + 20
    while chapter in page.url:
        assert time.monotonic() < end
        page.wait_for_timeout(50)
    assert "/book/" in page.url
    assert chapter not in page.url


def test_keys_alone_move_a_calculator(page: Any, address: str) -> None:
    page.goto(f"{address}calculators/kv_cache.html")
    until(page, f"{DRAWN} > 0")
    page.focus("#set-users")
    page.keyboard.press("ArrowRight")
    until(page, f"{DRAWN} > 1")
    assert page.url.endswith("#users=64")
    told = page.evaluate(
        "[...document.querySelectorAll('[type=range]')].map(one => one.getAttribute('aria-valuetext'))"
    )
    assert told == ["8,192", "64", "1"]  # what a screen reader says, and no place in a list
    assert "64 users" in page.inner_text("#status")


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return packages.files_of(ROOT, "axe-core", ["axe.min.js"])["axe.min.js"].decode()
    except WorkbookError as error:
        missing(f"axe-core ({error})")


def audited(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:150]}" for one in found if one["impact"] in ("serious", "critical")
    ]


def faults_of(page: Any, axe: str) -> list[str]:
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return audited(page, axe) + ([f"{wide} px wider than the screen"] if wide > 0 else [])


@pytest.mark.parametrize(("size", "theme"), [("desktop", "light"), ("half", "light"), ("narrow", "dark")])
def test_pages_can_be_used_by_everybody(browser: Any, address: str, axe: str, size: str, theme: str) -> None:
    with opened(browser, size, theme) as page:
        for name in PAGES:
            page.goto(address + name)
            page.wait_for_timeout(300)
            assert faults_of(page, axe) == [], name


@pytest.mark.all
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_can_be_used_by_everybody(
    browser: Any, address: str, files: dict[str, bytes], axe: str, size: str, theme: str
) -> None:
    """Calculators once more when their answer stands."""
    found = []
    with opened(browser, size, theme) as page:
        for name in sorted(name for name in files if name.endswith(".html")):
            page.goto(address + name)
            page.wait_for_timeout(300)
            found += [f"{name}: {one}" for one in faults_of(page, axe)]
            if page.query_selector("#answer"):
                until(page, f"{DRAWN} > 0")
                found += [f"{name}, drawn: {one}" for one in faults_of(page, axe)]
    assert found == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_are_drawn_for_the_theme(browser: Any, address: str, theme: str) -> None:
    """A chapter's pictures are stored light; their mean lightness is that of the page around them."""
    with opened(browser, "desktop", theme) as page:
        page.goto(f"{address}book/00_start_here.html")
        shot = page.locator(".out img").first.screenshot()
    mean = Image.open(BytesIO(shot)).convert("L").resize((1, 1)).getpixel((0, 0))
    assert (mean > 160) == (theme == "light"), mean


@contextlib.contextmanager
def opened(browser: Any, size: str, theme: str) -> Iterator[Any]:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    context = browser.new_context(viewport=viewport, color_scheme=theme, bypass_csp=True)
    try:
        yield context.new_page()
    finally:
        context.close()


def test_the_auditor_finds_what_is_wrong(browser: Any, axe: str) -> None:
    page = browser.new_page()
    page.set_content('<html lang="en"><title>t</title><main><img src="data:,"><input></main></html>')
    assert {one.partition(":")[0] for one in audited(page, axe)} >= {"image-alt", "label"}
    page.close()


def test_it_is_small_and_the_same_every_time(files: dict[str, bytes]) -> None:
    size = compressed_bytes(files)
    print(f"{size / 1e6:.2f} MB compressed")
    assert size <= MOST_BYTES
    assert site_files(ROOT) == files
