"""Recording: what a run allocates, for what and by whom; and code that cannot run without values."""

import contextlib
import gc

import pytest
import torch
from torch import nn

from helpers.catalog import WorkbookError
from helpers.memory import measure, trace

MIB = 2**20


def linear(width=1024):
    return nn.Linear(width, width, bias=False)


def test_one_operator():
    with trace.fake():
        x = torch.empty(MIB // 4)
        found = trace.record(lambda: x * 2)
    assert found.peak_bytes == 2 * MIB
    assert found.peak_allocated_bytes == 2 * MIB
    assert found.peak_reserved_bytes == 2 * MIB  # two small blocks of a MiB share a segment


def test_a_forward_and_its_cublas_workspace():
    with trace.fake():
        layer, x = linear(), torch.empty(256, 1024)
        found = trace.record(lambda: layer(x), layer)
    assert found.parts["parameters"] == 4 * MIB
    assert found.parts["workspace"] == MIB + MIB + 8_519_680  # input, output, cuBLAS for the main thread
    assert {block.owner for block in found.at_peak} == {"weight", "", "cuBLAS, main thread"}


@pytest.mark.parametrize(
    ("gpu", "each"), [("t4", 8_519_680), (None, 8_519_680), ("h100", 32 * MIB), ("5090", 32 * MIB)]
)
def test_cublas_has_a_workspace_for_each_thread(gpu, each):
    with trace.fake(gpu=gpu):
        layer, x = linear(), torch.empty(8, 1024)
        found = trace.record(lambda: layer(x).sum().backward(), layer)
    assert sum(block.size_bytes for block in found.at_peak if "cuBLAS" in block.owner) == 2 * each


def test_libraries_are_told_apart_from_tensors():
    with trace.fake(gpu="h100"):
        layer, x = nn.Linear(256, 256, bias=False), torch.ones(8, 256)
        found = trace.record(lambda: layer(x).sum().backward(), layer)
    assert found.library_bytes == 2 * 32 * MIB
    assert found.tensor_bytes == found.peak_bytes - found.library_bytes < MIB


def test_on_a_cpu_there_are_no_workspaces():
    with trace.fake("cpu"):
        layer, x = linear(), torch.empty(8, 1024)
        found = trace.record(lambda: layer(x).sum().backward(), layer)
    assert not any("cuBLAS" in block.owner for block in found.at_peak)


def test_a_training_step_by_category_module_and_phase():
    with trace.fake():
        model = nn.Sequential(linear(), nn.GELU(), linear())
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.empty(64, 1024)

        def step():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        found = trace.record(step, model, optimizer)
    assert found.parts["parameters"] == 8 * MIB
    assert found.parts["gradients"] == 8 * MIB
    assert found.parts["optimizer"] == 16 * MIB + 2 * 512
    assert [moment.name for moment in found.measured.moments] == ["forward", "backward", "optimizer step"]
    assert {"0.weight", "2.weight"} <= {block.owner for block in found.at_peak}


def test_a_batch_that_the_step_makes_is_of_its_forward():
    """It once was of the optimizer's step before it, and its activation a workspace."""
    with trace.fake("cpu"):
        layer = linear()
        sgd = torch.optim.SGD(layer.parameters())

        def step():
            layer(torch.empty(256, 1024)).mean().backward()
            sgd.step()
            sgd.zero_grad()

        found = trace.record(step, layer, sgd)
    assert found.measured.timeline.phases[0] == "forward"
    assert found.parts["activations"] >= MIB


def test_step_counters_stay_on_the_host_unless_the_optimizer_is_fused():
    def small(**how):
        with trace.fake():
            model = linear(64)
            optimizer = torch.optim.AdamW(model.parameters(), **how)
            x = torch.empty(4, 64)

            def step():
                model(x).sum().backward()
                optimizer.step()

            return trace.record(step, model, optimizer).parts["optimizer"]

    states = 2 * 4 * 64 * 64
    assert small(fused=True) == states + 512
    assert small(foreach=True) == states


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("gpu", ["a100", "t4"])
def test_sdpa_takes_the_kernel_that_cuda_takes(dtype, gpu):
    """On Ampere flash for 16 bits, memory-efficient for FP32; on a T4 memory-efficient: no score matrix in any."""
    with trace.fake(gpu=gpu):
        q = torch.empty(1, 8, 1024, 64, dtype=dtype, requires_grad=True)
        found = trace.record(lambda: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert found.peak_bytes < 3 * q.numel() * q.element_size()


def test_grouped_heads_without_flash_fall_back_to_the_plain_formula():
    """The memory-efficient kernel knows no grouped heads: on a T4 the score matrix is there again."""

    def peak(gpu):
        with trace.fake(gpu=gpu):
            q = torch.empty(1, 8, 1024, 64, dtype=torch.float16)
            kv = torch.empty(1, 2, 1024, 64, dtype=torch.float16)
            run = lambda: nn.functional.scaled_dot_product_attention(q, kv, kv, enable_gqa=True)  # noqa: E731
            return trace.record(run).peak_bytes

    scores = 2 * 8 * 1024 * 1024
    assert peak("a100") < scores < peak("t4")


def test_dropout_keeps_one_byte_a_value():
    def saved(device):
        with trace.fake(device):
            x = torch.empty(MIB, requires_grad=True)
            kept = []
            found = trace.record(lambda: kept.append(nn.functional.dropout(x, 0.1)), warmup=0)
        return found.peak_bytes

    assert saved("cuda") == (4 + 4 + 1) * MIB
    assert saved("cpu") > saved("cuda")


def test_softmax_in_fp32_of_fp16_is_one_kernel_and_of_bf16_is_two():
    def peak(dtype):
        with trace.fake():
            x = torch.empty(MIB, 1, dtype=dtype)
            return trace.record(lambda: x.softmax(0, dtype=torch.float32)).peak_bytes

    assert peak(torch.float16) == (2 + 4) * MIB
    assert peak(torch.bfloat16) == (2 + 4 + 4) * MIB


def test_the_backward_of_softmax_holds_a_product_besides():
    with trace.fake():
        x = torch.empty(MIB // 4, 1, requires_grad=True)
        found = trace.record(lambda: x.softmax(0).backward(torch.empty(MIB // 4, 1)), warmup=0)
    assert found.peak_bytes == 5 * MIB  # x, output, its gradient, the result, grad * output


def test_settings_and_a_device_that_is_too_small():
    with trace.fake():
        x = torch.empty(30 * MIB // 4)
        found = trace.record(lambda: x + 1)
    assert found.replayed(capacity_bytes=80 * MIB).oom is None
    assert found.replayed(capacity_bytes=50 * MIB).oom is not None
    assert found.replayed("expandable_segments:True").peak_reserved_bytes >= 60 * MIB


@pytest.mark.parametrize("settings", [None, "expandable_segments:True"])
def test_the_least_memory_is_where_a_run_just_passes(settings):
    with trace.fake():
        found = trace.record(lambda: [torch.empty(size * MIB // 4) for size in (30, 40, 50)] and None)
    least = found.least_bytes(settings, within=MIB)
    assert found.replayed(settings, capacity_bytes=least).oom is None
    assert found.replayed(settings, capacity_bytes=least - 2 * MIB).oom is not None
    assert found.peak_allocated_bytes <= least <= found.replayed(settings).peak_reserved_bytes


def test_models_convert_in_place_and_ties_hold():
    with trace.fake():
        model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100, bias=False))
        model[1].weight = model[0].weight
        model.to(torch.bfloat16)
        assert model[1].weight is model[0].weight
        assert model[0].weight.dtype == torch.bfloat16
        assert model[0].weight.requires_grad
        found = trace.record(lambda: model(torch.zeros(4, dtype=torch.long)), model)
    assert found.parts["parameters"] == 12_800  # 100 x 64 in 2 bytes


def looks_at_a_value(x):
    return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda x: looks_at_a_value(x), "looks at a value"),
        (lambda x: x.sum().item(), "looks at a value"),
        (lambda x: x[x > 0], "depends on values"),
        (lambda x: x.nonzero(), "depends on values"),
        (lambda x: x.unique(), "depends on values"),
    ],
)
def test_code_that_needs_values_gets_a_message(run, what):
    with trace.fake():
        x = torch.empty(16)
        with pytest.raises(WorkbookError, match=what) as raised:
            trace.record(lambda: run(x))
    assert raised.value.do


def test_a_tensor_from_outside_gets_a_message():
    outside = torch.ones(16)
    with pytest.raises(WorkbookError, match="made outside"), trace.fake():
        trace.record(lambda: outside + 1)


def test_an_operator_without_a_fake_kernel_gets_a_message():
    torch.library.define("workbook_test::opaque", "(Tensor x) -> Tensor")
    torch.library.impl("workbook_test::opaque", "CPU", lambda x: x.clone())
    with trace.fake():
        x = torch.empty(4)
        with pytest.raises(WorkbookError, match="without memory") as raised:
            trace.record(lambda: torch.ops.workbook_test.opaque(x))
    assert "register_fake" in raised.value.do


@pytest.mark.parametrize("observe", [trace.record, measure.step], ids=["trace", "measure"])
def test_a_run_that_allocates_nothing_is_told(observe):
    with trace.fake() if observe is trace.record else contextlib.nullcontext(), pytest.raises(WorkbookError) as told:
        observe(lambda: None, linear(4))
    assert "make the tensors inside it" in told.value.do


def test_what_the_reader_s_own_code_raises_comes_through():
    def step():
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"), trace.fake():
        trace.record(step)


@pytest.mark.parametrize("call", [lambda: trace.record(lambda: None), lambda: trace.fake("tpu").__enter__()])
def test_misuse_is_refused(call):
    with pytest.raises(WorkbookError):
        call()


def test_one_inside_another_is_refused_and_leaves_nothing_open():
    with pytest.raises(WorkbookError, match="inside"), trace.fake(), trace.fake():
        pass
    with trace.fake():
        assert trace.record(lambda: torch.empty(128)).peak_bytes == 512


def test_everything_is_put_back():
    before = (
        nn.functional.scaled_dot_product_attention,
        nn.functional.dropout,
        torch.softmax,
        torch.Tensor.softmax,
        nn.Module._apply,
    )
    with pytest.raises(RuntimeError, match="boom"), trace.fake():
        raise RuntimeError("boom")
    after = (
        nn.functional.scaled_dot_product_attention,
        nn.functional.dropout,
        torch.softmax,
        torch.Tensor.softmax,
        nn.Module._apply,
    )
    assert before == after
    assert gc.isenabled()
    assert torch.ones(3).sum().item() == 3


@pytest.fixture
def thawed():
    """Nothing is frozen, as for a reader: the tests have frozen what importing made (tests/conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_what_was_there_before_is_set_aside_from_garbage_collection_and_comes_back():
    born = gc.get_freeze_count()  # none, but on Python 3.12
    with trace.fake():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() <= born


@pytest.mark.usefixtures("thawed")
def test_a_readers_own_freeze_is_left_alone():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with trace.fake():
        pass
    assert gc.get_freeze_count() > frozen // 2  # some of them die meanwhile


def test_garbage_of_before_the_run_is_no_part_of_it():
    with trace.fake():
        cycle = [torch.empty(1 << 20)]
        cycle.append(cycle)
        del cycle
        assert trace.record(lambda: torch.empty(1 << 18)).peak_bytes == 1 << 20
