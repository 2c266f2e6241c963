"""The pages as they are built, without a browser: links alive, words for pictures, nothing from elsewhere."""

from __future__ import annotations

import ast
import io
import json
import posixpath
import re
import warnings
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import nbformat
import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course.notebook import BOOK, CHAPTERS, LABS, find_all
from helpers.course.site import book, build, facts, runtime
from helpers.course.site.book import BookPage, chapters
from helpers.course.site.markdown import page_of, rendered
from helpers.course.site.pages import Page, lies_at
from helpers.course.site.runtime import EPOCH, sources
from helpers.course.site.search import search_index
from helpers.lesson.calculators.from_address import OFFERED
from tests.house.tree import ROOT

FETCHING = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src", "video": "src"}
FROM_PACKAGES = ("mathjax/", "minisearch/", "python/")  # npm's files; test_site.py in tests/browser loads them


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.all if "id" in attributes]


@pytest.fixture(scope="module")
def found() -> list[BookPage]:
    return chapters(ROOT)


@pytest.fixture(scope="module")
def pages(found: list[BookPage]) -> dict[str, str]:
    """Every page by its address; a warning while they are built is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {page.address: page.html for page in build._pages(ROOT, found, None)}


@pytest.fixture(scope="module")
def files(found: list[BookPage], pages: dict[str, str]) -> set[str]:
    pictures = {address for chapter in found for address in chapter.pictures}
    return {*pages, *pictures, *build._assets(), "assets/one_step.png"}


def dead_links(pages: dict[str, str], files: set[str]) -> Iterator[str]:
    ids = {address: set(Elements(html).ids) for address, html in pages.items()}
    for address, html in pages.items():
        for tag, attributes in Elements(html).all:
            link = attributes.get(FETCHING.get(tag, "href" if tag == "a" else "")) or ""
            if not link or link.startswith(("https://", "http://")):
                continue
            path, anchor = urldefrag(link)
            to = posixpath.normpath(posixpath.join(posixpath.dirname(address), path)) if path else address
            if to not in files and not to.startswith(FROM_PACKAGES):
                yield f"{address}: {link}"
            elif anchor and "/calculators/" not in f"/{to}" and unquote(anchor) not in ids.get(to, set()):
                yield f"{address}: no {anchor} in {to}"


def test_every_link_within_the_site_is_alive(pages: dict[str, str], files: set[str]) -> None:
    assert list(dead_links(pages, files)) == []
    broken = {"book/x.html": '<a href="y.html">y</a><a href="#z">z</a>'}
    assert len(list(dead_links(broken, {"book/x.html"}))) == 2


def fetched_elsewhere(pages: dict[str, str]) -> list[str]:
    return [
        f"{address}: {attributes[FETCHING[tag]]}"
        for address, html in pages.items()
        for tag, attributes in Elements(html).all
        if tag in FETCHING and "//" in (attributes.get(FETCHING[tag]) or "")
    ]


def test_no_page_fetches_from_elsewhere(pages: dict[str, str]) -> None:
    assert fetched_elsewhere(pages) == []
    assert fetched_elsewhere({"x.html": '<img src="https://example.org/x.png">'})


def test_every_picture_has_words(pages: dict[str, str]) -> None:
    pictures = [(address, of) for address, html in pages.items() for tag, of in Elements(html).all if tag == "img"]
    assert len(pictures) > 50
    assert [address for address, of in pictures if len(of.get("alt") or "") < 20] == []
    assert all(of.get("width") and of.get("height") for _, of in pictures)


def test_no_id_stands_twice(pages: dict[str, str]) -> None:
    for address, html in pages.items():
        ids = Elements(html).ids
        assert sorted(set(ids)) == sorted(ids), address


def test_every_chapter_has_its_page_and_its_setup_folded(found: list[BookPage], pages: dict[str, str]) -> None:
    book = find_all(ROOT, BOOK)
    for path in book:
        folder = path.parent.relative_to(ROOT / CHAPTERS)
        assert "<summary>Setup</summary>" in pages[(Path("book") / folder / f"{path.stem}.html").as_posix()]
    assert len(found) == len(book) + len(find_all(ROOT, [LABS]))


def test_the_search_index_leads_to_anchors(found: list[BookPage], pages: dict[str, str]) -> None:
    entries = json.loads(search_index(found))
    ids = {address: set(Elements(html).ids) for address, html in pages.items()}
    for entry in entries:
        path, anchor = urldefrag(entry["address"])
        assert path in pages, entry["address"]
        assert not anchor or anchor in ids[path], entry["address"]
    assert any("fragmentation" in entry["text"] for entry in entries)
    assert {f"calculators/{name}.html" for name in OFFERED} <= {entry["address"] for entry in entries}


def test_formulas_are_for_mathjax_and_dollars_in_code_are_not() -> None:
    assert r'<span class="math">\(a &lt; b\)</span>' in rendered("so $a < b$").html
    assert not rendered("`$HOME` and `$PATH`").has_math
    assert not rendered(r"\$2.69; and elsewhere between \$2.69 and \$12.29").has_math


def test_keys_alone_reach_whatever_scrolls(pages: dict[str, str]) -> None:
    """A browser lets the arrow keys scroll only what has the focus."""
    found = [(address, of) for address, html in pages.items() for tag, of in Elements(html).all if tag == "pre"]
    assert len(found) > 500
    assert [address for address, of in found if of.get("tabindex") != "0"] == []


def test_a_picture_from_elsewhere_is_its_text() -> None:
    assert "<img" not in rendered("![a card](https://example.org/card.png)").html


def test_notebooks_links_become_pages() -> None:
    assert page_of("https://example.org/02_x.ipynb", "book") == "https://example.org/02_x.ipynb"
    assert page_of("02_x.ipynb#In-short", "book") == "02_x.html#In-short"
    assert page_of("../../labs/02_x.ipynb", "book/deeper") == "../../labs/02_x.html"
    assert page_of("chapters/A_x.ipynb", "labs") == "../book/A_x.html"


def test_a_picture_without_words_is_refused(tmp_path: Path) -> None:
    picture = nbformat.v4.new_output("display_data", {"image/png": "iVBORw0KGgo="}, metadata={})
    cells = [nbformat.v4.new_markdown_cell("# 02 · X"), nbformat.v4.new_code_cell("x", outputs=[picture])]
    path = tmp_path / "02_x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(WorkbookError, match="without words"):
        book._chapter(path, "book")


def test_a_shown_calculator_links_to_its_page_with_its_settings() -> None:
    (link,) = book._live('kv_cache(model="deepseek-v3", users=4)')
    assert "calculators/kv_cache.html#model=deepseek-v3&users=4" in link.replace("&amp;", "&")
    assert not list(book._live("print(kv_cache().answer())"))


def test_the_ledger_shows_every_claim_with_its_verdict(pages: dict[str, str]) -> None:
    shown = [of for tag, of in Elements(pages["claims.html"]).all if tag == "article"]
    assert {of["id"]: of["data-verdict"] for of in shown} == {c.id: c.verdict for c in facts.ledger().values()}


def test_accuracy_from_a_file_shows_its_rows(tmp_path: Path) -> None:
    row = {
        "name": "a run",
        "quantity": "peak",
        "device": "h100",
        "why": "",
        "unit": "bytes",
        "source": "https://a.org/b",
    }
    row |= {"measured": 2**30, "predicted": 2**30 * 1.01, "error": 0.01}
    file = tmp_path / "accuracy.json"
    file.write_text(json.dumps({"rows": [row], "summary": [], "others": []}))
    html = facts.accuracy_page(file).html
    assert "a run" in html
    assert "+1.00%" in html
    assert 'href="https://a.org/b"' in html
    file.write_text("[]")
    with pytest.raises(WorkbookError, match="cannot read"):
        facts.accuracy_page(file)


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(WorkbookError, match="other files"):
        build.site(ROOT, tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_the_sources_are_the_same_bytes_every_time() -> None:
    first = sources(ROOT)
    assert first == sources(ROOT)
    entries = zipfile.ZipFile(io.BytesIO(first)).infolist()
    assert {entry.date_time for entry in entries} == {EPOCH}
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)


def test_what_pages_run_imports_nothing_that_is_left_out_of_the_library() -> None:
    left_out = {re.sub(r"(/|\.py)$", "", name) for name in runtime.UNUSED}
    archive = zipfile.ZipFile(io.BytesIO(sources(ROOT)))
    trees = {name: ast.parse(archive.read(name)) for name in archive.namelist() if name.endswith(".py")}
    imported = {name: set(_imports(tree)) & left_out for name, tree in trees.items()}
    assert {name: found for name, found in imported.items() if found} == {}
    assert set(_imports(ast.parse("def f():\n    from xmlrpc.client import x, y\n    import pdb"))) & left_out


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def test_the_short_library_keeps_what_is_used_and_is_the_same_bytes_every_time() -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in ("json/", "json/__init__.py", "pdb.py", "encodings/cp437.py", "encodings/cp850.py"):
            archive.writestr(name, "")
    short = runtime._short_library(whole.getvalue())
    assert zipfile.ZipFile(io.BytesIO(short)).namelist() == ["json/__init__.py", "encodings/cp437.py"]
    assert short == runtime._short_library(whole.getvalue())


def test_a_page_leads_to_the_repository_where_there_is_one() -> None:
    page = Page("licences.html", "Licences", "licences", "x", {"licence": "MIT", "parts": []})
    assert "The repository" not in page.html
    lies_at("https://github.com/ada/workbook")
    try:
        assert '<a href="https://github.com/ada/workbook">The repository</a>' in page.html
    finally:
        lies_at("")
