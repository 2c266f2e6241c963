"""Changes that make a setup fit: each is recomputed, and none is superfluous."""

from dataclasses import replace

import pytest

from helpers.catalog import DEVICES, ServeSetup, TrainSetup, WorkbookError, device, model
from helpers.catalog.devices import OFFERED
from helpers.catalog.split import Split
from helpers.lesson.calculators import serving_answer, training_answer
from helpers.memory.fit import Fit, Room, changes, format_fits, peak_bytes
from helpers.memory.fit.offers import PRICE_CLASSES, larger_devices
from helpers.memory.fit.room import HOLES_PERCENT

DOES_NOT_FIT = [
    (TrainSetup("llama-2-7b"), "h100-80gb"),
    (TrainSetup("llama-3.2-1b", micro_batch=4), "rtx-4090-24gb"),
    (TrainSetup("gpt2", sequence=1024, micro_batch=32), "t4-16gb"),
    (TrainSetup("llama-2-70b"), "h100-80gb"),
    (TrainSetup("llama-3-8b", split=Split(4, zero=1), checkpointing="full"), "rtx-4090-24gb"),
    (ServeSetup("llama-2-70b", users=8, context=4096), "h100-80gb"),
    (ServeSetup("llama-3-8b", users=64, context=8192), "rtx-4090-24gb"),
    (ServeSetup("llama-3-8b", users=8, context=131072), "h100-80gb"),
]


def recomputed(setup, fit: Fit) -> int:
    return peak_bytes(replace(setup, **fit.fields), fit.device or None)


@pytest.mark.parametrize(("setup", "gpu"), DOES_NOT_FIT, ids=lambda value: getattr(value, "model", value))
def test_every_change_fits_when_it_is_computed_again(setup, gpu):
    capacity_bytes = device(gpu).capacity_bytes
    offers = list(changes(setup, capacity_bytes))
    assert offers
    for fit in offers:
        assert fit.peak_bytes == recomputed(setup, fit)
        assert fit.peak_bytes <= (device(fit.device).capacity_bytes if fit.device else capacity_bytes)
        assert fit.costs
        assert fit.flags in format_fits(setup, capacity_bytes)


@pytest.mark.parametrize(("setup", "gpu"), DOES_NOT_FIT, ids=lambda value: getattr(value, "model", value))
def test_no_change_contains_one_that_suffices(setup, gpu):
    offers = (fit for fit in changes(setup, device(gpu).capacity_bytes) if not fit.device)
    fields = [fit.fields.items() for fit in offers if "adapter" not in fit.fields]  # which train something else
    assert not [(part, whole) for part in fields for whole in fields if part < whole]


def test_the_batch_stays_what_it_was():
    setup = TrainSetup("gpt2", sequence=1024, micro_batch=32)
    fit = next(changes(setup, device("t4").capacity_bytes))
    assert fit.change == "micro-batch 8 × 4 accumulated passes"
    assert (fit.fields, fit.flags) == ({"micro_batch": 8, "micro_batches": 4}, "--micro-batch 8 --accumulate 4")
    larger = replace(setup, micro_batch=16, micro_batches=2)
    assert peak_bytes(larger) > device("t4").capacity_bytes, "16 would fit as well"


def test_what_accumulates_already_accumulates_more():
    setup = TrainSetup("gpt2", sequence=1024, micro_batch=32, micro_batches=2)
    fit = next(changes(setup, device("t4").capacity_bytes))
    assert fit.fields["micro_batch"] * fit.fields["micro_batches"] == 64


def test_zero_takes_the_fewest_ranks_and_says_what_else_it_needs():
    """Autocast's BF16 copies of 70B weights are on every rank: no number of ranks suffices before they are gone."""
    setup, room = TrainSetup("llama-2-70b"), device("h100").capacity_bytes
    fit = list(changes(setup, room))[-1]
    split = fit.fields["split"]
    assert (split.zero, fit.fields["precision"], fit.fields["checkpointing"]) == (3, "megatron-bf16", "full")
    assert peak_bytes(replace(setup, **{**fit.fields, "split": Split(split.ranks // 2, zero=3)})) > room
    sharded = replace(setup, split=Split(1024, zero=3), checkpointing="full")
    assert peak_bytes(sharded) > room


def test_ranks_of_fsdp2_are_doubled_as_they_are():
    setup = TrainSetup("llama-3.1-70b", optimizer="adamw-fused", checkpointing="full", split=Split(fsdp=8))
    fit = next(fit for fit in changes(setup, device("h100").capacity_bytes) if "split" in fit.fields)
    ranks = fit.fields["split"].fsdp
    assert fit.fields["split"] == Split(fsdp=ranks)
    assert (fit.change, fit.flags) == (f"FSDP2 over {ranks} ranks", f"--fsdp {ranks}")
    assert fit.figures["fields"] == {"fsdp": ranks}
    half = replace(setup, split=Split(fsdp=ranks // 2))
    assert (
        peak_bytes(half) > device("h100").capacity_bytes >= fit.peak_bytes == peak_bytes(replace(setup, **fit.fields))
    )


def test_ranks_that_are_there_are_sharded_fully_before_more_are_asked_for():
    setup = TrainSetup(
        "llama-2-7b", split=Split(8, zero=1), checkpointing="full", optimizer="adamw-8bit", precision="bf16"
    )
    room = peak_bytes(replace(setup, split=Split(8, zero=3)))
    assert next(changes(setup, room)).fields == {"split": Split(8, zero=3)}


@pytest.mark.parametrize(
    ("setup", "gpu", "methods"),
    [
        (TrainSetup("llama-3-8b"), "rtx-4090", ["LoRA", "QLoRA"]),
        (TrainSetup("llama-3-8b", split=Split(zero=3)), "rtx-4090", ["LoRA", "QLoRA"]),
        (TrainSetup("gpt2", sequence=1024, micro_batch=64), "rtx-4090", []),  # which has no q_proj
        (TrainSetup("llama-2-70b"), "h100", ["QLoRA"]),
        (TrainSetup("llama-3-8b", in_backward=True), "rtx-4090", []),
    ],
)
def test_adapters_come_before_more_cards_and_say_what_they_train(setup, gpu, methods):
    room = Room(device(gpu))
    offers = list(changes(setup, room.for_tensors_bytes, gpu))
    adapters = [fit for fit in offers if "adapter" in fit.fields]
    assert [fit.change.partition(" ")[0] for fit in adapters] == methods
    assert all("trains an adapter, not every weight" in fit.costs for fit in adapters)
    assert all("--lora-rank 16" in fit.flags for fit in adapters)
    cards = [at for at, fit in enumerate(offers) if "ZeRO-3" in fit.change or fit.device]
    assert all(offers.index(fit) < min(cards, default=99) for fit in adapters)
    cheapest = (
        training_answer(setup, gpu).sentence.partition("The cheapest change that fits: ")[2].partition(" The next")[0]
    )
    assert ("trains an adapter, not every weight" in cheapest) == (offers[0] in adapters)


def test_most_users_and_longest_context_are_the_most():
    setup, room = ServeSetup("llama-3-8b", users=64, context=8192), device("rtx-4090").capacity_bytes
    offers = list(changes(setup, room))
    found = {name: fit.fields[name] for fit in offers for name in ("users", "context") if name in fit.fields}
    assert set(found) == {"users", "context"}
    for name, most in found.items():
        assert peak_bytes(replace(setup, **{name: most})) <= room < peak_bytes(replace(setup, **{name: most + 1}))


def test_when_the_weights_alone_are_too_large_no_fewer_users_are_offered():
    offers = list(changes(ServeSetup("llama-3-8b", users=4), device("t4").capacity_bytes))
    assert {"weights"} == {name for fit in offers if not fit.device for name in fit.fields}


@pytest.mark.parametrize("need_gib", [20, 70, 100])
def test_larger_devices_are_dearer_and_larger_and_hold_it(need_gib):
    found = [DEVICES[fit.device] for fit in larger_devices(need_gib * 2**30, 16 * 2**30)]
    capacities = [gpu.capacity_bytes for gpu in found]
    assert capacities == sorted(set(capacities))
    classes = [PRICE_CLASSES.index(gpu.price_class.value) for gpu in found]
    assert classes == sorted(set(classes))
    assert capacities[0] >= need_gib * 2**30
    assert not any(gpu.unified for gpu in found)
    assert {gpu.price_class.value for gpu in OFFERED} <= set(PRICE_CLASSES), "a class without a rank"


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-40gb"])
def test_what_is_loaded_in_bf16_is_counted_so_on_each_card(gpu):
    setup, card = ServeSetup("qwen3-32b", "fp8-e4m3", context=8192), device(gpu)
    offers = [fit for fit in changes(setup, card.capacity_bytes, card) if fit.device]
    assert offers
    for fit in offers:
        assert serving_answer(setup, fit.device).predicted.peak_bytes == fit.peak_bytes
        assert fit.peak_bytes <= device(fit.device).capacity_bytes


def test_what_fits_already_needs_nothing():
    setup = TrainSetup("gpt2", sequence=128)
    assert not list(changes(setup, peak_bytes(setup)))
    assert format_fits(setup, peak_bytes(setup) + 2**30) == "Fits already, with 1.00 GiB to spare."
    assert list(changes(setup, peak_bytes(setup) - 1)), "one byte too much"


def test_nothing_fits_a_thimble():
    assert format_fits(TrainSetup("llama-2-70b"), 2**20, []).endswith("offload it, or split the model over GPUs.")


def test_the_list_of_a_step_ends_with_what_holes_can_take():
    assert f"can take {HOLES_PERCENT} %" in format_fits(TrainSetup("llama-2-7b"), 40 * 2**30)
    assert "Holes" not in format_fits(ServeSetup("llama-2-7b", users=64), 40 * 2**30)


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "24", None])
def test_a_capacity_that_is_none(capacity):
    with pytest.raises(WorkbookError, match="capacity"):
        list(changes(TrainSetup("gpt2", sequence=128), capacity))


def test_a_model_without_a_closed_form_is_refused():
    with pytest.raises(WorkbookError, match="no closed form"):
        list(changes(TrainSetup("mixtral-8x7b", checkpointing="offload"), 2**40))


def test_no_change_is_offered_that_the_card_has_no_kernel_for():
    """Pure BF16 would fit, but a T4 has no attention kernel for it, and its scores are written out."""
    config = {**model("gpt2").config, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2}
    setup = TrainSetup(config, "fp32", "sgd", sequence=1024, checkpointing="full")
    room = peak_bytes(replace(setup, precision="bf16"))
    offered = {gpu: [fit.fields.get("precision") for fit in changes(setup, room, gpu)] for gpu in ("a100", "t4")}
    assert "bf16" in offered["a100"]
    assert "bf16" not in offered["t4"]
