"""FP8 training: what torchao keeps and holds, against the meter and the trace; and what is refused, with its reason."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.catalog import TrainSetup, WorkbookError, device, model
from helpers.catalog.hardware import library_bytes
from helpers.catalog.layers import Linear
from helpers.catalog.split import Split
from helpers.memory import budget, measure, rounded, trace
from helpers.memory.breakdown import Point
from helpers.memory.fit import ladder
from helpers.memory.measure import steps
from helpers.memory.step.decoders.linears import Linears
from helpers.memory.step.operators import Operators
from helpers.techniques.checkpointing import flops_of
from tests.house import tree
from tests.memory.configs import GEMMA2, OPT, QWEN2, variant
from tests.memory.step.agreement import EAGER, FULL, agree, refused
from tests.versions import unmasked_opt

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed")
FEW_WORDS = {"vocab_size": 512}  # so that the peak lies in a layer, where the casts are, and not in the loss
LLAMA = {**model("tiny-llama").config, **FEW_WORDS}
SCALES = 16 * 512  # amax, scale and its reciprocal for each operand: blocks of 512 bytes


def fp8(config, **choices):
    return TrainSetup(config, **{"precision": "torchao-fp8", "optimizer": "sgd", "micro_batch": 2, **choices})


def headless(inputs, outputs):
    """One linear layer, as a model without a head."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16))
    model.get_output_embeddings = lambda: None
    return model


# tokens, inputs, outputs: the second, the third and the fourth cast of the backward is the widest
ONE_LAYER = [(16, 512, 256), (512, 64, 1024), (512, 1024, 64), (256, 256, 256)]


@needs_torchao
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), ONE_LAYER)
def test_one_layer_holds_what_its_casts_say(tokens, inputs, outputs):
    """Beside its weight and the gradient that it is given."""
    with trace.fake("cpu"):
        layer = steps.in_float8(headless(inputs, outputs))
        x = torch.empty(tokens, inputs, dtype=torch.bfloat16, requires_grad=True)
        gradient = torch.empty(tokens, outputs, dtype=torch.bfloat16)
        forward = trace.record(lambda: layer(x), layer, warmup=0)
        output = layer(x)
        backward = trace.record(lambda: output.backward(gradient), layer, warmup=0)
    tape = Operators()
    out = Linears(fp8(LLAMA), tape).linear(tape.leaf(tokens * inputs, 2), Linear("linear", inputs, outputs))
    weight, given = rounded(2 * inputs * outputs), rounded(2 * tokens * outputs)
    assert 0 <= forward.peak_bytes - weight - given - tape.highest.total <= SCALES
    tape.backward(out.node, out.values, out.width)
    assert 0 <= backward.peak_bytes - weight - tape.highest.total <= SCALES


@needs_torchao
def test_backward_keeps_the_very_input_and_weight():
    """Nothing in FP8, and nothing that BF16 would not keep."""
    layer, kept = steps.in_float8(headless(64, 32)), []
    x = torch.ones(16, 64, dtype=torch.bfloat16, requires_grad=True)

    def pack(tensor):
        kept.append((tensor.dtype, tensor.untyped_storage().data_ptr()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, layer[0].weight)}
    assert {where for _, where in kept} == own
    assert {dtype for dtype, _ in kept} == {torch.bfloat16}


@needs_torchao
def test_the_head_and_odd_sizes_stay_bf16():
    with torch.device("meta"):
        odd, whole, head = nn.Linear(24, 32), nn.Linear(32, 48), nn.Linear(32, 64)
    net = nn.Sequential(odd, whole, head)
    net.get_output_embeddings = lambda: head
    steps.in_float8(net)
    assert [type(layer).__name__ for layer in net] == ["Linear", "Float8Linear", "Linear"]


NIGHT, LONG = pytest.mark.all, {"sequence": 128}
AMONG_CASTS = [
    (LLAMA, {"sequence": 8, "checkpointing": "every:4"}),  # the same in the first layer of a segment, not its last
    (LLAMA, {"sequence": 8}),  # few tokens: the casts of weights, on top of all gradients
    (LLAMA, {"sequence": 256}),  # many: the cast of the MLP's widest input, in the last layer
    (LLAMA, {"sequence": 48, "micro_batches": 3}),  # the forward meets all gradients
    (LLAMA, {**LONG, **FULL}),
    ({**LLAMA, "num_hidden_layers": 1}, {"sequence": 64, **FULL, "micro_batches": 3}),  # and a recomputation does
    (LLAMA, {**LONG, "checkpointing": "selective"}),
    *((LLAMA, {**LONG, "checkpointing": one}, NIGHT) for one in ("module:mlp", "first:2", "offload:inputs")),
    (LLAMA, {**LONG, "checkpointing": "every:3", **EAGER}, NIGHT),
    ({**QWEN2, **FEW_WORDS}, {"sequence": 64}, NIGHT),  # tied, biases
    ({**OPT, **FEW_WORDS}, {"sequence": 64}, unmasked_opt),  # no gate
    ({**OPT, **FEW_WORDS}, {**LONG, **FULL}, NIGHT, unmasked_opt),
    ({**GEMMA2, "vocab_size": 64}, {"sequence": 64, **EAGER}, NIGHT),
    (variant("tiny-qwen3", **FEW_WORDS), LONG, NIGHT),
]


@needs_torchao
@pytest.mark.parametrize(("config", "choices"), [pytest.param(*one[:2], marks=one[2:]) for one in AMONG_CASTS])
def test_a_peak_among_the_casts_is_where_it_is_measured(config, choices):
    """A recomputation runs the last product, too: it saves its operands when it is done."""
    setup = fp8(config, **choices)
    predicted, _ = agree(setup, peak=0.003, saved=0.005)
    bf16 = budget.train(replace(setup, precision="bf16"))
    assert predicted.saved_bytes == bf16.saved_bytes
    assert predicted.peak_bytes > 1.005 * bf16.peak_bytes, "the casts show at this size"


@needs_torchao
def test_flops_are_those_of_bf16_and_of_the_last_product_when_recomputed():
    setup = fp8(LLAMA, sequence=32, checkpointing="full")
    run = steps.training_run(setup, "cpu")
    assert budget.train(setup).flops.total == flops_of(run.step)
    none = replace(setup, checkpointing="none")
    assert budget.train(none).flops == budget.train(replace(none, precision="bf16")).flops


@needs_torchao
@pytest.mark.parametrize("gpu", [None, "rtx-4090", "h100"])
def test_on_cuda_as_the_trace_tells_it(gpu):
    """Both threads have a workspace of cuBLASLt: products in FP8 go through it."""
    setup = fp8(LLAMA, sequence=256)
    card = gpu or "h100"
    traced, predicted = trace.train(setup, gpu), budget.train(setup, card)
    assert traced.library_bytes == predicted.library_bytes == library_bytes(card, cublaslt_threads=2)
    assert predicted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.003)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([LLAMA, OPT, QWEN2]),
    st.sampled_from(["none", "full", "every:2", "selective"]),
    st.integers(1, 20),
    st.sampled_from([1, 3]),
)
def test_fp8_never_holds_less_than_bf16(config, checkpointing, sixteens, micro_batches):
    setup = fp8(config, sequence=16 * sixteens, checkpointing=checkpointing, micro_batches=micro_batches)
    ours, bf16 = budget.train(setup), budget.train(replace(setup, precision="bf16"))
    assert ours.peak_bytes >= bf16.peak_bytes
    assert ours.at(Point.OPTIMIZER).parts == bf16.at(Point.OPTIMIZER).parts
    assert budget.train(replace(setup, sequence=setup.sequence + 16)).peak_bytes >= ours.peak_bytes


TINY = fp8("tiny-llama", sequence=64)
NO_KERNEL = [
    (fp8("tiny-gpt2", sequence=64), "Conv1D"),
    (fp8("tiny-llama", sequence=9), "tokens"),
    (fp8({**LLAMA, "intermediate_size": 690}, sequence=64), "multiple of 16"),
]
ON_CPU = partial(measure.training_step, device="cpu")
test_what_no_kernel_takes_is_refused_by_all_three = refused(
    *((partial(run, setup), words) for setup, words in NO_KERNEL for run in (budget.train, trace.train, ON_CPU)),
    *((partial(run, TINY, "a100"), "no FP8 products") for run in (budget.train, trace.train)),
    (partial(budget.train, replace(TINY, split=Split(4, zero=3))), "FSDP"),
)


def test_offers_stay_in_fp8():
    setup = TrainSetup("llama-3.2-1b", "torchao-fp8", micro_batch=8, sequence=2048)
    offered = list(ladder(setup, device("rtx-4090").capacity_bytes))
    assert offered
    assert not [fit for fit in offered if "precision" in fit.fields]


def test_without_torchao_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    for answer in (trace.train, ON_CPU):
        with pytest.raises(WorkbookError, match="torchao, which training in FP8 needs") as told:
            answer(TINY)
        assert "pip install --no-deps torchao" in told.value.do
    assert budget.train(TINY).peak_bytes > 0


@needs_torchao
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["torchao-fp8", pytest.param("bf16", marks=pytest.mark.all)])
def test_torchao_is_imported_without_a_word(precision):
    """Transformers imports it in any case, and it tells on stderr what it could not load."""
    words = f"-m helpers.cli trace train --model tiny-llama --sequence 64 --precision {precision}".split()
    done = subprocess.run([sys.executable, *words], cwd=tree.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"tiny-llama, {precision}," in done.stdout
