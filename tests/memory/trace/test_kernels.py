"""Kernels that CUDA has and a CPU has not, against peaks of Liger's benchmark: its rows are of PyTorch's own code.

linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv at ead96b61, MiB of max_memory_allocated.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.catalog import TrainSetup, WorkbookError
from helpers.memory import budget, trace
from helpers.memory.accuracy.ops import sparsemax

MIB = 2**20


def peak_of_norm(rows, width, dtype=torch.bfloat16, weight_dtype=None, strided=False):
    """MiB of RMSNorm forward and backward, as the benchmark's `torch` rows of megatron_rms_norm run it."""
    with trace.fake(gpu="h100"):
        layer = nn.RMSNorm(width, dtype=weight_dtype or dtype)
        x = torch.randn(width, rows, dtype=dtype).T if strided else torch.randn(rows, width, dtype=dtype)
        x.requires_grad_(True)

        def step():
            y = layer(x)
            y.sum().backward()

        return trace.record(step, layer, warmup=2).peak_allocated_bytes / MIB


@pytest.mark.parametrize(
    ("width", "measured"), [(1024, 40.0224609375), (4096, 160.0400390625), (16384, 640.1103515625)]
)
def test_rms_norm_is_one_kernel(width, measured):
    assert peak_of_norm(4096, width) == measured


def test_rms_norm_is_steps_where_the_weight_has_another_type():
    with pytest.warns(UserWarning, match="Cannot dispatch to fused implementation"):  # PyTorch's own words
        assert peak_of_norm(4096, 1024, weight_dtype=torch.float32) > 2 * peak_of_norm(4096, 1024)


def test_rms_norm_reads_a_strided_input_from_a_copy():
    assert peak_of_norm(4096, 1024, strided=True) == 40.0224609375 + 8


def test_rms_norm_keeps_its_input_and_the_factors():
    with trace.fake():
        x, scale = torch.randn(512, 1024, requires_grad=True), nn.Parameter(torch.ones(1024), requires_grad=False)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda t: t):
            functional.rms_norm(x, (1024,), scale).sum().backward()
    assert [tuple(shape) for shape in kept] == [(512, 1024), (1024,), (512, 1)]
    assert scale.grad is None
    assert x.grad.shape == x.shape


def test_rms_norm_runs_in_fp32_under_autocast():
    with trace.fake(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = nn.RMSNorm(64)(torch.randn(8, 64, dtype=torch.bfloat16))
    assert y.dtype == torch.float32


@pytest.mark.parametrize(
    ("width", "measured"), [(4096, 328.046875), (8192, 704.00048828125), (32768, 2816.00048828125)]
)
def test_long_rows_are_sorted_beside_their_copies(width, measured):
    with trace.fake(gpu="3090"):
        x = torch.randn(2048, width, requires_grad=True)
        gradient = torch.randn_like(x)

        def step():
            y = sparsemax(x)
            y.backward(gradient, retain_graph=True)

        found = trace.record(step, warmup=2)
    assert found.peak_allocated_bytes / MIB == measured


@pytest.mark.parametrize(
    ("shape", "dim", "bytes_a_value"),
    [
        ((2048, 8192), -1, 8 + 12),  # segments: indices, and copies of keys and indices
        ((64, 8192), -1, 8 + 8 + 4 + 12),  # pairs of row and index twice, the sorted keys, and the copies
        ((1, 2**20), -1, 8 + 12),  # one row
        ((8192, 2048), 0, 4 + 12 + 8 + 12),  # not along the rows: input and results lie the other way round first
        ((8192, 64), -1, 0),  # in place
    ],
)
def test_what_a_sort_holds(shape, dim, bytes_a_value):
    with trace.fake():
        x = torch.empty(shape)
        held = 4 * x.numel() + 12 * x.numel()  # the input; values and indices, which it returns
        found = trace.record(lambda: torch.sort(x, dim=dim), warmup=0)
    assert found.peak_bytes == pytest.approx(held + bytes_a_value * x.numel(), abs=512)


@pytest.mark.parametrize(
    ("width", "table", "measured", "by_liger"),  # Liger's kernel adds with atomics and holds nothing
    [
        (768, 2048, 12371.359375, 12360.125),
        (768, 131072, 13925.6875, 13872.125),
        (4096, 1024, 14388.130859375, 14346.125),
        (4096, 131072, 22756.482421875, 22474.125),
    ],
)
def test_the_embedding_backward_sorts_and_sums_up(width, table, measured, by_liger):
    def peak(tokens):
        with trace.fake():
            layer = nn.Embedding(table, width)
            gradient, ids = torch.randn(tokens, width), torch.randint(table, (tokens,))
            made = 4 * width * (2 * table + tokens) + 8 * tokens
            run = trace.record(
                lambda: torch.ops.aten.embedding_dense_backward(gradient, ids, table, -1, False), layer, warmup=0
            )
        return (run.peak_bytes - made) / MIB

    assert peak(16384) == measured - by_liger
    assert peak(3072) == 0


def test_the_closed_form_knows_these_sums():
    """8,192 tokens over 512 rows: sums of the 8 x 1,024 gradients of 64 values, at the moment that traces name."""
    setup = TrainSetup("tiny-llama", micro_batch=8, sequence=1024, checkpointing="full", precision="bf16")
    few = TrainSetup("tiny-llama", micro_batch=3, sequence=1024, checkpointing="full", precision="bf16")

    def added(of):
        on_cuda, on_cpu = (budget.train(of, card).at("embedding").total for card in ("a100-80gb", None))
        return on_cuda - on_cpu

    model = setup.model
    rows = min(8192, model.vocab)
    sums = rows + 819
    held = 3 * 8 * 8192 + 2 * 512 + 2 * 8 * rows + 8 * sums + 4 * sums * model.hidden
    assert added(setup) - added(few) == pytest.approx(held, abs=2048)


def test_workspaces_of_convolutions_are_a_range():
    """Two convolutions: the first reads 2 MiB and writes 8, the second reads those and writes 2."""
    with trace.fake(), torch.no_grad():
        layers = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(32, 8, 3, padding=1))
        x = torch.empty(1, 8, 256, 256)
        found = trace.record(lambda: layers(x), warmup=0)
    weights = 4 * (9 * 8 * 32 * 2) + 2 * 512
    assert found.peak_bytes == weights + 2 * MIB + 8 * MIB + 2 * MIB
    assert found.with_convolutions(0) == found.peak_allocated_bytes
    assert found.with_convolutions(64 * MIB) - found.peak_allocated_bytes == 64 * MIB


@pytest.mark.parametrize("size", [-1, 0.5, "64MB"])
def test_a_workspace_is_a_whole_number_of_bytes(size):
    with trace.fake():
        found = trace.record(lambda: torch.empty(8), warmup=0)
    with pytest.raises(WorkbookError, match="workspace_bytes"):
        found.with_convolutions(size)


def test_without_convolutions_there_is_no_range():
    with trace.fake():
        layer = nn.Linear(64, 64)
        found = trace.record(lambda: layer(torch.empty(8, 64)), layer, warmup=0)
    assert found.with_convolutions(2**30) == found.peak_allocated_bytes
