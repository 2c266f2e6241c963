"""The field's engines beside ours: the same logits, and bytes of each place to the byte."""

import contextlib
import sys

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers.catalog.errors import WorkbookError
from helpers.memory.breakdown import rounded
from helpers.memory.meter.places import Place, PlacesMeter, account_bytes
from helpers.small_lm.model import untrained
from helpers.techniques.checkpointing import NaiveOffload
from helpers.techniques.kv_cache import cache_of, transformers_cache
from helpers.techniques.offload import engines
from helpers.techniques.offload.streams import SimulatedStreams
from helpers.techniques.offload.weights import WeightStreamer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IDS = torch.arange(1, 17, device=DEVICE)[None]
LAYER = ["LlamaDecoderLayer"]
MAP = {
    **dict.fromkeys(("model.embed_tokens", "model.norm", "lm_head", "model.rotary_emb", "model.layers.0"), "device"),
    "model.layers.1": "cpu",
    "model.layers.2": "cpu",
    "model.layers.3": "disk",
}
MAKERS = {
    "nothing": lambda model, folder: contextlib.nullcontext(),
    "cpu": lambda model, folder: engines.cpu_offload(model),
    "cpu, by layer": lambda model, folder: engines.cpu_offload(model, preload_module_classes=LAYER),
    "disk": lambda model, folder: engines.disk_offload(model, folder),
    "disk, by layer": lambda model, folder: engines.disk_offload(model, folder, preload_module_classes=LAYER),
    "map": lambda model, folder: engines.dispatch(model, MAP, folder),
    "map of one": lambda model, folder: engines.dispatch(model, {"": "cpu"}),
    "ours": lambda model, folder: WeightStreamer(model.model.layers, SimulatedStreams(64e9, 1e12)),
}


def weights_of(model):
    """What a meter counts for all weights, for those of no layer, for a layer; the largest weight; a layer's bytes."""
    inside = {id(p) for p in model.model.layers.parameters()}
    layer = [p.nbytes for p in model.model.layers[0].parameters()]
    root = account_bytes(p.nbytes for p in model.parameters() if id(p) not in inside)
    largest = max(p.nbytes for p in model.parameters())
    return account_bytes(p.nbytes for p in model.parameters()), root, account_bytes(layer), largest, sum(layer)


def predicted(name, model):
    """At rest on the device, on the host and on the disk; and what passes through the device besides, at once."""
    everything, root, layer, largest, layer_bytes = weights_of(model)
    values = sum(p.nbytes for p in model.parameters())
    return {
        "nothing": (everything, 0, 0, 0),
        "cpu": (0, everything, 0, largest),
        "cpu, by layer": (0, everything, 0, layer),
        "disk": (0, 0, values, largest),
        "disk, by layer": (0, 0, values, layer),
        "map": (root + layer, 2 * layer, layer_bytes, largest),
        "map of one": (0, everything, 0, largest),
        "ours": (root + 2 * rounded(layer_bytes), 4 * rounded(layer_bytes), 0, 0),
    }[name]


def run(name, folder, model):
    """Logits, the bytes of each place before the forward, and the device's peak in it, of weights alone."""
    shapes = {tuple(p.shape) for p in model.parameters()}
    with torch.no_grad(), PlacesMeter() as meter:
        meter.adopt(model.parameters(), "parameters", Place.DEVICE)
        with MAKERS[name](model, folder):
            before, begin = {place: meter.bytes_in(place) for place in Place}, len(meter.events)
            logits = model(IDS).logits
            now = peak = before[Place.DEVICE]
            for event in meter.events[begin:]:
                if event.block.place == Place.DEVICE and event.block.shape in shapes:
                    now += event.sign * event.block.size_bytes
                    peak = max(peak, now)
        return logits, before, peak, meter


@pytest.mark.parametrize("name", MAKERS)
def test_logits_are_the_same_and_bytes_are_as_predicted(name, tmp_path):
    model = untrained(0).to(DEVICE)
    with torch.no_grad():
        want = model(IDS).logits
    logits, before, peak, meter = run(name, tmp_path / "weights", model)
    assert torch.equal(logits, want)
    device, host, disk, passing = predicted(name, model)
    assert before == {Place.DEVICE: device, Place.HOST: host, Place.PAGES: 0, Place.DISK: disk}
    assert peak == device + passing
    if name.startswith("disk"):  # a file's values pass through host memory, one weight at a time
        assert meter.peak_in(Place.HOST) == weights_of(model)[3]


@pytest.mark.parametrize("name", MAKERS)
def test_closed_the_model_is_as_before(name, tmp_path):
    model = untrained(0).to(DEVICE)
    own, before = dict(model.named_parameters()), vars(model).keys()
    values = {key: value.clone() for key, value in own.items()}
    _, _, _, meter = run(name, tmp_path / "weights", model)
    after = dict(model.named_parameters())
    assert all(after[key] is own[key] and torch.equal(after[key], values[key]) for key in own)
    assert vars(model).keys() == before
    assert not any(hasattr(module, "_hf_hook") or "forward" in vars(module) for module in model.modules())
    assert not list((tmp_path / "weights").glob("*"))
    assert meter.bytes_in(Place.DEVICE) >= weights_of(model)[0]
    assert meter.bytes_in(Place.HOST) == meter.bytes_in(Place.DISK) == 0


@pytest.mark.parametrize("name", ["cpu", "disk", "map of one"])
def test_tied_weights_stay_tied(name, tmp_path):
    model = untrained(0).to(DEVICE)
    model.lm_head.weight = model.model.embed_tokens.weight
    with torch.no_grad():
        want = model(IDS).logits
        with MAKERS[name](model, tmp_path):
            assert torch.equal(model(IDS).logits, want)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model(IDS).logits, want)


@pytest.mark.parametrize("name", ["cpu", "disk", "map"])
def test_after_a_forward_that_breaks_off_the_model_is_whole(name, tmp_path):
    model = untrained(0).to(DEVICE)
    with torch.no_grad():
        want = model(IDS).logits
        with pytest.raises(IndexError), MAKERS[name](model, tmp_path):
            model(IDS + 10**6)
        assert torch.equal(model(IDS).logits, want)


def test_a_model_generates_the_same_tokens_from_the_host():
    model = untrained(0).to(DEVICE)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    want = model.generate(IDS, **options)
    with engines.cpu_offload(model):
        assert torch.equal(model.generate(IDS, **options), want)


@pytest.mark.skipif(DEVICE == "cpu", reason="the model begins on the host, and computes on a GPU")
@pytest.mark.parametrize("maker", [engines.cpu_offload, lambda *a, **k: engines.dispatch(*a, {"": "cpu"}, **k)])
def test_a_model_that_never_fitted_computes_on_the_gpu(maker):
    model = untrained(0)
    want = model(IDS.cpu()).logits
    with torch.no_grad(), PlacesMeter() as meter, maker(model, device="cuda"):
        torch.testing.assert_close(model(IDS).logits.cpu(), want)
        assert 0 < meter.peak_in(Place.DEVICE) < weights_of(model)[0]
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def saved_sizes(model):
    sizes = []
    with saved_tensors_hooks(lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor):
        model(IDS, labels=IDS).loss.backward()
    return sizes


def test_save_on_cpu_sends_out_every_saved_tensor_by_itself():
    model = untrained(0).to(DEVICE)
    sizes = saved_sizes(model)
    want = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with PlacesMeter() as meter:
        meter.adopt(model.parameters(), "parameters", Place.DEVICE)
        with engines.save_on_cpu():
            loss = model(IDS, labels=IDS).loss
        assert meter.bytes_in(Place.HOST) == account_bytes(sizes)
        begin = len(meter.events)
        loss.backward()
        assert meter.bytes_in(Place.HOST) == 0
        came = [event.block for event in meter.events[begin:] if event.sign > 0 and event.block.place == Place.DEVICE]
        assert sum(block.size_bytes for block in came) > account_bytes(sizes)
    assert all(torch.equal(p.grad, want[name]) for name, p in model.named_parameters())
    naive = NaiveOffload()
    with naive:
        model(IDS, labels=IDS)
    assert naive.bytes_out == sum(sizes)
    assert sum(sizes) > sum(p.nbytes for p in model.model.layers.parameters())  # weights too, though they never leave


@pytest.mark.skipif(DEVICE == "cuda", reason="Transformers' offloaded cache runs on a GPU")
def test_the_offloaded_cache_of_transformers_names_ours_without_a_gpu():
    with pytest.raises(WorkbookError) as error:
        transformers_cache(untrained(0), "offloaded")
    assert 'cache_of(model, "offloaded")' in error.value.do


def test_an_offloaded_cache_gives_the_same_tokens():
    model = untrained(0).to(DEVICE)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    want = model.generate(IDS, **options)
    caches = [cache_of(model, "offloaded")] + ([transformers_cache(model, "offloaded")] if DEVICE == "cuda" else [])
    for cache in caches:
        assert torch.equal(model.generate(IDS, past_key_values=cache, **options), want)


def opened(context):
    with context:
        pass


def in_hooks(folder):
    model = untrained(0)
    with engines.cpu_offload(model):
        opened(engines.disk_offload(model, folder))


def left_over(folder):
    (folder / "index.json").write_text("{}")
    opened(engines.disk_offload(untrained(0), folder))


def file_for_a_folder(folder):
    (folder / "file").write_text("")
    opened(engines.disk_offload(untrained(0), folder / "file"))


BAD = [
    (lambda folder: opened(engines.dispatch(untrained(0), {"": "nvme"})), "unknown tier 'nvme'", "disk"),
    (lambda folder: opened(engines.dispatch(untrained(0), {"": "dsk"})), "unknown tier 'dsk'", "'disk'"),
    (lambda folder: opened(engines.dispatch(untrained(0), {"modle": "cpu"})), "unknown module 'modle'", "model"),
    (lambda folder: opened(engines.dispatch(untrained(0), {"model": "cpu"})), "no place for lm_head.weight", "whole"),
    (lambda folder: opened(engines.dispatch(untrained(0), {"": "disk"})), "no folder", "folder="),
    (lambda folder: opened(engines.cpu_offload(torch.nn.ReLU())), "no weights", "load()"),
    (in_hooks, "has hooks on this model already", "leave"),
    (left_over, "has files in it", "another folder"),
    (file_for_a_folder, "cannot be written", "another folder"),
]


@pytest.mark.parametrize(("call", "what", "do"), BAD)
def test_bad_input(call, what, do, tmp_path):
    with pytest.raises(WorkbookError) as error:
        call(tmp_path)
    assert what in error.value.what
    assert do in error.value.do + error.value.expected


def test_a_disk_without_room_is_found_before_it_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 6_937_343})  # a byte too few
    monkeypatch.setattr(engines.shutil, "disk_usage", lambda folder: usage)
    model = untrained(0)
    with pytest.raises(WorkbookError, match="6,937,343 bytes free, and it would take 6,937,344"):
        opened(engines.disk_offload(model, tmp_path))
    assert model(IDS.cpu()).logits.isfinite().all()


def test_without_accelerate_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(WorkbookError, match="pip install"):
        opened(engines.cpu_offload(untrained(0)))
