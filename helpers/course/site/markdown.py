"""Markdown to HTML for pages: headings with anchors, links to pages in place of notebooks, formulas for MathJax.

Nothing in the text can make a page fetch anything from elsewhere: pictures with an address are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from ..notebook import CHAPTERS, CLEARED, home

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_NOTEBOOK = re.compile(r"(?P<path>[\w./]+\.ipynb)(?P<anchor>#.*)?")


@dataclass
class Section:
    """A heading with the plain text up to the next one, for the search and for the list of contents."""

    level: int
    title: str
    anchor: str
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Rendered:
    """HTML, its sections, and whether MathJax has to typeset it."""

    html: str
    sections: tuple[Section, ...]
    has_math: bool


def rendered(text: str, folder: str = "") -> Rendered:
    """`text` as a page in `folder`, "book", "book/deeper" or "labs", shows it."""
    tokens = _parser().parse(text)
    for token in tokens:
        _tend(token, folder)
    sections = tuple(_sections(tokens))
    html = _parser().renderer.render(tokens, _parser().options, {})
    return Rendered(html, sections, 'class="math' in html)


def inline(text: str) -> str:
    """One line of Markdown as HTML, without a paragraph around it."""
    return str(_parser().renderInline(text))


def page_of(link: str, folder: str) -> str:
    """Where a link of a notebook leads on the site, from a page in `folder`.

    >>> page_of("../labs/02_x.ipynb", "book"), page_of("chapters/02_x.ipynb#A", "labs"), page_of("02_x.ipynb", "book")
    ('../labs/02_x.html', '../book/02_x.html#A', '02_x.html')
    >>> page_of("../02_x.ipynb", "book/deeper"), page_of("deeper/02_x.ipynb", "book")
    ('../02_x.html', 'deeper/02_x.html')
    """
    found = _NOTEBOOK.fullmatch(link)
    if found is None:
        return link
    source = posixpath.join(folder.replace("book", CHAPTERS, 1), found["path"])
    opened = home(posixpath.normpath(source)).replace(f"{CLEARED}/", "book/", 1)
    address = posixpath.relpath(opened.removesuffix(".ipynb") + ".html", folder or ".")
    return address + (found["anchor"] or "")


def anchor_of(title: str) -> str:
    """A heading's anchor, as JupyterLab makes it."""
    return title.replace(" ", "-")


def _tend(token: Token, folder: str) -> None:
    """Links lead to pages, and pictures from elsewhere become their text."""
    for child in token.children or ():
        if child.type == "link_open":
            address = page_of(str(child.attrGet("href")), folder)
            child.attrSet("href", address)
            if "://" in address:
                child.attrSet("rel", "noreferrer")
        if child.type == "image":
            child.type, child.content, child.tag = "text", str(child.content), ""


def _sections(tokens: Sequence[Token]) -> Iterator[Section]:
    """Every heading with its text, each also given its anchor; text before the first heading has none."""
    section = Section(0, "", "")
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            yield from [section] if section.words or section.title else []
            title = _plain(tokens[at + 1])
            section = Section(int(token.tag[1]), title, anchor_of(title))
            token.attrSet("id", section.anchor)
        elif token.type == "inline" and tokens[at - 1].type != "heading_open":
            section.words.append(_plain(token))
    yield from [section] if section.words or section.title else []


def _plain(token: Token) -> str:
    kept = ("text", "code_inline", "math_inline", "softbreak")
    return "".join(child.content or " " for child in token.children or () if child.type in kept)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.use(dollarmath_plugin, renderer=_formula, double_inline=True)
    parser.add_render_rule("table_open", lambda *_: '<div class="scrolls" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    return parser


def _formula(text: str, options: dict[str, Any]) -> str:
    left, right = ("\\[", "\\]") if options["display_mode"] else ("\\(", "\\)")
    return f'<span class="math">{left}{escape(text)}{right}</span>'


def _fence(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    from .code import highlighted

    return highlighted(tokens[at].content, tokens[at].info.strip())
