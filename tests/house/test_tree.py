"""The top level is what CONTRIBUTING.md says it is."""

from __future__ import annotations

import re

from tests.house import tree


def documented(contributing: str) -> set[str]:
    """The names in the block under "Where things are": the first word of each line."""
    block = re.search(r"## Where things are\n+```text\n(.*?)```", contributing, flags=re.S)
    assert block, "CONTRIBUTING.md has lost its map"
    return {line.split()[0].rstrip("/") for line in block[1].splitlines() if line[:1].strip()}


def test_the_top_level_is_as_documented() -> None:
    actual = {path.parts[0] for path in tree.files()}
    told = documented(tree.text_of(tree.ROOT / "CONTRIBUTING.md"))
    assert actual == told, f"not in CONTRIBUTING.md: {actual - told}; only there: {told - actual}"


def test_the_map_reads_names_and_skips_continuations() -> None:
    block = "labs/   what the learner opens,\n        one per chapter\nMakefile\n"
    assert documented(f"## Where things are\n\n```text\n{block}```\n") == {"labs", "Makefile"}


def test_ci_runs_both_suites_with_the_browser_required() -> None:
    script = tree.text_of(tree.ROOT / ".ci/run")
    lines = [line.split("#")[0].strip() for line in script.splitlines()]
    assert [line for line in lines if line.startswith("make")] == ["make test", "make test-slow"]
    assert "export WORKBOOK_REQUIRE_BROWSER=1" in lines
    assert (tree.ROOT / ".ci/run").stat().st_mode & 0o100
