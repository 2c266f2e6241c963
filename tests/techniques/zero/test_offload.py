"""FSDP2 and DeepSpeed with states on the host or on a disk: the same training, and the bytes of each place."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.catalog import WorkbookError
from helpers.lesson.ranks import Ranks
from helpers.lesson.ranks.errors import RankError
from helpers.memory.meter.places import Place, account_bytes
from helpers.techniques.offload import engines as offload_engines
from helpers.techniques.offload import engines_training
from helpers.techniques.offload.engines_training import infinity_bytes
from helpers.techniques.zero import async_io, fake_ranks
from helpers.techniques.zero.deepspeed import DeepSpeed
from tests.techniques.zero import cases, engine_cases
from tests.techniques.zero.engine_cases import rows

needs_deepspeed = pytest.mark.needs("deepspeed", "pip install -r requirements-deepspeed.txt")
NOT_HERE = [name for name, where in async_io.tools().items() if not where]
needs_a_disk = pytest.mark.skipif(bool(NOT_HERE), reason=f"DeepSpeed's disk tier lacks {', '.join(NOT_HERE)}")


@pytest.fixture(scope="module")
def ranks1():
    with Ranks(1) as ranks:
        yield ranks


@pytest.fixture(params=[1, 2])
def few_ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


@pytest.fixture
def disk_ranks(few_ranks):
    """With `async_io`, whose first compilation on a machine takes longer than a call may."""
    few_ranks.run(engine_cases.compiled, timeout_s=1800)
    return few_ranks


def same_as_without(ranks, name, plain, kind="wide", **options):
    """Bytes by place before and after the last step, by rank, of a run that equals that of `plain` bit for bit."""
    expected = ranks.run(engine_cases.by_place, plain, kind)
    found = ranks.run(engine_cases.by_place, name, kind, **options)
    for (losses, parameters, *_), (want, wanted, *_) in zip(found, expected, strict=True):
        assert losses == want
        assert all(map(torch.equal, parameters, wanted))
    return [(made, stepped) for _, _, made, stepped in found]


def places(device=0, host=0, disk=0):
    return {Place.DEVICE: device, Place.HOST: host, Place.PAGES: 0, Place.DISK: disk}


def on_the_device(kind, *sizes):
    """A model's buffers, DeepSpeed's bucket, and storages of these bytes."""
    return account_bytes([*(b.nbytes for b in cases.build(kind).buffers()), 4000, *sizes])


def shards_of(kind, ranks):
    return [-(-p.numel() // ranks) for p in cases.build(kind).parameters()]


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("kind", ["wide", "large"])
def test_zero_offload_s_bytes_and_losses(few_ranks, kind):
    """4 for each parameter of a shard on the device, and 20 on the host: FP32 copy, two moments, two gradients."""
    shard = 4 * sum(shards_of(kind, few_ranks.count))
    expected = places(on_the_device(kind, shard), account_bytes([shard] * 5))
    for found in same_as_without(few_ranks, "deepspeed-3 host", "deepspeed-3", kind):
        assert found == (expected, expected)


@needs_deepspeed
def test_stage_2_offloads_20_bytes(ranks2):
    """FP32 copy, two moments, a gradient, and new weights on their way up; then a gradient on its way down."""
    sizes = [p.nbytes for p in cases.build("wide").parameters()]
    host = account_bytes([*[sum(sizes) // 2] * 5, max(sizes)])
    for made, stepped in same_as_without(ranks2, "deepspeed-2 host", "deepspeed-2"):
        assert (made[Place.HOST], stepped[Place.HOST]) == (host, host)


def test_fsdp2_s_host_has_12_bytes_and_16_with_a_gradient(ranks2):
    """A shard has as many rows as the first rank's. A layer's gradients are one storage, and so are the root's."""
    named = dict(cases.build("wide").named_parameters())
    layers = Counter()
    for name, parameter in named.items():
        layers[name.split(".")[2] if ".layers." in name else "root"] += rows(parameter, 0)
    for rank, (made, stepped) in enumerate(same_as_without(ranks2, "fsdp2 host", "fsdp2")):
        shards, moments = ([rows(parameter, of) for parameter in named.values()] for of in (0, rank))
        buffers = account_bytes(buffer.nbytes for buffer in cases.build("wide").buffers())
        assert stepped == places(buffers, account_bytes([*shards, *moments * 2]))
        assert made == places(buffers, account_bytes([*shards, *moments * 2, *layers.values()]))


@pytest.mark.all
@needs_deepspeed
@needs_a_disk
@pytest.mark.parametrize("group", [10**9, 300_000])
def test_infinity_s_bytes_and_losses(disk_ranks, group):
    sizes = [p.numel() for p in cases.build("large").parameters()]
    expected = infinity_bytes(sizes, disk_ranks.count, group)
    expected[Place.DEVICE] = on_the_device("large")
    for found in same_as_without(disk_ranks, "deepspeed-3 disk", "deepspeed-3", "large", sub_group_size=group):
        assert found == (expected, expected)


@pytest.mark.all
@needs_deepspeed
@needs_a_disk
def test_no_buffer_of_infinity_s_is_missed(disk_ranks):
    assert set(disk_ranks.run(engine_cases.unnamed_bytes, "deepspeed-3 disk", "large")) == {0}


@pytest.mark.all
@needs_deepspeed
@needs_a_disk
@pytest.mark.parametrize("harm", ["gone", "cut short"])
def test_a_file_that_is_not_whole_is_told(disk_ranks, harm):
    with pytest.raises(RankError, match=r"bytes, and .* were written"):
        disk_ranks.run(engine_cases.with_a_file, harm)


@pytest.mark.parametrize("name", async_io.INSTALL)
def test_what_the_disk_s_tier_lacks_is_named_with_the_way_to_get_it(monkeypatch, name):
    builder = SimpleNamespace(is_compatible=lambda verbose: False)
    package = SimpleNamespace(get_accelerator=lambda: SimpleNamespace(create_op_builder=lambda _: builder))
    monkeypatch.setattr(async_io, "tools", lambda: dict.fromkeys(async_io.INSTALL, "here") | {name: None})
    with pytest.raises(WorkbookError, match=f"{re.escape(name)} is missing") as error:
        async_io.require_async_io(package)
    assert error.value.do == async_io.INSTALL[name]


def test_an_interrupted_build_is_told_before_deepspeed_waits_for_it(monkeypatch, tmp_path):
    package = SimpleNamespace(get_accelerator=lambda: SimpleNamespace(create_op_builder=lambda _: None))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(async_io, "tools", lambda: dict.fromkeys(async_io.INSTALL, "here"))
    (lock := async_io.build_folder("async_io") / "lock").touch()
    with pytest.raises(WorkbookError, match="interrupted") as error:
        async_io.require_async_io(package)
    assert str(lock) in error.value.do


@pytest.mark.skipif(not async_io.tools()["a C++ compiler"], reason="there is no C++ compiler to hide")
def test_a_compiler_that_is_not_on_the_path_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert async_io.tools()["a C++ compiler"] is None


@needs_deepspeed
@pytest.mark.parametrize(
    ("options", "message"),
    [({"stage": 2, "disk": "states"}, "a disk at stage 2"), ({"disk": "/proc/states"}, "cannot be written")],
)
def test_a_disk_that_would_not_be_used_is_refused(ranks2, options, message):
    with pytest.raises(RankError, match=message):
        ranks2.run(engine_cases.with_options, options)


@needs_deepspeed
def test_files_of_another_engine_are_not_written_over(ranks2, tmp_path):
    for rank in range(2):
        (folder := tmp_path / "zero_stage_3" / "optimizer" / f"rank{rank}").mkdir(parents=True)
        (folder / "0_11.tensor.swp").touch()
    with pytest.raises(RankError, match="files of another engine"):
        ranks2.run(engine_cases.with_options, {"disk": tmp_path})


@pytest.fixture
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")


@needs_deepspeed
@pytest.mark.usefixtures("on_a_cpu")
def test_gradients_that_deepspeed_would_lose_are_told():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(1025, 1025))
    with fake_ranks(2), pytest.raises(WorkbookError, match="reads 2,101,252 bytes to byte 28 ") as error:
        DeepSpeed(model, torch.optim.SGD, disk="states")
    assert "another number of ranks" in error.value.do


@needs_deepspeed
@pytest.mark.usefixtures("on_a_cpu")
def test_a_disk_without_room_is_found_before_it_is_written(monkeypatch, tmp_path):
    """Both ranks' shares of the weight, 10 MiB each, and of the bias, which is under 1 MiB: its states alone, 6 KiB."""
    monkeypatch.setattr(offload_engines.shutil, "disk_usage", lambda folder: SimpleNamespace(free=20_983_807))
    with fake_ranks(2), pytest.raises(WorkbookError, match="it would take 20,983,808"):
        DeepSpeed(nn.Linear(1024, 1024), torch.optim.SGD, disk=tmp_path)


def test_the_worked_number_of_infinity():
    assert doctest.testmod(engines_training).failed == 0
