"""The ledger of claims and the table of accuracy, as pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError
from ...lesson.claims import VERDICTS, Claim, ledger, sources
from ...memory.accuracy import as_json, rows
from ...memory.accuracy.cases import KINDS
from ...memory.breakdown import format_bytes
from .markdown import inline
from .pages import Page

IN_CLOSED_FORM = ("serving", "megatron")  # the kinds of rows that need no PyTorch


def claims_page(pages: Mapping[str, str]) -> Page:
    """Every claim with its verdict; `pages` are the addresses of where it is tried, by its id."""
    claims = [_claim(claim, pages) for claim in ledger().values()]
    chapters = sorted({claim["chapter"] for claim in claims})
    values = {"claims": claims, "verdicts": VERDICTS, "chapters": chapters}
    about = "Claims about GPU memory with the verdicts that were computed"
    return Page("claims.html", "Claims on trial", "claims", about, values, ("claims.js",))


def _claim(claim: Claim, pages: Mapping[str, str]) -> dict[str, str]:
    return {
        "id": claim.id,
        "chapter": claim.chapter,
        "verdict": claim.verdict,
        "said": inline(claim.claim),
        "because": inline(f"{claim.because[0].upper()}{claim.because[1:]}"),
        "sources": inline("; ".join(str(sources()[name]) for name in claim.made_in)),
        "link": pages.get(claim.id, ""),
    }


def accuracy_page(file: Path | None = None) -> Page:
    """Predicted beside measured: from `file`, which `workbook accuracy --json` printed, or what is computed at once."""
    found = _read(file) if file else _in_closed_form()
    left_out = () if file else tuple(kind for kind in KINDS if kind not in IN_CLOSED_FORM)
    values = {
        "rows": [_row(row) for row in found["rows"]],
        "summary": [_summary(one) for one in found["summary"]],
        "left_out": left_out,
    }
    about = "Predicted GPU memory beside published measurements, row by row, with errors and sources"
    return Page("accuracy.html", "How accurate the predictions are", "accuracy", about, values)


def _in_closed_form() -> dict[str, Any]:
    return as_json([row for kind in IN_CLOSED_FORM for row in rows(kind)])


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not {"rows", "summary"} <= found.keys():
            raise ValueError("no rows")
        return dict(found)
    except (OSError, ValueError, AttributeError) as error:
        do = "workbook accuracy --json > accuracy.json"
        raise WorkbookError(f"cannot read {file}: {error}", "what `workbook accuracy --json` prints", do) from None


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    source = str(row["source"])
    link = next((word.strip("(),;") for word in source.split() if word.startswith("https://")), "")
    return {
        "name": row["name"],
        "quantity": row["quantity"],
        "device": row["device"],
        "predicted": _amount(row["predicted"], row["unit"]),
        "measured": _amount(row["measured"], row["unit"]),
        "error": "" if row["error"] is None else f"{row['error']:+.2%}".replace("-", "−"),
        "why": row["why"],
        "source": source,
        "link": link,
    }


def _summary(one: Mapping[str, Any]) -> dict[str, Any]:
    errors = {"mean": one["mean_error"], "worst": one["worst_error"]}
    return {**one, **{name: "" if error is None else f"{error:.2%}" for name, error in errors.items()}}


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "no answer"
    return format_bytes(int(value)) if unit == "bytes" else f"{value:,} {unit}"
