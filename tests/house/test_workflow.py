"""What GitHub runs: the suites, on every Python that pyproject.toml takes, and a GPU only where there is one."""

from __future__ import annotations

import re
import tomllib

import yaml  # transformers brings it
from packaging.specifiers import SpecifierSet

from tests.house import tree

TEXT = tree.text_of(tree.ROOT / ".github/workflows/ci.yml")
JOBS = yaml.safe_load(TEXT)["jobs"]
PROJECT = tomllib.loads(tree.text_of(tree.ROOT / "pyproject.toml"))["project"]
SUPPORTED = SpecifierSet(PROJECT["requires-python"])


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_pythons_are_the_supported_ones() -> None:
    listed = JOBS["cpu"]["strategy"]["matrix"]["python"]
    assert listed == [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in SUPPORTED]


def test_the_suites_run_and_the_gpu_job_only_where_there_is_a_runner() -> None:
    assert commands(JOBS["cpu"])[-1] == "bash .ci/run"
    assert commands(JOBS["gpu"]) == ["make test"]
    assert JOBS["gpu"]["if"].startswith("vars.GPU_RUNNER != ''")
    assert JOBS["gpu"]["runs-on"] == ["self-hosted", "${{ vars.GPU_RUNNER }}"]


def test_the_oldest_are_the_lower_bounds() -> None:
    pin, *others = commands(JOBS["oldest"])
    assert others[-1] == "make test"
    named = dict(re.findall(r"/(\w+)==([\d.]+)\.0/", pin))
    assert list(named) == ["torch", "transformers"]
    for name, version in named.items():
        assert any(one.startswith(f"{name}>={version},") for one in PROJECT["dependencies"])


def test_no_step_is_allowed_to_fail() -> None:
    assert "continue-on-error" not in TEXT
    assert "|| true" not in TEXT
