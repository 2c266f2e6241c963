"""Bytes that no operator returned and no line of Python made: where an answer has hidden a cache, and was paid."""

from __future__ import annotations

import locale
import ssl
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from helpers.memory.meter import Beside, FreshMeter, Meter

COUNT = 2**20  # bytes that each place holds
TEXT = "ab" * (COUNT // 2)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc tells how much of the heap is in use")


def in_generators():
    kept = []
    for row in torch.arange(COUNT // 2496 * 624).view(-1, 624):
        state = torch.Generator().get_state()
        state[24 : 24 + 8 * 624].view(torch.int64).copy_(row)
        kept.append(torch.Generator())
        kept[-1].set_state(state)
    return kept


def in_openssl():
    kept = ssl.MemoryBIO()
    kept.write(TEXT.encode())
    return kept


def in_script_dict():
    kept = torch.jit.script({"a": "b"})
    kept["text"] = TEXT
    return kept


def in_scales():
    scales, zeros = torch.rand(COUNT // 8), torch.zeros(COUNT // 8, dtype=torch.int32)
    return torch.quantize_per_channel(torch.zeros(COUNT // 8, 0), scales, zeros, 0, torch.qint8)


def in_a_picture():
    image = pytest.importorskip("PIL.Image")
    return image.frombytes("L", (COUNT, 1), TEXT.encode())


def in_a_domain():
    locale.bindtextdomain("cache", TEXT)
    return locale.bindtextdomain("cache", None)[:1]  # type: ignore[call-overload]


PLACES: dict[str, Callable[[], object]] = {
    "states of generators": in_generators,
    "a buffer of OpenSSL": in_openssl,
    "a dict of TorchScript": in_script_dict,
    "a text of TorchScript": lambda: torch.jit.CompilationUnit(f"def f() -> str:\n    return '{TEXT}'\n"),
    "scales that a quantized tensor has made FP64": in_scales,
    "a storage that no operator made": lambda: torch.UntypedStorage(COUNT),
    "strides of empty tensors": lambda: [torch.empty(0).as_strided((0,) * 61, (9,) * 61) for _ in range(COUNT // 488)],
    "a picture": in_a_picture,
    "a domain of gettext": in_a_domain,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore")
def test_what_a_library_keeps_for_somebody_counts(place):
    with FreshMeter() as meter, Beside() as beside:
        kept = PLACES[place]()
        assert meter.live_bytes + beside.live_bytes > 0.9 * COUNT
    assert kept is not None


@pytest.mark.filterwarnings("ignore")
def test_what_is_gone_again_does_not_count():
    with FreshMeter(), Beside() as beside:
        for place in ("states of generators", "a buffer of OpenSSL", "a dict of TorchScript"):
            PLACES[place]()
        assert beside.live_bytes == 0


def trained() -> list[object]:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(40)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(64, 64)).sum().backward()
        optimizer.step()
    return [model, optimizer]


def test_a_model_that_trains_leaves_nothing_on_the_heap_beside_its_tensors():
    trained()  # what a first step loads stays
    with FreshMeter() as meter, Beside(2**18) as beside:
        kept = trained()
        assert meter.live_bytes > 40 * 4 * 64 * 64 * 4
        assert beside.live_bytes == 0
    assert kept


def test_one_large_product_leaves_no_scratch_memory_that_counts():
    with Meter(), Beside() as beside:
        kept = torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        assert beside.live_bytes == 0
    assert kept[0, 0] == 1000


def test_tensors_alone_are_not_beside_where_no_meter_tells_of_them():
    with Beside() as beside:
        kept = torch.ones(2**20)
        assert beside.live_bytes == 0
    assert kept.sum() == 2**20
