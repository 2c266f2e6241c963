"""HTML pages that are one file: no scripts, nothing fetched, and nothing in them that a learner wrote is markup."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.course.grade.plain import number, plain, points_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_MARKED = re.compile(r"(?P<code>`[^`]+`)|(?P<strong>\*\*[^*\n]+\*\*)|(?P<em>\*[^*\s][^*\n]*\*)")


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
