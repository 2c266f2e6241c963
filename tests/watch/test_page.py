"""docs/watching.md keeps its word: its Python runs, its YAML is YAML, its flags exist."""

from __future__ import annotations

import re

import pytest
import torch._dynamo  # noqa: F401 - here, before a run inside this process: torch cannot be loaded twice
import yaml

from helpers.cli import main
from helpers.memory.meter.pytest_plugin import pytest_addoption
from tests.house import tree

PAGE = tree.text_of(tree.ROOT / "docs/watching.md").replace("gpu_memory_workbook", "helpers")  # its name in a clone
pytest_plugins = ["pytester"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_budget_of_the_page_passes_and_a_smaller_one_fails(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (source,) = (block for block in blocks("python") if "memory_budget" in block)
    use = ("-p", "helpers.memory.meter.pytest_plugin", "-p", "no:cacheprovider")
    pytester.makepyfile(source)
    pytester.runpytest_inprocess(*use).assert_outcomes(passed=1)
    pytester.makepyfile(source.replace("mib=8", "mib=4"))
    pytester.runpytest_inprocess(*use).assert_outcomes(failed=1)


def test_the_day_of_the_page_runs(capsys) -> None:
    (source,) = (block for block in blocks("python") if "simulate_day" in block)
    exec(source, {})
    assert re.fullmatch(r"0\.0% refused, 4 switches, 0\.\d\d s a step\n", capsys.readouterr().out)


def test_the_yaml_of_the_page_is_yaml() -> None:
    prometheus, workflow = (yaml.safe_load(block) for block in blocks("yaml"))
    assert prometheus["rule_files"] == ["gpu-memory.yml"]
    assert workflow["jobs"]["memory"]["steps"]


def test_every_flag_of_the_page_exists(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    known = capsys.readouterr().out
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    known += " ".join(name for group in parser._groups for option in group.options for name in option.names())
    named = set(re.findall(r"--[a-z-]+", PAGE))
    assert named
    assert not {flag for flag in named if flag not in known}
