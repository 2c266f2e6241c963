"""What GitHub runs: the suites, on every Python that pyproject.toml takes, and a GPU only where there is one."""

from __future__ import annotations

import tomllib

import yaml  # transformers brings it
from packaging.specifiers import SpecifierSet

from tests.house import tree

TEXT = tree.text_of(tree.ROOT / ".github/workflows/ci.yml")
JOBS = yaml.safe_load(TEXT)["jobs"]
SUPPORTED = SpecifierSet(tomllib.loads(tree.text_of(tree.ROOT / "pyproject.toml"))["project"]["requires-python"])


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


def test_no_step_is_allowed_to_fail() -> None:
    assert "continue-on-error" not in TEXT
    assert "|| true" not in TEXT
