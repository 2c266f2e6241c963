"""`workbook accuracy`, as text and as JSON."""

from __future__ import annotations

import json
import sys

import pytest

from helpers.cli import main
from helpers.memory.accuracy import cases, published_step


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--only", "serving"]) == 0
    out = capsys.readouterr().out
    assert "Llama-3-8B weights                           weights" in out
    assert "this workbook          24.00   24.00 GiB      1x" in out
    assert "EleutherAI cookbook    48.00   24.00 GiB      2x" in out
    assert "nan" not in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--only", "serving", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"rows", "summary", "others"} == set(found)
    first = found["rows"][0]
    assert (first["predicted"], first["unit"]) == (16_062_619_648, "bytes")
    assert all(row["source"] and (row["predicted"] is None) == (row["error"] is None) for row in found["rows"])


def test_an_unknown_kind_is_told_before_anything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--only", "lroa"]) == 2
    told = capsys.readouterr()
    assert "did you mean 'lora'?" in told.err
    assert told.out == ""


def test_without_peft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # what makes an import fail
    assert main(["accuracy", "--only", "lora", "--json"]) == 2
    assert "pip install --no-deps peft" in capsys.readouterr().err


def test_without_peft_all_kinds_are_all_others(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    few = [next(case for case in cases() if case.kind == kind) for kind in ("lora", "qlora", "serving", "megatron")]
    monkeypatch.setattr(sys.modules["helpers.memory.accuracy.table"], "cases", lambda kind=None: few)
    monkeypatch.setattr(published_step, "rows", lambda: ())
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["accuracy", "--json"]) == 0
    told = capsys.readouterr()
    assert {row["kind"] for row in json.loads(told.out)["rows"]} == {"serving", "megatron"}
    assert "left out: lora and qlora, which need peft" in told.err
