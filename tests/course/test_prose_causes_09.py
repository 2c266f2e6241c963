"""The causes and the traps that chapter 09 names, each beside its control, on real ranks.

What is tried is the chapter's own code, taken out of its cells. Those that a trace of the job decides are in
test_prose_traces_09.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.course.chapter_09 import ENGINES, SHARDERS, names


def small_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=96, use_cache=False))


def tokens():
    torch.manual_seed(1)
    return torch.randint(0, 96, (4, 24))


def alone(steps: int = 3) -> list[float]:
    model, ids, losses = small_model(), tokens(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def of_rank(source: str, name: str, steps: int = 3) -> list[float]:
    """On a rank: losses of an engine of the chapter's, under SGD, which sees a gradient that is too large."""
    import torch.distributed as dist

    model = small_model()
    runner = names(source)[name](model)
    runner.optimizer = torch.optim.SGD(runner.shards.values(), lr=0.5)
    ids, losses = tokens()[dist.get_rank() :][:1], []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        runner.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["Zero1", "Zero2", "Zero3"])
def test_the_chapters_engines_train_as_one_process_does_and_one_that_does_not_divide_is_seen(ranks4, name):
    mean = [sum(one) / 4 for one in zip(*ranks4.run(of_rank, ENGINES, name), strict=True)]
    assert mean == pytest.approx(alone(), abs=1e-4)
    wrong = ENGINES.replace(" / self.ranks", "")
    assert wrong != ENGINES
    mean = [sum(one) / 4 for one in zip(*ranks4.run(of_rank, wrong, name), strict=True)]
    assert abs(mean[-1] - alone()[-1]) > 0.01


def alive_under_ddp(view: bool | None) -> list[int]:
    """On a rank: bytes alive after each step, and when the third backward pass has ended; None is without DDP."""
    from torch.nn.parallel import DistributedDataParallel

    from helpers.memory.meter import Meter

    found = []
    with Meter() as meter:
        model = small_model()
        wrapped = model if view is None else DistributedDataParallel(model, gradient_as_bucket_view=view)
        optimizer, ids = torch.optim.AdamW(model.parameters()), tokens()
        for step in range(3):
            wrapped(input_ids=ids, labels=ids).loss.backward()
            if step < 2:
                optimizer.step()
                optimizer.zero_grad()
            found.append(sum(event.sign * event.block.size_bytes for event in meter.events))
    return found


def test_ddp_keeps_a_second_copy_of_the_gradients_unless_they_live_in_its_buckets(ranks4):
    copy = 4 * sum(weight.numel() for weight in small_model().parameters())
    found = {view: ranks4.run(alive_under_ddp, view)[0] for view in (None, False, True)}
    plain, apart, inside = (found[view][-1] for view in (None, False, True))
    assert apart - plain == pytest.approx(copy, rel=0.02)
    assert inside == pytest.approx(plain, rel=0.02)
    between, freed = found[True][1], found[None][1]  # steps: there the gradients are in buckets, and here they are gone
    assert between - freed == pytest.approx(copy, rel=0.02)


def reduced_by_ddp(no_sync: bool) -> int:
    """On a rank: what DDP's all-reduces of four micro-batches carry, without its buffers."""
    from contextlib import nullcontext

    from torch.nn.parallel import DistributedDataParallel

    sent = 0

    def counted(state, bucket):
        nonlocal sent
        sent += bucket.buffer().nbytes
        return allreduce_hook(state, bucket)

    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    wrapped, ids = DistributedDataParallel(small_model()), tokens()
    wrapped.register_comm_hook(None, counted)
    for at in range(4):
        with wrapped.no_sync() if no_sync and at < 3 else nullcontext():
            wrapped(input_ids=ids, labels=ids).loss.backward()
    return sent


def test_ddp_reduces_in_every_micro_batch_but_under_no_sync(ranks4):
    weights = 4 * sum(weight.numel() for weight in small_model().parameters())
    assert [ranks4.run(reduced_by_ddp, no_sync)[0] for no_sync in (False, True)] == [4 * weights, weights]


def reduced_by_hsdp(once: bool) -> dict[str, int]:
    """On a rank of two copies: what each kind of collective carries in a step of four micro-batches."""
    from collections import Counter

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from helpers.memory.measure.ranks import Collectives

    model, ids, found = small_model(), tokens(), Counter()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for unit in (*model.model.layers, model):
        fully_shard(unit, mesh=mesh)
    with Collectives() as counted:
        for at in range(4):
            model.set_requires_all_reduce(not once or at == 3)
            model(input_ids=ids, labels=ids).loss.backward()
    for call in counted.calls:
        found[call.kind] += call.payload_bytes
    return dict(found)


def test_hybrid_sharding_reduces_between_its_copies_once_if_it_is_told_to(ranks4):
    each, once = (ranks4.run(reduced_by_hsdp, once)[0] for once in (False, True))
    assert each["all_reduce"] == 4 * once["all_reduce"] > 0
    assert each["reduce_scatter"] == once["reduce_scatter"]


def fsdp2(source: str, how: str, steps: int = 2) -> tuple[list[int], list[float]]:
    """On a rank: payloads of the all-gathers of a step, and losses."""
    from torch.distributed.fsdp import fully_shard

    from helpers.memory.measure.ranks import Collectives

    there, model = names(source), small_model()
    layers = list(model.model.layers)
    match how:
        case "model":
            fully_shard(model)
        case "layers":
            there["by_layer"](model)
        case "policy":
            there["by_layer"](model, mp_policy=there["policy"])
        case "kept":
            there["by_layer"](model, reshard_after_forward=False)
        case "as accelerate":
            there["as_accelerate"](model)
        case "prefetch":
            there["by_layer"](model)
            for at, layer in enumerate(layers):
                layer.set_modules_to_forward_prefetch(layers[at + 1 : at + 3])
    optimizer, losses, ids = torch.optim.AdamW(model.parameters(), lr=1e-2), [], tokens()
    for _ in range(steps):
        with Collectives() as counted:
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [call.payload_bytes for call in counted.calls if call.kind == "all_gather"], losses


def test_what_is_wrapped_is_gathered_and_the_policy_halves_it(ranks4):
    found = {how: ranks4.run(fsdp2, SHARDERS, how)[0] for how in ("model", "layers", "policy", "kept")}
    weights = 4 * sum(weight.numel() for weight in small_model().parameters())
    layer = 4 * sum(weight.numel() for weight in small_model().model.layers[0].parameters())
    gathers = {how: sizes for how, (sizes, _) in found.items()}
    assert gathers["model"] == [weights]
    assert sorted(gathers["layers"]) == sorted([layer] * 6 + [weights - 3 * layer])
    assert sum(gathers["policy"]) == sum(gathers["layers"]) / 2
    assert sorted(gathers["kept"]) == sorted([layer] * 3 + [weights - 3 * layer])


def test_each_of_the_chapters_lines_trains_the_same(ranks4):
    losses = {how: ranks4.run(fsdp2, SHARDERS, how)[0][1] for how in ("model", "layers", "as accelerate", "prefetch")}
    for how, found in losses.items():
        assert found == pytest.approx(losses["model"], abs=1e-4), how
    in_bf16 = ranks4.run(fsdp2, SHARDERS, "policy")[0][1]
    assert in_bf16 == pytest.approx(losses["model"], abs=0.05)


def without_root(root: bool, **how: Any) -> torch.Tensor:
    """On a rank: its head after a step on a text of its own, where the model was wrapped last or was not."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model, ids = small_model(), tokens()[dist.get_rank() :][:1]
    for layer in model.model.layers:
        fully_shard(layer)
    if root:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **how)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    head = model.lm_head.weight.detach()
    return head.full_tensor() if root else head


def test_a_model_that_is_not_wrapped_itself_stops_adamw_or_drifts_apart_in_silence(ranks4):
    from helpers.lesson.ranks import RankError

    with pytest.raises(RankError, match=r"mixed torch\.Tensor and DTensor"):
        ranks4.run(without_root, False, fused=True)
    first, second, *_ = ranks4.run(without_root, False, foreach=False)
    assert not torch.equal(first, second)
    first, second, *_ = ranks4.run(without_root, True, foreach=False)
    assert torch.equal(first, second)


def learned(after: bool) -> float:
    """On a rank: how far three steps move the loss, the optimizer made after the sharding or before it."""
    from torch.distributed.fsdp import fully_shard

    model, ids, losses = small_model(), tokens(), []
    early = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if after else early
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
    return abs(losses[-1] - losses[0])


def test_an_optimizer_made_before_the_sharding_trains_nothing(ranks4):
    assert ranks4.run(learned, False)[0] == 0
    assert ranks4.run(learned, True)[0] > 0.1


def accelerates_units() -> list[tuple[int, bool]]:
    """On a rank: weights of each unit that accelerate makes, and whether it is given back after the forward."""
    from types import SimpleNamespace

    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import FSDPModule

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False,
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"], reshard_after_forward=True,
    )  # fmt: skip
    state = SimpleNamespace(fsdp_plugin=plugin)
    accelerator = SimpleNamespace(state=state, mixed_precision="no", is_main_process=True, device=torch.device("cpu"))
    model = fsdp2_prepare_model(accelerator, small_model())
    units = [one._get_fsdp_state()._fsdp_param_group for one in model.modules() if isinstance(one, FSDPModule)]
    found = {id(unit): unit for unit in units if unit}
    return [(len(unit.fsdp_params), unit._reshard_after_forward) for unit in found.values()]


def test_accelerate_makes_units_of_embedding_and_of_norm_with_head(ranks4):
    units = ranks4.run(accelerates_units)[0]
    assert sorted(units) == sorted([(9, True)] * 3 + [(1, True), (2, False)])
