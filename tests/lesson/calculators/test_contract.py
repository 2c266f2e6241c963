"""What every calculator keeps: it answers or explains, in text, live and stored alike, quickly, without a library."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from base64 import b64decode
from html import unescape

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import calculators
from helpers.lesson.calculators import (
    allocation,
    attention,
    block_map,
    can_i_run,
    checkpointing,
    fine_tuning,
    kv_cache,
    mesh,
    numbers,
    offload,
    planner,
    quantization,
    roofline,
    service_planner,
    serving_load,
    tensor_numbers,
    training_memory,
    zero,
)
from helpers.lesson.calculators.from_address import OFFERED
from helpers.lesson.drawing.marks import CARD, FAINT, INK, ON_COLOUR, TextMark, text_width
from helpers.lesson.drawing.pictures import WIDTH
from tests.calls import CALLS_IN_50_MS, calls_of
from tests.lesson.calculators.live import live

MAKERS = (
    allocation,
    attention,
    block_map,
    can_i_run,
    checkpointing,
    fine_tuning,
    kv_cache,
    mesh,
    numbers,
    offload,
    planner,
    quantization,
    roofline,
    service_planner,
    serving_load,
    tensor_numbers,
    training_memory,
    zero,
)
CALCULATORS = [maker() for maker in MAKERS]
BY_NAME = {maker.__name__: maker for maker in MAKERS}
CONTROLS = [(calculator, name) for calculator in CALCULATORS for name in calculator.options]
# What moves each of them most: the largest models, the longest trace.
HEAVY = {
    "allocation": {"trace_name": "training", "step": 20},
    "attention": {"phase": "training", "sequence": 131_072, "kv_heads": 1},
    "block_map": {"policy": "prefix", "block_size": 1},
    "can_i_run": {"model": "llama-3.1-405b", "gpu": "h100-80gb"},
    "checkpointing": {"model": "llama-3-70b", "checkpointing": "recursive"},
    "fine_tuning": {"model": "llama-3-70b", "method": "QDoRA"},
    "kv_cache": {"model": "llama-3.1-405b", "cache": "int4", "context": 2**20},
    "mesh": {"pipeline": 16, "micro_batches": 256, "data_parallel": 1, "schedule": "interleaved"},
    "numbers": {"value": "1.7e-310", "format": "nvfp4", "block_largest": 2**20},
    "offload": {"question": "train", "model": "llama-3.1-405b", "offload_optimizer": "nvme", "micro_batches": 64},
    "planner": {"model": "llama-3.1-405b", "cards": 1024, "days": 365},
    "quantization": {"model": "deepseek-v3"},
    "roofline": {"op": "attention-decode", "tokens": 65536},
    "service_planner": {"cards": 64, "users": 500, "latency": 20},
    "serving_load": {"model": "deepseek-v3", "gpu": "b200-180gb", "tensor_parallel": 8, "mix": "code", "clients": 1000},
    "tensor_numbers": {"tensor": "activation gradients", "scale": 16},
    "training_memory": {"model": "llama-2-70b"},
    "zero": {"model": "llama-3-70b", "zero": 0, "ranks": 4096},
}


SEVERAL = {"can_i_run": 3}  # what answers several questions at once may take so many times as long


def named(value):
    slugs = {id(question): slug for slug, question in OFFERED.items()}
    return slugs[id(value.question)] if hasattr(value, "question") else str(value)


every = pytest.mark.parametrize("calculator", CALCULATORS, ids=named)


@pytest.mark.parametrize(("calculator", "control"), CONTROLS, ids=named)
def test_every_option_answers_or_explains_and_stays_on_the_card(calculator, control):
    for value in calculator.options[control][1]:
        html = calculator.render({**calculator.start, control: value})
        assert ("<svg" in html) != ('class="error"' in html), value
        if "<svg" in html:
            assert_readable(calculator.answer(**{control: value}))


def assert_readable(answer):
    """The SVG is well-formed, and no text leaves its card."""
    ET.fromstring(answer.svg)
    for card in answer.cards:
        for text in (mark for mark in card.marks if isinstance(mark, TextMark) and not mark.angle):
            width = text_width(text.text, text.size, text.bold)
            left = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
            assert left >= 0, text
            assert left + width <= WIDTH + 2, text
            assert 10 < text.y < card.height, text


@every
def test_it_starts_on_one_of_its_options(calculator):
    assert set(calculator.start) == set(calculator.options)
    for name, (_, options) in calculator.options.items():
        assert calculator.start[name] in options


@every
def test_text_widget_and_figures_are_one_answer(calculator):
    answer = calculator.answer()
    assert str(answer) == "\n".join((answer.title, "", *answer.formula, "", answer.sentence))
    told = f"In a terminal: {answer.command}\nRun this cell to move its controls. {calculator.invites}"
    assert repr(calculator) == f"{answer}\n\n{told}"
    assert calculator.render(calculator.start) == answer.as_html()
    assert answer.cards[0].title == answer.title
    assert answer.sentence.endswith(".")
    assert json.loads(json.dumps(answer.figures))


@every
def test_moving_a_control_redraws_and_coming_back_restores(calculator):
    controls, *_, output = live(calculator)
    assert [control.description for control in controls.values()] == [text for text, _ in calculator.options.values()]
    before = output.value
    assert before == calculator.answer().as_html()
    name, (_, options) = next(iter(calculator.options.items()))
    other = next(option for option in options if option != calculator.start[name])
    controls[name].value = other
    shown = {key: control.value for key, control in controls.items()}
    assert output.value == calculator.render(shown) != before
    controls[name].value = calculator.start[name]
    assert output.value == before


@every
def test_a_redraw_is_quick(calculator):
    slug = next(name for name, maker in BY_NAME.items() if maker is MAKERS[CALCULATORS.index(calculator)])
    values = {**calculator.start, **HEAVY[slug]}
    if slug not in SEVERAL:  # whose answers to the same settings are remembered
        assert "<svg" in calculator.render(values)
    assert calls_of(lambda: calculator.render(values)) < CALLS_IN_50_MS * SEVERAL.get(slug, 1)


@every
def test_it_invites_a_move_from_the_state_that_it_stands_in_by_itself(calculator):
    *_, invites, _output = calculator.widget().children
    assert calculator.invites.endswith((".", "?"))
    assert calculator.invites in unescape(invites.value)
    name, (_, options) = next(iter(calculator.options.items()))
    elsewhere = BY_NAME[next(key for key, maker in BY_NAME.items() if maker is MAKERS[CALCULATORS.index(calculator)])]
    assert elsewhere(**{name: options[-1]}).invites == ""


FLIPPED = [
    (training_memory, {"optimizer": "adamw-8bit"}, "does not fit", "fits"),
    (training_memory, {"optimizer": "adamw-8bit", "micro_batch": 2}, "does not fit", "does not fit"),
    (checkpointing, {"checkpointing": "none"}, "fits", "does not fit"),
    (fine_tuning, {"checkpointing": "full"}, "does not fit", "fits"),
    (fine_tuning, {"method": "QLoRA"}, "does not fit", "does not fit"),
    (zero, {"zero": 2}, "does not fit", "fits"),
    (mesh, {"pipeline": 2}, "does not fit", "fits"),
    (quantization, {"weights": "nf4-dq"}, "does not fit", "fits"),
    (kv_cache, {"users": 64}, "fits", "tight"),
    (offload, {"source": "desktop-dram"}, "fits", "tight"),
    (offload, {"source": "desktop-dram", "weights": "bf16"}, "fits", "does not fit"),
]


@pytest.mark.parametrize(("maker", "move", "before", "after"), FLIPPED, ids=[row[0].__name__ for row in FLIPPED])
def test_something_happens_one_move_away(maker, move, before, after):
    calculator = maker()
    assert [calculator.answer(**values).figures["verdict"] for values in ({}, move)] == [before, after]


@every
def test_live_it_has_the_colours_of_the_page_and_stored_its_own(calculator):
    """No card is left light in a dark theme; words on coloured boxes keep their ink."""
    answer = calculator.answer()
    html = answer.as_html()
    elsewhere = re.sub(rf'<text [^>]*fill="{ON_COLOUR}"[^>]*>', "", html)  # whose halo is light
    assert not re.search(rf'(fill|stroke|background:)[="]*({CARD}|{INK}|{FAINT})', elsewhere)
    assert not re.search(rf'<text [^>]*fill="{ON_COLOUR}"[^>]*stroke="var', html)
    assert f"var(--jp-layout-color1, {CARD})" in html
    assert "var(" not in answer.svg
    assert html.count(ON_COLOUR) == answer.svg.count(ON_COLOUR)
    ET.fromstring(f"<div>{html[: re.search('<pre|<p ', html).start()]}</div>")


def displayed(calculator, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw, metadata: shown.append((bundle, metadata)))
    calculator._ipython_display_()
    return shown[0]


@every
def test_a_stored_notebook_holds_text_and_two_pictures(calculator, monkeypatch):
    """PNG beside SVG: JupyterLab shows no SVG of a notebook that it does not trust, such as a fresh clone's."""
    (bundle, metadata), answer = displayed(calculator, monkeypatch), calculator.answer()
    alt = metadata["image/png"]["alt"]
    assert alt.startswith(f"{answer.title}. ")
    assert len(alt) > len(answer.title) + 40
    assert alt.count(answer.title) == 1
    assert bundle["text/plain"] == repr(calculator)
    assert set(re.findall("<text.*?</text>", bundle["image/svg+xml"])) > set(re.findall("<text.*?</text>", answer.svg))
    assert "Run this cell to move its controls." in bundle["image/svg+xml"]
    assert "var(" not in bundle["image/svg+xml"]
    assert b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "model_id" in bundle["application/vnd.jupyter.widget-view+json"]


def test_without_ipywidgets_text_and_picture_remain(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert set(displayed(allocation(), monkeypatch)[0]) == {"text/plain", "image/svg+xml", "image/png"}


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_an_unknown_control_is_refused_at_the_start_and_later(maker):
    with pytest.raises(WorkbookError, match="unknown control 'colour'"):
        maker(colour="red")
    with pytest.raises(WorkbookError, match="no control named 'colour'"):
        maker().answer(colour="red")


@every
def test_an_error_is_shown_and_escaped_and_not_raised(calculator):
    name = next(iter(calculator.options))
    html = calculator.render({**calculator.start, name: "<script>"})
    assert 'class="error"' in html
    assert "unknown" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("maker", "start"),
    [(training_memory, {"gpu": "h100", "micro_batch": 3}), (roofline, {"gpu": "h100", "tokens": 148})],
)
def test_a_start_beside_the_choices_joins_them(maker, start):
    started = maker(**start)
    assert started.options["gpu"][1][0] == "h100"
    controls, *_, output = live(started)
    assert {name: control.value for name, control in controls.items()} == started.start
    assert output.value == started.answer().as_html()
    name = next(name for name in start if name != "gpu")
    numbers = started.options[name][1]
    assert (numbers == sorted(numbers), start[name] in numbers) == (True, True)


def test_a_bad_start_keeps_its_controls():
    bad = training_memory(gpu="h1000")
    assert 'class="error"' in bad.widget().children[-1].value
    with pytest.raises(WorkbookError, match="unknown device 'h1000'"):
        bad.answer()


def test_every_answer_needs_the_standard_library_alone():
    code = f"""if True:
        import importlib.abc, sys
        class Refuse(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "helpers":
                    raise ImportError(name + " is not of the standard library")
        sys.meta_path.insert(0, Refuse())
        from helpers.lesson import calculators
        for name in {sorted(BY_NAME)}:
            assert "<svg" in getattr(calculators, name)().answer().as_html()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize("module", [found.name for found in pkgutil.iter_modules(calculators.__path__)])
def test_the_examples_in_the_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"{calculators.__name__}.{module}")).failed == 0
