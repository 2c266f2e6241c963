"""A page: its address, what its template is given, and the frame that all pages share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
NAVIGATION = (
    ("explain-oom.html", "Explain an error"),
    ("calculators/index.html", "Calculators"),
    ("console.html", "Console"),
    ("book/index.html", "Book"),
    ("claims.html", "Claims"),
    ("accuracy.html", "Accuracy"),
)
# What the browser itself holds the page to: nothing is fetched from, sent to or run from anywhere but this site. Styles
# may stand in elements, as the calculators' pictures have them.
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:"
)


@dataclass(frozen=True)
class Page:
    """One page at `address`, made from the template of that name. `scripts` are the modules that it runs."""

    address: str
    title: str
    template: str
    description: str
    values: Mapping[str, Any] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    uses_code: bool = False
    uses_math: bool = False

    @property
    def html(self) -> str:
        return (
            _templates()
            .get_template(f"{self.template}.html.j2")
            .render(
                address=self.address,
                top="../" * self.address.count("/"),
                title=self.title,
                description=self.description,
                scripts=self.scripts,
                uses_code=self.uses_code,
                uses_math=self.uses_math,
                navigation=NAVIGATION,
                policy=POLICY,
                version=__version__,
                **self.values,
            )
        )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(FOLDER / "templates")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=False, lstrip_blocks=False
    )
    made.globals["repository"] = ""
    return made


def lies_at(repository: str) -> None:
    """Every page's foot leads to the repository from now on; "" where the workbook lies nowhere yet."""
    _templates().globals["repository"] = repository
