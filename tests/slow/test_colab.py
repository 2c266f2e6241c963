"""Chapters in an environment like Colab's: each alone in an empty folder, fetching the workbook from a tag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.course.address import SETUP
from helpers.course.build import WIDGET_VIEW
from tests.house import tree
from tests.slow import colab_environment

pytestmark = pytest.mark.all
NUMBERS = tuple(f"{number:02}" for number in range(16))
ALONE = {"01", "03", "05", "06"}  # these measure speeds
CHAPTERS = tuple(pytest.param(number, marks=[pytest.mark.alone] * (number in ALONE)) for number in NUMBERS)
LABS = NUMBERS[1:]
STATE = "application/vnd.jupyter.widget-state+json"
IMPORTED = """\
import sys, importlib.metadata as m, importlib.util as u, google.colab
print(*(m.version(name) for name in ("ipywidgets", "ipython", "torch")))
print([name for name in ("nbval", "bitsandbytes", "helpers") if u.find_spec(name)])"""


@pytest.fixture(scope="module")
def python() -> Path:
    found = colab_environment.colab_python()
    print("Colab's environment, with Python", *colab_environment.machine.version_of(str(found)))
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree, published at the tag v-test of the repository next to it, `bare.git`."""
    folder = tmp_path_factory.mktemp("published")
    work, bare = folder / "work", folder / "bare.git"
    for path in tree.files():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree.ROOT / path, work / path)
    publish = ["-m", "helpers.cli", "publish", "--repository", bare.as_uri(), "--ref", "v-test"]
    subprocess.run([sys.executable, *publish], cwd=work, check=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "published"], ["tag", "v-test"]):
        subprocess.run([*git, *words], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    return work


def kernel(python: Path, folder: Path) -> AsyncKernelManager:
    """A kernel of `python`, whatever kernels the user has."""
    spec = folder / "kernels" / "colab"
    spec.mkdir(parents=True)
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    argv = ", ".join(f'"{word}"' for word in words)
    (spec / "kernel.json").write_text(f'{{"argv": [{argv}], "display_name": "Colab", "language": "python"}}')
    specs = KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name="colab", kernel_spec_manager=specs)


def run(notebook: NotebookNode, python: Path, folder: Path) -> NotebookNode:
    """`notebook`, run to its end in an empty folder; an error in a cell is among its outputs."""
    content = folder / "content"
    content.mkdir()
    client = nbclient.NotebookClient(
        notebook,
        km=kernel(python, folder),
        timeout=300,
        allow_errors=True,
        resources={"metadata": {"path": str(content)}},
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "WORKBOOK"))}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # of the process; cells' own are captured
    return client.execute(cleanup_kc=True, env=kept, **quiet)


def errors(notebook: NotebookNode) -> list[str]:
    """What went wrong in cells that are not meant to; a display that failed is an error in the outputs, too."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code" and not nb.tags(cell) & nb.RAISES_TAGS)
    found = ((cell, out) for cell in cells for out in cell.outputs if out.output_type == "error")
    return [f"{nb.first_line(cell.source)}: {out.ename}: {out.evalue}" for cell, out in found]


def widgets(notebook: NotebookNode) -> dict[str, dict]:
    """The state of every widget that the kernel made, by its id."""
    return notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})


def inside(model_id: str, state: dict[str, dict]) -> list[dict]:
    """A widget and all that it holds."""
    mine = state[model_id]
    children = [child.removeprefix("IPY_MODEL_") for child in mine["state"].get("children", ())]
    return [mine, *(one for child in children for one in inside(child, state))]


def test_the_environment_is_colabs(python, tmp_path):
    done = run(v4.new_notebook(cells=[v4.new_code_cell(IMPORTED)]), python, tmp_path)
    assert errors(done) == []
    versions = colab_environment.pins(colab_environment.read(colab_environment.REQUIREMENTS))
    told, present = done.cells[0].outputs[0].text.splitlines()
    wanted = [versions[name] for name in ("ipywidgets", "ipython", "torch")]
    assert [version.partition("+")[0] for version in told.split()] == wanted
    assert present == "[]"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_on_its_own_and_draws_its_calculator(chapter, python, published, tmp_path):
    (path,) = nb.find(chapter, published, ["notebooks"])
    done = run(nb.read(path), python, tmp_path)
    assert errors(done) == []
    assert (tmp_path / "content/gpu-memory-workbook/helpers/cli").is_dir()
    views = [out.data for cell in done.cells for out in cell.get("outputs", ()) if WIDGET_VIEW in out.get("data", {})]
    assert views, "no calculator was drawn"
    for data in views:
        assert {"image/png", "text/plain"} <= set(data), "no picture where nothing is live"
        drawn = inside(data[WIDGET_VIEW]["model_id"], widgets(done))
        assert {one["model_module_version"] for one in drawn} <= {"1.5.0", "1.2.0"}  # as ipywidgets 7 numbers them
        assert any(one["model_name"] in ("SelectionSliderModel", "DropdownModel") for one in drawn)
        assert any("<svg" in one["state"].get("value", "") for one in drawn if one["model_name"] == "HTMLModel")


@pytest.mark.parametrize("lab", LABS)
def test_a_worked_lab_runs_on_its_own_and_passes_its_checks(lab, python, published, tmp_path):
    (path,) = nb.find(lab, published, ["solutions"])
    done = run(nb.read(path), python, tmp_path)
    assert errors(done) == []
    assert all(cell.execution_count for cell in done.cells if cell.cell_type == "code")


def test_a_failed_check_shows_its_message_alone(python, tmp_path):
    """IPython 7 formats tracebacks in its own way."""
    lab = f"import sys\nsys.path.insert(0, {str(tree.ROOT)!r})\nfrom helpers.lesson import asked"
    check = "right = 3 * 3\nassert right == 5, f'5 is wrong here: {right}'"
    done = run(v4.new_notebook(cells=[v4.new_code_cell(lab), v4.new_code_cell(check)]), python, tmp_path)
    assert done.cells[1].outputs[-1].traceback == ["5 is wrong here: 9"]


def test_unpublished_it_says_what_to_do(python, tmp_path):
    (error,) = errors(run(v4.new_notebook(cells=[v4.new_code_cell(SETUP)]), python, tmp_path))
    assert "open this in a clone of the workbook" in error
