"""requirements.txt, pyproject.toml and environment.yml agree."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from setup_env import machine
from setup_env.pins import environment_yml, pins
from tests.house import tree

REQUIREMENTS = tree.text_of(tree.ROOT / "requirements.txt")
APART = [tree.text_of(tree.ROOT / f"requirements-{name}.txt") for name in ("deepspeed", "nbgrader", "triton")]
COLAB = tree.text_of(tree.ROOT / "requirements-colab.txt")
PROJECT = tomllib.loads(tree.text_of(tree.ROOT / "pyproject.toml"))["project"]


def ranges(project: dict) -> dict[str, SpecifierSet]:
    """Every dependency of the project, extras included, with its range."""
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    needs = [Requirement(one) for one in listed]
    return {need.name: need.specifier for need in needs if need.name != PROJECT["name"]}


def disagreements(pinned: dict[str, str], wanted: dict[str, SpecifierSet]) -> list[str]:
    unpinned = [f"{name} has no pin" for name in wanted if name not in pinned]
    unasked = [f"{name} is pinned, but pyproject does not ask for it" for name in pinned if name not in wanted]
    outside = [
        f"{name}=={version} is outside {wanted[name]}"
        for name, version in pinned.items()
        if name in wanted and version not in wanted[name]
    ]
    return unpinned + unasked + outside


def test_every_dependency_is_pinned_within_its_range() -> None:
    assert not disagreements(pins("\n".join([REQUIREMENTS, *APART])), ranges(PROJECT))


def test_what_colab_has_is_within_the_ranges() -> None:
    extras = {name: PROJECT["optional-dependencies"][name] for name in ("trace", "notebook")}
    wanted = ranges({"dependencies": PROJECT["dependencies"], "optional-dependencies": extras})
    assert not disagreements({name: version for name, version in pins(COLAB).items() if name in wanted}, wanted)


def test_each_disagreement_is_found() -> None:
    wanted = ranges({"dependencies": ["a>=2"], "optional-dependencies": {"x": ["b<3"]}})
    assert disagreements({"a": "2.1", "b": "2"}, wanted) == []
    assert disagreements({"a": "2.1"}, wanted) == ["b has no pin"]
    assert disagreements({"a": "1.9", "b": "2"}, wanted) == ["a==1.9 is outside >=2"]
    assert len(disagreements({"a": "2.1", "b": "2", "c": "1"}, wanted)) == 1


@pytest.mark.parametrize("text", [REQUIREMENTS, COLAB, *APART])
def test_every_line_of_requirements_is_an_exact_pin(text: str) -> None:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == [f"{name}=={version}" for name, version in pins(text).items()]


def test_environment_yml_is_its_generators_output() -> None:
    path = tree.ROOT / "environment.yml"
    expected = environment_yml(REQUIREMENTS)
    if not path.exists() or path.read_text(encoding="utf-8") != expected:
        path.write_text(expected, encoding="utf-8")
        pytest.fail("environment.yml was out of date with requirements.txt; it is rewritten now: commit it")


def test_the_python_range_is_told_once() -> None:
    told = SpecifierSet(PROJECT["requires-python"])
    for minor in range(8, 18):
        assert (f"3.{minor}" in told) == machine.in_range((3, minor))
