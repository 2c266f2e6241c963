"""Alternative text: the words of a picture are stored where readers look for them, and hold the picture's numbers."""

import doctest

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from nbconvert import HTMLExporter

from helpers.catalog import TrainSetup
from helpers.lesson.drawing import bars, contexts, pareto, plots, rooflines, saved, segments, speeds, words
from helpers.lesson.drawing.marks import TextMark
from helpers.lesson.drawing.pictures import Card, Picture
from helpers.memory import work
from helpers.memory.allocator import alloc, free, replay
from helpers.memory.measure.levels import Sweep
from helpers.memory.meter.timeline import Timeline
from helpers.memory.step import activations

MIB = 2**20
PICTURES = {"card": Card("Two <b>", 60, (), "It has 2 bars."), "figure": Picture("Two <b>", b"png", "It has 2 bars.")}


@pytest.mark.parametrize("module", [words, saved], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings(module):
    assert doctest.testmod(module).attempted
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", PICTURES)
def test_a_kernel_sends_the_words_beside_the_png(name):
    data, metadata = DisplayFormatter().format(PICTURES[name])
    assert set(data) == {"image/png", "text/plain"}
    assert metadata == {"image/png": {"alt": "Two <b>. It has 2 bars."}}
    assert data["text/plain"] == "[picture: Two <b>]"


def test_nbconvert_reads_them_there():
    """Its classic template does; its default one, and JupyterLab 4.6, read no alternative text at all."""
    data, metadata = DisplayFormatter().format(PICTURES["card"])
    data["image/png"] = "AAAA"
    output = nbformat.v4.new_output("display_data", data, metadata=metadata)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("picture", outputs=[output])])
    page, _ = HTMLExporter(template_name="classic").from_notebook_node(notebook)
    assert 'alt="Two &lt;b&gt;. It has 2 bars."' in page


def test_where_nothing_reads_them_they_can_be_printed(monkeypatch, capsys):
    shell = InteractiveShell.instance()
    monkeypatch.setenv("WORKBOOK_WORDS", "1")
    assert DisplayFormatter(parent=shell).format(PICTURES["card"]) == ({}, {})  # it has shown itself
    assert capsys.readouterr().out.endswith("Two <b>. It has 2 bars.\n")


def test_a_timeline_tells_its_phases_and_its_peak():
    step = Timeline(
        {
            "parameters": [MIB] * 5,
            "activations": [MIB, 2 * MIB, 2 * MIB, 0, 0],
            "gradients": [0, 0, 4 * MIB, 4 * MIB, 0],
        },
        ["forward", "forward", "backward", "backward", "zero_grad"],
    )
    assert plots.timeline("A step", step, 8 * MIB).words == (
        "Live bytes, stacked by part, over 5 allocations and frees: forward begins at 2.00 MiB, reaches 3.00 MiB and "
        "ends at 3.00 MiB, backward begins at 7.00 MiB, reaches 7.00 MiB and ends at 5.00 MiB, zero_grad begins at "
        "1.00 MiB, reaches 1.00 MiB and ends at 1.00 MiB. The peak is 7.00 MiB, in backward: parameters 1.00 MiB, "
        "activations 2.00 MiB, gradients 4.00 MiB. Predicted: 8.00 MiB."
    )


def test_an_inset_enlarges_the_events_around_the_peak():
    flat = {"parameters": [MIB] * 9, "logits": [0, 0, 0, 0, MIB, 0, 0, 0, 0]}
    words = plots.timeline("A step", Timeline(flat, ["forward"] * 9), enlarged=2).words
    assert words.endswith("Enlarged: 3 events around the peak, from 1.00 MiB up.")
    assert "Enlarged" not in plots.timeline("A step", Timeline(flat, ["forward"] * 9)).words


def test_bars_tell_every_total_and_part():
    card = bars.stacked_bars("Bars", {"a": {"parameters": MIB, "logits": MIB}, "b": {"logits": MIB}}, {"card": 3 * MIB})
    assert card.words == (
        "Stacked bars of bytes. a: 2.00 MiB (parameters 1.00 MiB, logits and loss 1.00 MiB); b: 1.00 MiB (logits and "
        "loss 1.00 MiB). Dashed: card 3.00 MiB."
    )


def test_beside_a_kv_cache_logits_have_no_loss():
    words = bars.stacked_bars("Bars", {"serving": {"parameters": MIB, "kv_cache": MIB, "logits": MIB}}).words
    assert (
        words == "A stacked bar of bytes. serving: 3.00 MiB (parameters 1.00 MiB, KV cache 1.00 MiB, logits 1.00 MiB)."
    )


def test_a_hierarchy_goes_from_the_registers_to_the_host():
    told = plots.hierarchy("Levels", "h100").words
    order = [
        "registers 33.00 MiB",
        "33.5 TB/s",
        "L2 cache 50.00 MiB",
        "HBM3 79.22 GiB at 3.35 TB/s",
        "450 GB/s each way",
    ]
    places = [told.index(text) for text in order]
    assert places == sorted(places)
    assert "PCIe" not in plots.hierarchy("Levels", "m2-ultra").words  # one memory for both


WORK = work.matmul(1, 4096, 14336)
ROOF = work.Roof.of("h100", "bf16")
RAN = replay((alloc("a", 40 * MIB), free("a"), alloc("b", 11 * MIB), alloc("c", 99 * MIB)), "", 96 * MIB)
SWEEP = Sweep("cpu", (2**14, 2**15, 2**16, 2**17), (90e9, 90e9, 30e9, 30e9), {"L1": 2**15})
CURVE = contexts.Curve("full", ((128, 2**20), (256, 2**21)))
BEST = {"int4": (2e6, 3.5), "bf16": (8e6, 3.4)}
CARDS = {  # what each other picture must say
    "roof": (lambda: rooflines.chart("t", ROOF, {"GEMV": (WORK, 70e-6)}), ["3.35 TB/s", "GEMV: 1.00", "memory-bound"]),
    "front": (lambda: pareto.front("t", BEST, "perplexity", list(BEST)), ["int4 at 2 and 3.5", "(8, 3.4)"]),
    "segments": (lambda: segments.segments("t", RAN), ["40 MiB of the large pool: b 11 MiB, free 29 MiB"]),
    "reserved": (lambda: segments.reserved("t", RAN, 96 * MIB), ["at most 40.00 MiB", "ends at 96.00 MiB"]),
    "contexts": (
        lambda: contexts.contexts("t", [CURVE], (128, 2**20), 2**21),
        ["from 1 MiB to 2 MiB", "room for 2 MiB"],
    ),
    "sweep": (lambda: speeds.staircase("t", SWEEP), ["L1 90.0 GB/s up to", "30.0 GB/s", "reports: L1 32 KiB"]),
    "times": (lambda: speeds.bars("t", {"copy": 2e-3}, {"copy": 1e-3}), ["copy 2.00 ms (floor: 1.00 ms)"]),
    "growth": (
        lambda: speeds.growth("t", [1, 64], [2e-3, 4e-3], {1: 1e-3, 64: 3e-3}, "tokens", 48),
        ["turns at 48", "4.00 ms"],
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_each_picture_says_its_numbers(name):
    draw, said = CARDS[name]
    words_of_it = draw().words
    assert [text for text in said if text not in words_of_it] == [], words_of_it


def test_a_hierarchy_says_why_this_device_and_that_registers_are_faster_still():
    card = plots.hierarchy("Levels", "h200", "an example")
    drawn = [mark.text for mark in card.marks if isinstance(mark, TextMark)]
    assert "NVIDIA H200 SXM 141 GB (an example)" in drawn
    assert "H200 SXM 141 GB (an example), nearest" in card.words
    assert "faster still" in drawn
    assert "no figure known" not in drawn


SETUPS = [
    TrainSetup("llama-2-7b", precision="bf16", sequence=256),
    TrainSetup("llama-2-7b", precision="autocast-bf16", sequence=256),
    TrainSetup("llama-2-7b", precision="fp32", sequence=256, attention="eager"),
    TrainSetup("gpt2", precision="bf16", sequence=256),
    TrainSetup("qwen3-8b", precision="bf16", sequence=256),
    TrainSetup("gemma-2-9b", precision="bf16", sequence=256, attention="eager"),
    TrainSetup("opt-13b", precision="bf16", sequence=256),
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup.model.name}-{setup.precision}-{setup.attention}")
def test_every_saved_tensor_is_drawn_once(setup):
    layer = setup.model.layers[0]
    operators = activations.layer_operators(setup, layer)
    assert sum(operator.total for operator in operators) == activations.saved_by_layer(setup, layer).total
    drawn = [
        mark.width for mark in plots.saved_tensors("Saved", setup, layer).body if getattr(mark, "kind", "") == "kept"
    ]
    assert len(drawn) == sum(len(operator.kept) for operator in operators)
