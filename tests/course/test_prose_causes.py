"""The causes and the traps that chapters 06 and 07 and their companions name, each beside its control."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from functools import partial

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    Qwen2Config,
    TrainingArguments,
)

from helpers.memory import measure
from helpers.memory.meter import Meter
from helpers.small_lm import language, load
from helpers.techniques import checkpointing as ck
from helpers.techniques import quantization as q
from helpers.techniques.quantization import gptq

MIB, aten = 2**20, torch.ops.aten
SMALL = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 256,
    "use_cache": False,
}


def keeping(dear, context, operator, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if operator in dear else CheckpointPolicy.PREFER_RECOMPUTE


def selective(*products):
    dear = {*products, *ck.patched.ATTENTIONS}
    return {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, partial(keeping, dear))}


def enable(net, how):
    """Newer versions of Transformers call it `activation_…`, older ones `gradient_…`."""
    verb = next(name for name in ("activation", "gradient") if hasattr(net, f"{name}_checkpointing_enable"))
    getattr(net, f"{verb}_checkpointing_enable")(how)


def step_of(net, tokens: int):
    ids = torch.zeros(1, tokens, dtype=torch.long)
    return lambda: net(input_ids=ids, labels=ids).loss.backward()


class Casts(TorchDispatchMode):
    """Counts the weights that are cast to BF16."""

    def __init__(self, net):
        super().__init__()
        self.shapes, self.count = {weight.shape for weight in net.parameters() if weight.dim() == 2}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        to = (kwargs or {}).get("dtype")
        self.count += func is aten._to_copy.default and to is torch.bfloat16 and args[0].shape in self.shapes
        return func(*args, **(kwargs or {}))


def autocast_forward(cached: bool):
    """What is alive as a checkpointed forward pass ends, within autocast, and how many weights a step casts."""
    net = AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, "num_hidden_layers": 8})).train()
    enable(net, {"use_reentrant": False})
    ids = torch.zeros(1, 7, dtype=torch.long)

    def step():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            loss = net(input_ids=ids, labels=ids).loss
        loss.backward()

    forward = measure.step(step, net, warmup=0).at("forward").total
    with Casts(net) as casts:
        step()
    return forward, casts.count, sum(weight.nbytes for weight in net.model.layers.parameters()) / 2


def test_autocast_keeps_its_copies_in_a_cache_and_casts_no_more_without_it():
    (kept, casts, copies), (dropped, without, _) = autocast_forward(True), autocast_forward(False)
    assert casts == without > 0
    assert kept - dropped > 0.8 * copies


def test_a_product_with_a_bias_is_another_operator():
    net = AutoModelForCausalLM.from_config(Qwen2Config(**SMALL)).train()
    step = step_of(net, 256)
    plain, ratios = ck.flops_of(step), []
    for products in ((aten.mm.default,), (aten.mm.default, aten.addmm.default)):
        enable(net, selective(*products))
        ratios.append(ck.flops_of(step) / plain)
    assert ratios[0] > 1.03
    assert ratios[1] == 1


@pytest.mark.parametrize(("kernel", "mib"), [(SDPBackend.FLASH_ATTENTION, 19), (SDPBackend.MATH, 43)])
def test_whether_sdpa_keeps_its_matrices_is_the_kernels_to_say(kernel, mib):
    net = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL), attn_implementation="sdpa")
    with sdpa_kernel(kernel):
        assert round(measure.step(step_of(net, 1024), net, warmup=0).saved_bytes / MIB) == mib


def test_a_context_fn_is_no_json(tmp_path):
    how = selective(aten.mm.default)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", gradient_checkpointing_kwargs=how)
    with pytest.raises(TypeError, match="not JSON serializable"):
        arguments.to_json_string()


def higher_by(*stays) -> int:
    """KiB by which a small MLP's peak is higher with all that it saves on the host, but for what `stays` names."""
    steps = torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)
    part = torch.nn.Sequential(*steps)
    given, peaks = {"batch": [torch.randn(128, 512)], "weights": list(part.parameters())}, []
    for sent in (contextlib.nullcontext(), ck.Offload(keep=[tensor for name in stays for tensor in given[name]])):
        with Meter() as meter:
            meter.adopt([*given["batch"], *given["weights"]], "given")
            with sent:
                loss = part(given["batch"][0]).square().mean()
            loss.backward()
            part.zero_grad()
            del loss
        peaks.append(meter.peak_bytes)
    return (peaks[1] - peaks[0]) // 1024


def test_what_comes_back_stands_beside_what_never_left():
    batch = 128 * 512 * 4 // 1024
    assert 0.9 * batch < higher_by("weights") - higher_by("weights", "batch") <= batch
    assert higher_by("batch") - higher_by("weights", "batch") > 4 * batch


def test_accelerate_under_fsdp2_does_not_restore_the_random_state():
    source = inspect.getsource(importlib.import_module("accelerate.utils.fsdp_utils"))
    assert "checkpoint_wrapper(layer, preserve_rng_state=False)" in source
    block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 64))
    x = torch.randn(8, 64)

    def gradient(run):
        torch.manual_seed(7)
        block.zero_grad()
        run(x).square().mean().backward()
        return block[0].weight.grad.clone()

    exact = gradient(block)
    assert torch.equal(gradient(checkpoint_wrapper(block, preserve_rng_state=True)), exact)
    assert not torch.equal(gradient(checkpoint_wrapper(block, preserve_rng_state=False)), exact)


def test_peft_prepares_checkpointing_for_a_quantized_base_alone():
    peft = pytest.importorskip("peft")
    net = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL), dtype=torch.bfloat16)
    net = peft.prepare_model_for_kbit_training(net)
    assert not net.is_gradient_checkpointing
    assert net.dtype == torch.float32


def test_some_inputs_of_down_proj_are_far_larger_than_their_neighbours():
    """So second moments of neighbouring columns differ, and 8 bits lose the small ones; those of q_proj are alike."""
    spread, net = {}, load().model
    for number in (1, 2, 4):
        layer = net.model.layers[number - 1]
        for name, part in (("q_proj", layer.self_attn.q_proj), ("down_proj", layer.mlp.down_proj)):
            part.register_forward_hook(partial(note_spread, spread, (name, number)))
    with torch.no_grad():
        net(input_ids=torch.tensor(language.training_documents(1, 256, seed=1)[0].ids)[None])
    assert all(4 < spread["q_proj", number] < 12 for number in (1, 2, 4))
    assert all(spread["down_proj", number] > 1000 for number in (1, 2, 4))


def note_spread(spread, key, module, inputs, output):
    """The largest mean square of an input over the median one."""
    mean_square = inputs[0].flatten(0, 1).square().mean(0)
    spread[key] = (mean_square.max() / mean_square.median()).item()


def in_blocks(weight: torch.Tensor, block: int) -> torch.Tensor:
    return weight.view(-1, block)


def test_an_error_follows_the_steps_of_its_blocks():
    """Change who shares a scale, and the error changes as the mean square of the steps does, to a twentieth."""
    weight = load().model.model.layers[1].mlp.down_proj.weight.detach()
    error, step = {}, {}
    for block in (64, 512, weight.numel()):
        largest = in_blocks(weight, block).abs().amax(-1)
        step[block] = (largest / 7).square().mean().sqrt()
        group = "tensor" if block == weight.numel() else block
        error[block] = (q.Grid(4, group, symmetric=True).round(weight) - weight).norm()
    for block in (64, 512):
        assert float(error[block] / error[weight.numel()]) == pytest.approx(
            float(step[block] / step[weight.numel()]), rel=0.05
        )


def test_one_large_weight_ruins_its_block_and_no_other():
    row = torch.full((1, 512), 0.09)
    assert (q.Grid(4, 512, symmetric=True).round(row) == 0).sum() == 0
    row[0, 7] = 2.0
    lost = [int((q.Grid(4, group, symmetric=True).round(row) == 0).sum()) for group in (512, 64)]
    assert lost == [511, 63]


def test_gptq_has_worse_weights_and_better_outputs_only_where_inputs_move_together():
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    grid, one = q.Grid(2, 64), torch.randn(4096, 1, generator=torch.Generator().manual_seed(1))
    noise, ratios = torch.randn(4096, 128, generator=torch.Generator().manual_seed(2)), []
    nearest = grid.round(weight)
    for together in (1.0, 0.0):
        inputs = noise + 3 * together * one
        moments = inputs.T @ inputs / len(inputs)
        made = grid.values(*gptq.gptq(weight, moments, grid))
        assert (made - weight).norm() >= (nearest - weight).norm() * 0.999
        outputs = [((each - weight) @ moments * (each - weight)).sum() for each in (made, nearest)]
        ratios.append(float(outputs[0] / outputs[1]))
    assert ratios[0] < 0.5
    assert ratios[1] > 0.9


def test_loading_in_four_bits_needs_no_more_beside_a_deeper_model(tmp_path):
    pytest.importorskip("bitsandbytes")
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    beside = []
    for layers in (2, 8):
        folder = tmp_path / str(layers)
        config = LlamaConfig(**{**SMALL, "num_hidden_layers": layers})
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        with Meter() as meter:
            net = AutoModelForCausalLM.from_pretrained(folder, quantization_config=four_bits, device_map="cpu")
            beside.append(meter.peak_bytes - meter.live_bytes)
        assert beside[-1] < sum(weight.numel() * 2 for weight in net.parameters())
    assert beside[0] == pytest.approx(beside[1], rel=0.01)


def test_layers_that_share_weights_keep_as_many_activations():
    """ALBERT with one group of layers, or with twelve of their own: weights differ, and what is kept does not."""
    sizes = {"hidden_size": 96, "embedding_size": 96, "num_attention_heads": 4, "intermediate_size": 192}
    quiet = {"vocab_size": 128, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    ids, weights, kept = torch.zeros(1, 64, dtype=torch.long), [], []
    for groups in (1, 12):
        net = AutoModel.from_config(AlbertConfig(**sizes, **quiet, num_hidden_groups=groups)).train()
        step = measure.step(partial(squared, net, ids), net, warmup=0)
        weights.append(sum(weight.numel() for weight in net.encoder.parameters()))
        kept.append(step.saved_bytes)
    assert weights[1] > 10 * weights[0]
    assert kept[1] == kept[0]


def squared(net, ids):
    net(ids).last_hidden_state.square().mean().backward()


def codes_of(net) -> torch.Tensor:
    """The NF4 codes of all linear layers, two to a byte."""
    layers = q.dense_linears(net).values()
    return torch.cat([q.NF4Tensor.of(each.weight.detach(), double_quant=False).packed for each in layers])


@pytest.mark.parametrize(("rate", "changes"), [(2e-4, False), (2e-2, True)])
def test_an_update_is_smaller_than_the_step_between_two_levels(rate, changes):
    net, ids = load().model, torch.tensor([language.training_documents(1, 256, seed=1)[0].ids])
    weights = [each.weight for each in q.dense_linears(net).values()]
    with torch.no_grad():
        for weight in weights:
            weight.copy_(q.NF4Tensor.of(weight.detach(), double_quant=False).dequantize())
    before, optimizer = codes_of(net), torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    net(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert torch.equal(codes_of(net), before) != changes
