"""Code as coloured HTML, and the style sheet of its colours in both themes."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

LIGHT, DARK = "xcode", "zenburn"  # Pygments' styles whose colours can all be read on the page's ground for code
KNOWN = {"": "", "python": "python", "py": "python", "bash": "bash", "sh": "bash", "json": "json", "toml": "toml"}


def highlighted(source: str, language: str = "python") -> str:
    """`source` in a <pre>; a language that is not known stays plain."""
    from pygments import highlight

    lexer = _lexer(KNOWN.get(language, ""))
    coded = highlight(source, lexer, _formatter()) if lexer else escape(source)
    return f'<pre class="code" tabindex="0"><code>{coded.rstrip()}</code></pre>'


def style_sheet() -> str:
    """Colours of the light style, and those of the dark one where the page is dark."""
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=style, cssclass="code") for style in (LIGHT, DARK))
    chosen = ':root[data-theme="dark"] .code'
    system = ':root:not([data-theme="light"]) .code'
    rules = [*_rules(light, ".code"), *_rules(dark, chosen)]
    return "\n".join([*rules, "@media (prefers-color-scheme: dark) {", *_rules(dark, system), "}", ""])


def _rules(formatter: Any, prefix: str) -> list[str]:
    """The token colours alone: ground and ink are the page's."""
    return [line for line in formatter.get_token_style_defs(prefix) if "{" in line]


@cache
def _lexer(name: str) -> Any:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(name, stripnl=False) if name else None


@cache
def _formatter() -> Any:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(nowrap=True)
