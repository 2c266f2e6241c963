"""Messages of real failures, read and judged; and the tracebacks above them."""

import traceback

import pytest
import torch

from helpers.memory import measure
from helpers.memory.allocator import MIB
from helpers.memory.oom import MessageKind, Reason, RequestPlace, clean, explain, frames, parse, place
from helpers.memory.oom.frames import PATTERNS, TEXTS
from helpers.memory.oom.words import cures_at, kinds

from .oom_messages import ME, REAL, now

GIB = 2**30


@pytest.mark.parametrize(("text", "reason", "says"), REAL.values(), ids=REAL)
def test_a_real_message_gets_its_reason(text, reason, says):
    explained = explain(text)
    assert explained.reason == reason, str(explained)
    assert says in str(explained)
    assert explained.changes
    assert explained.following == 0, "one message was counted twice"


def test_every_kind_and_reason_has_a_message():
    explained = {explain(text).reason for text, _, _ in REAL.values()}
    assert explained == set(Reason)
    shown = {parse(text).kind for text, _, _ in REAL.values()}
    assert shown | {name for name, kind in kinds().items() if kind.log} == set(kinds()) > set(MessageKind)


def test_all_the_figures_of_one_message():
    oom = parse(REAL["2.6, a fraction"][0])
    assert (oom.device, oom.requested_bytes, oom.holders[0].pid) == (0, 996 * MIB, 2102129)
    gib = {"capacity": 44.43, "free": 9.06, "allocated": 17.44, "process": 17.81, "allowed": 17.69}
    assert {name: getattr(oom, f"{name}_bytes") for name in gib} == {name: round(x * GIB) for name, x in gib.items()}
    assert oom.cached_bytes == round(59.88 * MIB)
    assert oom.outside_bytes == oom.capacity_bytes - oom.free_bytes - oom.allocated_bytes - oom.cached_bytes


def test_a_host_message_keeps_the_size_of_an_overflow():
    host = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4611686018427387904bytes."
    assert parse(host).requested_bytes == 2**62
    assert "A tensor of 4,294,967,296.00 GiB did not fit" in explain(host).why.sentence


def test_the_misspelt_capacity_of_torch_2_1_is_read_and_more_than_a_card_is_no_remainder():
    assert parse(REAL["2.1, capacty"][0]).capacity_bytes == 4 * GIB
    swapped = parse(REAL["1.13, swapped by Windows"][0])
    assert swapped.reserved_bytes > swapped.capacity_bytes
    assert swapped.outside_bytes is None


def test_private_pools_are_read_and_what_the_driver_does_not_know_is_none():
    text = now("2.00 MiB", "22.28 GiB", "0 bytes", "20.60 GiB", "0 bytes", ME.format("17179869184.00 GiB"))
    text = text.replace("by PyTorch, and", "by PyTorch, with 199.88 MiB allocated in private pools (CUDA Graphs), and")
    oom = parse(text)
    assert (oom.private_bytes, oom.process_bytes, oom.free_bytes, oom.cached_bytes) == (round(199.88 * MIB), None, 0, 0)
    assert "segment that serves tensors up to 1 MiB" in str(explain(text))


def test_what_the_message_does_not_say_is_not_shown():
    explained = explain("torch.cuda.OutOfMemoryError: CUDA out of memory.")
    assert explained.rows == ()
    assert explained.place == ""
    assert explained.frame is None


def test_wrapped_coloured_and_framed_text_reads_the_same():
    plain = REAL["2.5, cached in pieces"][0]
    coloured = plain.replace("1.66 GiB", "\x1b[1m1.66\x1b[0m GiB")
    assert parse(coloured).free_bytes == round(1.66 * GIB)
    wrapped = plain.replace(" GPU 0", "\r\nGPU 0").replace("Including", "\nIncluding").replace("Of the", "\nOf  the")
    assert parse(f"\x1b[31m{wrapped}\x1b[0m").free_bytes == parse(plain).free_bytes == round(1.66 * GIB)
    boxed = "\n".join(f"│ {line:<100} │" for line in wrapped.replace("\r", "").split("\n"))
    assert parse(boxed).cached_bytes == parse(plain).cached_bytes


def test_the_first_of_several_is_explained_and_the_rest_counted():
    first, second = REAL["2.6, a fraction"][0], REAL["1.12, full"][0]
    explained = explain(f"{first}\n\nsome\n\n{second}\n\n{second}")
    assert explained.reason == "capped"
    assert "2 more such messages follow" in str(explained)
    assert "inside an `except`" not in str(explained)


def test_two_messages_on_one_line_do_not_mix():
    oom = parse("CUDA out of memory. CUDA out of memory. Tried to allocate 2.00 GiB")
    assert oom.requested_bytes is None
    assert oom.following == 1


def test_a_retry_in_the_except_is_named_first():
    once = REAL["2.1, a little too much"][0]
    explained = explain(f"{once}\n\nDuring handling of the above exception, another exception occurred:\n\n{once}")
    assert "retry outside the `except`" in explained.changes[0].do


LIBRARY = "/venv/lib/python3.12/site-packages"
NN, LLAMA = f"{LIBRARY}/torch/nn/modules", f"{LIBRARY}/transformers/models/llama/modeling_llama.py"
OOM = REAL["2.1, a little too much"][0]


def traceback_of(*lines, begin="Traceback (most recent call last):", prefix=""):
    """A standard traceback: (path, line, function, code) each, and a failure below."""
    text = [begin]
    for path, number, function, code in lines:
        text += [f'  File "{path}", line {number}, in {function}', f"    {code}", "    ^^^^^^"]
    return "\n".join(prefix + line for line in [*text, OOM])


MINE = ("/srv/job/train.py", 31, "step", "x = model(batch)")
WHERE = {
    "the backward pass": [(*MINE[:3], "loss.backward()"), (f"{LIBRARY}/torch/_tensor.py", 624, "backward", "torch.")],
    "recomputation": [
        (*MINE[:3], "loss.backward()"),
        (f"{LIBRARY}/torch/utils/checkpoint.py", 29, "unpack_hook", ""),
        (f"{NN}/linear.py", 125, "forward", "return F.linear("),
    ],
    "the optimizer step": [(*MINE[:3], "opt.step()"), (f"{LIBRARY}/torch/optim/adamw.py", 220, "step", "adamw(")],
    "loading weights": [
        (*MINE[:3], "model.to('cuda')"),
        (f"{NN}/module.py", 1369, "to", "return self"),
        (f"{NN}/module.py", 1355, "convert", "return t.to("),
    ],
    "logits and loss": [
        MINE,
        (LLAMA, 820, "forward", "logits = self.lm_head("),
        (f"{NN}/module.py", 1775, "_call_impl", "return forward_call("),
        (f"{NN}/linear.py", 125, "forward", "return F.linear("),
    ],
    "attention scores": [MINE, (LLAMA, 199, "eager_attention_forward", "attn_weights = nn.functional.softmax(")],
    "the KV cache": [MINE, (f"{LIBRARY}/transformers/cache_utils.py", 119, "update", "self.keys = torch.cat([")],
    "predictions that are kept": [
        ("/srv/job/train.py", 8, "evaluate", "trainer.evaluate()"),
        (f"{LIBRARY}/transformers/trainer_pt_utils.py", 88, "torch_pad_and_concatenate", "result = tensor1.new_full("),
    ],
    "joining tensors": [("/srv/job/train.py", 8, "collect", "everything = torch.cat(outputs)")],
    "the forward pass": [MINE, (f"{NN}/conv.py", 540, "_conv_forward", "return F.conv2d(")],
    "": [("/srv/job/train.py", 8, "main", "x = a @ b")],
}


@pytest.mark.parametrize(("kind", "stack"), WHERE.items(), ids=[kind or "anywhere" for kind in WHERE])
def test_the_place_and_the_users_line(kind, stack):
    explained = explain("epoch 1\n" + traceback_of(*stack))
    path, line, function, code = stack[0]
    assert explained.place == kind
    assert (explained.frame.path, explained.frame.line, explained.frame.code) == (path, line, code)
    assert f"train.py:{line} in {function}" in str(explained)


def test_every_place_has_a_traceback_words_and_changes():
    assert set(PATTERNS) == set(WHERE) - {""} == set(TEXTS)
    assert {place.name.lower() for place in RequestPlace} == set(cures_at())
    assert set(RequestPlace) == {*PATTERNS, RequestPlace.UNKNOWN}


def test_the_deepest_line_that_is_the_users():
    stack = [
        ("/srv/job/main.py", 3, "<module>", "fit()"),
        ("/srv/job/nets.py", 9, "forward", "y = self.inner(x)"),
        (f"{NN}/linear.py", 125, "forward", "return F.linear("),
    ]
    assert str(explain(traceback_of(*stack)).frame) == "nets.py:9 in forward"


@pytest.mark.parametrize(
    ("functions", "advised"),
    [
        (["train_step"], False),
        (["Trainer.train", "_inner_training_loop", "compute_loss"], False),
        (["train_epoch", "validate"], True),
        (["Trainer.train", "evaluation_loop", "prediction_step"], True),
        (["main"], True),
        (["apply_constraint"], True),
        (["pretrain_values"], True),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_helps_evaluation_is_not_advised_to_a_step_that_trains(functions, advised):
    text = traceback_of(*(("/srv/job/run.py", 8, function, "y = f(x)") for function in functions))
    for message in (text, text.replace(OOM, REAL["2.5, cached in pieces"][0])):
        changes = [change.do for change in explain(message).changes]
        assert any(change.startswith("if this is evaluation") for change in changes) == advised, changes
        assert changes


def test_a_rank_reads_its_own_lines_among_those_of_others():
    mine = traceback_of(*WHERE["the KV cache"], prefix="[rank1]: ").split("\n")
    other = traceback_of(*WHERE["the optimizer step"], prefix="[rank0]: ").split("\n")[:-1]
    mixed = "\n".join(line for pair in zip(mine, [*other, *[""] * len(mine)], strict=False) for line in pair if line)
    assert explain(mixed).place == "the KV cache"


def test_a_failure_of_our_own_cap_is_traced_to_the_users_line():
    head = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(64, 4096)})
    try:
        with measure.capped(0.001):
            head.lm_head(torch.ones(128, 64))
    except torch.OutOfMemoryError:
        explained = explain(traceback.format_exc())
    assert (explained.reason, explained.place) == ("capped", "logits and loss")
    assert explained.frame.code == "head.lm_head(torch.ones(128, 64))"


NOTEBOOK = f"""---------------------------------------------------------------------------
OutOfMemoryError                          Traceback (most recent call last)
Cell In[5], line 3
      1 model.train()
      2 for batch in batches:
----> 3     loss = model(**batch).loss

File {LIBRARY}/torch/nn/modules/module.py:1751, in Module._wrapped_call_impl(self, *args, **kwargs)
   1749     return self._compiled_call_impl(*args, **kwargs)
-> 1751     return self._call_impl(*args, **kwargs)

{OOM}"""
OLD_NOTEBOOK = f"""OutOfMemoryError                          Traceback (most recent call last)
<ipython-input-5-a2a7f14f2b5a> in <module>()
     27 loss = criterion(output, labels_)
---> 28 loss.backward()

/usr/local/lib/python3.10/dist-packages/torch/_tensor.py in backward(self, gradient)
--> 487 torch.autograd.backward(

{OOM}"""
RICH = f"""╭───────── Traceback (most recent call last) ─────────╮
│ C:\\jobs\\train.py:290 in run                           │
│                                                      │
│   289 │   if ready:                                  │
│ ❱ 290 │   │   optimizer.step()                       │
╰──────────────────────────────────────────────────────╯
{OOM}"""


@pytest.mark.parametrize(
    ("text", "line", "code", "kind"),
    [
        (NOTEBOOK, 3, "loss = model(**batch).loss", "the forward pass"),
        (OLD_NOTEBOOK, 28, "loss.backward()", "the backward pass"),
        (RICH, 290, "optimizer.step()", "the optimizer step"),
    ],
    ids=["IPython", "older IPython", "rich"],
)
def test_tracebacks_of_notebooks_and_of_rich(text, line, code, kind):
    explained = explain(text)
    assert (explained.frame.line, explained.frame.code, explained.place) == (line, code, kind)


def test_a_traceback_of_something_else_before_it_is_not_taken():
    other = traceback_of(*WHERE["the KV cache"]).replace(OOM, "KeyError: 'x'\n")
    text = other + traceback_of(*WHERE["joining tensors"])
    assert explain(text).place == "joining tensors"
    assert frames(OOM, 0) == ()
    assert place(()) == ""


def test_clean_is_done_when_it_is_done():
    text = clean(f"\x1b[1m{RICH}\x1b[0m")
    assert clean(text) == text
    assert "\x1b" not in text


def test_a_long_log_is_read_in_no_time():
    """Patterns that try every start of a line again would take minutes here."""
    noise = "step 1 loss 2.30 | lr 1e-4 | 3.2 GiB | KilledX not\n" * 40_000
    assert parse(noise + OOM).requested_bytes == 2 * GIB


def test_of_fragments_at_the_logits_the_allocator_is_asked_first():
    """Both help, and expandable segments cost nothing to try."""
    found = explain(
        f"""  File "{LIBRARY}/transformers/loss/loss_utils.py", line 50, in ForCausalLMLoss
    logits = logits.float()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 23.65 GiB of \
which 1.44 GiB is free. Of the allocated memory 15.84 GiB is allocated by PyTorch, and 5.91 GiB is reserved by PyTorch \
but unallocated."""
    )
    assert (found.reason, found.place) == ("fragmented", "logits and loss")
    first, second, *_ = found.changes
    assert "expandable_segments" in first.do
    assert second.do.startswith("compute the loss in chunks")


def test_predictions_that_are_kept_are_cured_before_the_allocator_is():
    """The figures of huggingface/transformers#26702: Trainer evaluates with compute_metrics on a 40 GB card."""
    found = explain(
        f"""{LIBRARY}/transformers/trainer_pt_utils.py in torch_pad_and_concatenate(tensor1, tensor2, padding_index)
---> 88     result = tensor1.new_full(new_shape, padding_index)
OutOfMemoryError: CUDA out of memory. Tried to allocate 12.94 GiB (GPU 0; 39.56 GiB total capacity; 18.33 GiB already \
allocated; 12.29 GiB free; 25.71 GiB reserved in total by PyTorch)"""
    )
    assert found.place == "predictions that are kept"
    first, second, third, *_ = found.changes
    assert first.do.startswith("preprocess_logits_for_metrics=")
    assert second.do.startswith("eval_accumulation_steps=1")
    assert "expandable_segments" in third.do
