"""Calculators by name and the text of an address."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.lesson import calculators
from helpers.lesson.calculators.calculator import Calculator
from helpers.lesson.calculators.from_address import CHOSEN, MOST_BYTES, OFFERED, calculator, drawn, drawn_as_json
from helpers.questions.parameter import CONFIG

NOT_PAGES = {"training_answer", "as_usual", "changes_that_fit"}
WITHOUT_LIBRARIES = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "matplotlib", "ipywidgets", "IPython", "transformers"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
from helpers.cli.console import run
from helpers.lesson.calculators.from_address import OFFERED, drawn
from helpers.lesson.explained import explained_as_json
assert not any(drawn(name, {}).failed for name in OFFERED)
assert run("estimate train --model gpt2 --sequence 512")[1] == 0
assert "html" in explained_as_json("CUDA out of memory. Tried to allocate 2.00 GiB.")
"""


@pytest.mark.parametrize("name", OFFERED)
def test_every_setting_that_differs_comes_back_from_its_own_address(name: str) -> None:
    of, rng = calculator(name), random.Random(name)
    for _ in range(5):
        values = {control: rng.choice(list(choices)) for control, (_, choices) in of.options.items()}
        values.pop(CONFIG, None)
        answer = drawn(name, {control: str(value) for control, value in values.items()})
        assert answer.settings == {c: str(value) for c, value in values.items() if value != of.start[c]}
        assert drawn(name, answer.settings) == answer


@pytest.mark.parametrize("name", OFFERED)
def test_the_answer_is_the_calculators_own(name: str) -> None:
    first = calculator(name).answer()
    found = drawn(name, {})
    assert (found.title, found.html, found.text, found.command) == (
        first.title,
        first.as_html(),
        str(first),
        first.command,
    )
    assert not found.settings
    assert not found.failed


def test_every_live_calculator_has_a_page() -> None:
    faces = {name for name, value in vars(calculators).items() if callable(value) and not name.endswith("_answer")}
    made = {name for name in faces - NOT_PAGES if not isinstance(getattr(calculators, name), type)}
    assert made == set(OFFERED)
    assert all(isinstance(calculator(name), Calculator) for name in OFFERED)


def test_a_number_that_is_no_choice_is_taken() -> None:
    assert drawn("training_memory", {"micro_batch": "3"}).settings == {"micro_batch": "3"}


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ({"model": "lama-2-7b"}, "did you mean 'llama-2-7b'"),
        ({"micro_batch": "0"}, "micro"),
        ({"micro_batch": "1_000"}, "a whole number"),
        ({"micro_batch": "²"}, "a whole number"),
        ({"micro_batch": "9" * 30}, "micro_batch"),
        ({"model": "x" * 5000}, "200 at most"),
        ({"model": "<b>gpt2</b>"}, "&lt;b&gt;"),
    ],
)
def test_a_bad_setting_is_told_in_place_of_the_answer(address: dict[str, str], told: str) -> None:
    found = drawn("training_memory", address)
    assert found.failed
    assert told in found.html.replace("&#x27;", "'")
    assert "<b>" not in found.html


def test_an_unknown_control_or_calculator_is_an_error() -> None:
    with pytest.raises(WorkbookError, match="modle"):
        drawn("training_memory", {"modle": "gpt2"})
    assert "unknown calculator" in json.loads(drawn_as_json("kv_cash", "{}"))["error"]


def test_what_pages_run_needs_the_standard_library_alone() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES], check=True, capture_output=True, text=True)


TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
TINY |= {"intermediate_size": 128, "max_position_embeddings": 8192}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in OFFERED if CONFIG in calculator(name).options])
def test_a_chosen_config_answers_as_its_path_does(name: str, here: Path) -> None:
    answer = json.loads(drawn_as_json(name, "{}", json.dumps(TINY)))
    own = calculator(name).answer(config=str(CHOSEN))
    assert answer["text"] == str(own)
    assert not answer["failed"]
    assert own.command
    assert answer["command"] == own.command.replace(str(here / CHOSEN), "./config.json")
    assert str(here) not in json.dumps(answer)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the chosen file is no model"),
        ("\x00\x01", "the chosen file is no model"),
        ("[" * 200_000, "the chosen file is no model"),
        ("{" * 200_000, "cannot be read as JSON"),
        ("{}", "model_type is None"),
        (json.dumps({**TINY, "hidden_size": "x"}), "hidden_size is 'x'"),
        (json.dumps({"model_type": "llava", "text_config": [TINY]}), "text_config is [{"),
        ("é" * (MOST_BYTES // 2 + 1), "more than 1,024 KiB"),
    ],
)
def test_a_chosen_file_that_is_no_config_is_told(text: str, told: str, here: Path) -> None:
    answer = json.loads(drawn_as_json("kv_cache", "{}", text))
    assert told in answer.get("error", answer.get("text"))
    assert str(here) not in json.dumps(answer)
