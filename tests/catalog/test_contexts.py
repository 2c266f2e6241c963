"""What a process takes of a card outside PyTorch: by messages of real runs, for every card of the catalogue."""

import doctest
import json
from pathlib import Path

import pytest

from helpers.catalog import WorkbookError, contexts, device
from helpers.catalog.contexts import MIB, Basis, context, seen
from helpers.catalog.devices import DEVICES, describe

CORPUS = Path(__file__).parents[1] / "memory" / "oom" / "corpus" / "pytorch_cuda.json"
ROUNDING = 15 * MIB  # three figures that are printed to 0.01 GiB


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(contexts).failed == 0


@pytest.mark.parametrize("name", DEVICES)
def test_every_card_has_a_context_with_a_source(name):
    card, found = DEVICES[name], context(DEVICES[name])
    assert 0 < found.size_bytes < card.capacity_bytes / 2
    assert len(found.source) > 3
    assert (found.basis is Basis.SYSTEM) == (card.vendor == "apple")
    assert (found.basis is Basis.OTHERS) == (card.vendor == "intel")


def test_a_message_is_what_is_held_less_what_pytorch_has():
    """22.80 - 22.10 GiB are 716.8 MiB, of which 222.14 were cached; 17.60 - 15.94 GiB less 205.65 MiB: by hand."""
    found = {one.source: round(one.size_bytes / MIB) for one in seen()}
    assert found["pytorch/torchchat, issue 1341"] == 495
    assert found["HiDream-ai/VAREdit, issue 6"] == 409
    assert max(one.size_bytes for one in seen() if one.card.name == "t4-16gb") == 141 * MIB


def test_no_process_that_was_seen_is_above_what_is_said_of_its_card():
    assert len(seen()) > 25
    assert not [one for one in seen() if one.size_bytes > context(one.card).size_bytes]


# Messages that are not in the data: what was held, what PyTorch had allocated, what it had cached.
OTHERS = [
    ("v100-32gb", 31.72, 29.66, 1.68),
    ("v100-32gb", 31.54, 28.49, 2.68),
    ("v100-16gb", 15.75, 14.89, 497.13 / 1024),
    ("a100-80gb", 72.77, 69.60, 2.68),
    ("a100-80gb", 77.04, 75.40, 1.15),
    ("a100-40gb", 8.38, 7.96, 7.73 / 1024),
    ("h100-80gb", 72.18, 36.69, 34.84),
    ("h100-80gb", 79.08, 77.69, 674.48 / 1024),
    ("h100-80gb", 39.75, 39.13, 35.42 / 1024),
    ("h100-pcie-80gb", 79.13, 77.91, 648.28 / 1024),
    ("h200-141gb", 119.20, 117.83, 640.95 / 1024),
    ("h200-141gb", 139.60, 138.14, 824.86 / 1024),
    ("rtx-a5000-24gb", 22.98, 22.65, 77.68 / 1024),
    ("rtx-3090-24gb", 16.31, 16.01, 7.47 / 1024),
    ("rtx-3080-10gb", 9.43, 9.04, 142.12 / 1024),
    ("rtx-4090-24gb", 22.69, 21.72, 520.54 / 1024),
    ("rtx-5090-32gb", 16.63, 15.03, 1.00),
]


@pytest.mark.parametrize(("name", "held", "allocated", "cached"), OTHERS)
def test_messages_that_are_not_in_the_data_are_within_it(name, held, allocated, cached):
    measured, said = (held - allocated - cached) * 2**30, context(device(name)).size_bytes
    assert measured <= said + ROUNDING
    assert measured >= 0.7 * said


def test_figures_of_threads_that_the_corpus_has_are_the_corpus_s():
    corpus = {row["thread"]: row["numbers"] for row in json.loads(CORPUS.read_text())}
    shared = 0
    for row in json.loads(contexts._DATA.read_text())["rows"]:
        thread = row["source"].partition(";")[0].replace(", issue ", "/issues/")
        if thread in corpus:
            shared += 1
            numbers = corpus[thread]
            assert (row["held"], row["allocated"], row["cached"]) == tuple(
                numbers[part] for part in ("process", "allocated", "cached")
            )
    assert shared >= 2


def test_a_card_that_is_not_here_is_as_its_generation_or_as_others():
    unknown = describe("NVIDIA RTX 9999", 2**35, (12, 0))
    assert context(unknown).basis is Basis.GENERATION
    assert context(unknown).size_bytes >= context(device("rtx-5090")).size_bytes
    assert context(describe("NVIDIA GB999", 2**37, (11, 0))).size_bytes >= 712 * MIB  # as Blackwell
    assert context(describe("Tesla M40", 2**34, (5, 2))).basis is Basis.GENERATION  # as the oldest that was seen
    assert context(describe("a card of nobody", 2**34)).basis is Basis.OTHERS


@pytest.mark.parametrize(
    ("name", "gib"), [("m1-16gb", 16 / 3), ("m2-24gb", 8), ("m4-max-128gb", 32), ("m3-pro-36gb", 9)]
)
def test_macos_keeps_a_third_or_a_quarter_of_the_memory(name, gib):
    assert context(device(name)).size_bytes / 2**30 == pytest.approx(gib, rel=1e-3)


@pytest.mark.parametrize("missing", ["source", "date", "card"])
def test_a_row_without_provenance_is_refused(missing):
    row = {"card": "t4-16gb", "held": "1.00 GiB", "source": "a log", "date": "2025"}
    assert contexts._seen(row).size_bytes == 2**30
    with pytest.raises(WorkbookError, match="a context"):
        contexts._seen({**row, missing: ""})
