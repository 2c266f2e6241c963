"""Text, numbers and pages as people may see them: nothing that a learner wrote acts on a terminal, a line or a page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# Whole escape sequences go, so that "\x1b[31mred" becomes "red" and not "[31mred". One that is never closed loses
# its introducer only: the text behind it may be the message.
_ESCAPES = re.compile(r"\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b.?")
_LINE_ENDS = re.compile(r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
# Controls, and format characters that reorder or hide text. The two joiners stay: names in Persian, Hindi and emoji
# need them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")  # they cannot be encoded: the file would never be written
_MARKED = re.compile(r"(?P<code>`[^`]+`)|(?P<strong>\*\*[^*\n]+\*\*)|(?P<em>\*[^*\s][^*\n]*\*)")


def plain(text: str) -> str:
    r"""`text` without terminal escapes, control characters and marks that reorder it; lines end in \n, tabs stay.

    >>> plain("\x1b[31mwrong\x1b[0m\r\nline\x00 2")
    'wrong\nline 2'
    """
    visible = _UNSEEN.sub("", _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", visible)


def one_line(text: str, most: int) -> str:
    r"""`text` as one plain line of about `most` characters, its lines joined by a bar.

    >>> one_line("values differ\n  expected: 3\n  yours:    4", most=100)
    'values differ | expected: 3 | yours: 4'
    """
    lines = (" ".join(line.split()) for line in plain(text).split("\n"))
    return shortened(" | ".join(filter(None, lines)), most)


def shortened(text: str, most: int) -> str:
    """`text` with its middle left out where it is longer than `most`: a message names its input first, its reason last.

    >>> shortened("abcdefghijklmnopqrstuvwxyz", most=6)
    'abcd … (20 characters left out) … yz'
    """
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail]} … ({len(text) - most:,} characters left out) … {text[len(text) - tail :]}"


def number(value: float) -> str:
    """Points as people write them: four decimals at the most, no zeros after them.

    >>> number(3.0), number(2 / 3), number(0.1 + 0.2), number(1234567.5)
    ('3', '0.6667', '0.3', '1234567.5')
    """
    return f"{value:.4f}".rstrip("0").rstrip(".")


def points_text(value: float) -> str:
    """Points with their word.

    >>> points_text(1), points_text(2.5)
    ('1 point', '2.5 points')
    """
    return f"{number(value)} point{'' if value == 1 else 's'}"


def page(template: str, **values: object) -> str:
    """The template of this name in templates/, filled in. Jinja2's UndefinedError for a value that it lacks."""
    return _environment().get_template(template).render(**values)


def marked(text: str) -> Markup:
    """Text of a lab (a heading, a hint, a rubric) with its code, bold and emphasis; everything else is escaped.

    >>> marked("<i> **one** & `a * b` & <i>")
    Markup('&lt;i&gt; <strong>one</strong> &amp; <code>a * b</code> &amp; &lt;i&gt;')
    """
    from markupsafe import Markup, escape

    text, parts, end = plain(text), [], 0
    for found in _MARKED.finditer(text):
        tag = found.lastgroup
        inside = found[0].strip("`" if tag == "code" else "*")
        parts += [escape(text[end : found.start()]), Markup("<{0}>{1}</{0}>").format(tag, inside)]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # whatever a template is called: the default looks at its name
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, points_text=points_text, marked=marked)
    return environment


def _visible(value: object) -> object:
    """Every text on its way into a page, made plain; what is markup already came from a template of ours."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
