"""messages.toml: each kind of message with an example, each cure with its source; and texts that are no message."""

import inspect
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device
from helpers.memory.oom import Reason, explain, parse, with_setup
from helpers.memory.oom.words import cures, cures_at, engines, kinds, patterns

from .corpus.cases import CASES
from .no_messages import NO_MESSAGES
from .oom_messages import REAL

WITH_A_LOG = [kind for kind in kinds().values() if kind.log]
CHOOSE, EXPLAIN = (sys.modules[f"helpers.memory.oom.{name}"] for name in ("cures", "explain"))
NAMED = re.compile(r"--[a-z]|\b[A-Z][A-Za-z]*_\w+=|\b[a-z]+(?:_[a-z0-9]+)+\b|\b\w+\.\w+\(|sysctl")


@pytest.mark.parametrize("kind", WITH_A_LOG, ids=lambda kind: kind.name)
def test_an_example_is_of_its_kind_and_is_explained(kind):
    explained = explain(kind.log)
    assert parse(kind.log).kind == kind.name
    assert explained.reason == kind.reason
    assert [change.do for change in explained.changes] == [cures()[name].do for name in kind.cures[:5]]


LINES = tomllib.loads(Path(__file__).with_name("lines.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines], ids=lambda text: text[:40]
)
def test_a_line_of_another_program_is_read_as_its_kind(kind, line):
    assert parse(line).kind == kind
    assert explain(line).changes


def test_every_word_has_a_text_that_holds_it():
    texts = [kind.log for kind in kinds().values()] + [text for text, _, _ in REAL.values()]
    texts += [case.text for case in CASES] + [line for lines in LINES.values() for line in lines]
    assert [words.pattern for _, _, words in patterns() if not any(map(words.search, texts))] == []


def test_every_sentence_with_sizes_is_seen_with_them():
    unseen = {kind.name for kind in WITH_A_LOG if kind.sentence and explain(kind.log).why.sentence == kind.plain}
    assert unseen == {"metal", "tensorflow", "ray", "page file", "ggml device"}  # examples without sizes


def test_every_name_leads_to_a_cure_and_every_cure_is_named():
    named = {name for kind in kinds().values() for name in kind.cures}
    named |= {name for names in cures_at().values() for name in names} | {n for one in engines() for n in one.cures}
    code = "".join(inspect.getsource(module) for module in (CHOOSE, EXPLAIN))
    assert named | {name for name in cures() if f'"{name}"' in code} == set(cures())


def test_each_cure_that_names_a_flag_a_variable_or_a_function_has_a_source_and_a_version():
    assert {name for name, one in cures().items() if NAMED.search(one.do) and not (one.source and one.seen)} == set()
    assert all(map(NAMED.search, ("--ubatch-size 256", "pin_memory=False", "RAY_memory_x=1", "torch.cat(")))
    assert not NAMED.search("a smaller micro-batch, accumulated to the same batch")


@pytest.mark.parametrize("text", NO_MESSAGES, ids=lambda text: text[:40])
def test_a_text_that_is_no_message_is_not_explained_as_one(text):
    with pytest.raises(WorkbookError, match="there is no out-of-memory message"):
        parse(text)


def test_two_hundred_such_texts():
    assert len({*NO_MESSAGES}) == len(NO_MESSAGES) >= 200


SERVER = (
    "INFO 09-12 08:14:02 [gpu_model_runner.py:2653] Graph capturing finished in 41 secs, took 2.31 GiB\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 213.44 MiB is free. Of the allocated memory 75.61 GiB is allocated by PyTorch, and 811.25 MiB is "
    "reserved by PyTorch but unallocated."
)


def test_a_server_gets_its_own_knobs_and_a_trainer_beside_it_does_not():
    knobs = " ".join(change.do for change in explain(SERVER).changes)
    assert "max_num_seqs" in knobs
    assert "gradient_checkpointing" not in knobs
    traceback = 'Traceback (most recent call last):\n  File "/srv/train.py", line 9, in train\n    loss.backward()\n'
    trained = " ".join(change.do for change in explain(SERVER.replace("torch.Out", traceback + "torch.Out")).changes)
    assert "gradient_checkpointing" in trained
    assert "max_num_seqs" not in trained


def test_a_message_that_a_retry_follows_was_survived():
    text = SERVER + "\nRetrying with batch_size=8\nstep 1 loss 2.1\nKilled process 12 (python) anon-rss:1024kB"
    explained = explain(text)
    assert explained.reason == Reason.HOST
    assert "survived" in str(explained)
    assert explain(SERVER + "\nstep 7 loss 2.1\nKilled process 12 (python)").reason == Reason.FULL  # another rank's


def test_vllms_own_figures_are_added_up():
    text = (
        "Model loading took 65.9651 GiB and 12.79 seconds\nAvailable KV cache memory: -2.14 GiB\n"
        "ValueError: No available memory for the cache blocks."
    )
    assert "2.14 GiB are short" in str(explain(text))
    assert "65.97 GiB" in str(explain(text))


def test_ranks_that_share_a_card_are_told_so():
    held = "".join(f"Process {pid} has 1.20 GiB memory in use. " for pid in (520, 521, 523))
    line = (
        "[RANK {}] CUDA out of memory. Tried to allocate 48.00 MiB. GPU {} has a total capacity of 22.07 GiB of which "
    )
    rest = (
        "18.62 MiB is free. " + held + "Of the allocated memory 880.00 MiB is allocated by PyTorch, and 20.00 MiB is "
    )
    text = "\n".join(line.format(rank, 0) + rest + "reserved by PyTorch but unallocated." for rank in (2, 6))
    assert "Ranks 2 and 6 of the same job" in str(explain(text))
    apart = "\n".join(line.format(rank, rank) + rest + "reserved by PyTorch but unallocated." for rank in (2, 6))
    assert "same job" not in str(explain(apart))


def holding(*held, launcher):
    """Rank 0's message on a card that other processes are on: (process id, GiB) of each."""
    named = "".join(f"Process {pid} has {size:.2f} GiB memory in use. " for pid, size in held)
    return (
        f"{launcher}\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU 0 has a "
        f"total capacity of 23.65 GiB of which 31.38 MiB is free. {named}Including non-PyTorch memory, this process "
        "has 9.00 GiB memory in use. Of the allocated memory 8.50 GiB is allocated by PyTorch, and 20.00 MiB is "
        "reserved by PyTorch but unallocated."
    )


SIBLINGS = [(800, 1.2), (801, 1.2), (803, 1.21), (807, 1.2)]
APART = {
    "other sizes, far apart": ([(800, 1.2), (9001, 6.2), (20_000, 4.0)], "comm 0x5f rank 0 nranks 8"),
    "more than the job has": (SIBLINGS, "world_size=2 rank=0"),
    "no job": (SIBLINGS, "step 3 loss 2.5"),
}


@pytest.mark.parametrize(
    "launcher", ["comm 0x5f rank 0 nranks 8", "world_size=4", "torchrun --nproc-per-node=8 train.py"]
)
def test_processes_that_were_started_together_are_ranks(launcher):
    found = explain(holding(*SIBLINGS, launcher=launcher))
    assert "Processes 800 to 807" in str(found)
    assert "LOCAL_RANK" in found.changes[0].do


def test_processes_that_their_launcher_ends_are_ranks():
    far = [(800, 1.2), (9001, 6.2), (20_000, 4.0)]
    ended = "".join(f"\nSending process {pid} closing signal SIGTERM" for pid, _ in far)
    assert "Processes 800 to 20000" in str(explain(holding(*far, launcher="") + ended))


@pytest.mark.parametrize("words", APART)
def test_strangers_are_no_ranks(words):
    held, launcher = APART[words]
    assert "started together" not in str(explain(holding(*held, launcher=launcher)))


def test_one_sequence_that_is_too_long_is_told_what_fits():
    found = explain(
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.78 GiB). Based on the available memory, "
        "the estimated maximum model length is 41264."
    )
    assert "41,264 tokens fit" in str(found)
    assert "max_model_len" in found.changes[0].do


def test_the_loss_of_a_training_step_is_no_generation():
    text = (
        'Traceback (most recent call last):\n  File "/srv/models/modeling_x.py", line 9, in forward\n'
        "    loss = self.loss_function(logits=logits, labels=labels)\n"
        '  File "/srv/transformers/loss/loss_utils.py", line 54, in ForCausalLMLoss\n    logits = logits.float()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.16 GiB. GPU 0 has a total capacity of 79.25 "
        "GiB of which 9.42 GiB is free. Of the allocated memory 66.40 GiB is allocated by PyTorch, and 2.61 GiB is "
        "reserved by PyTorch but unallocated."
    )
    assert "logits_to_keep" not in str(explain(text))
    assert "logits_to_keep" in str(
        explain(text.replace("self.loss_function(", "head(").replace("ForCausalLMLoss", "head"))
    )


def test_the_json_has_what_the_page_has():
    figures = json.loads(json.dumps(explain(SERVER).figures))
    assert figures["changes"][0]["source"].startswith("docs.vllm.ai")
    assert figures["changes"][0]["seen"].startswith("vLLM 0.")


def test_a_servers_own_figures_stand_beside_the_model():
    """Llama-3.1-8B: 32 layers, 8 heads of 128, K and V in BF16 make 128 KiB a token."""
    long = "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored"
    by_tokens = with_setup(explain(f"{long} in KV cache (102752)."), ServeSetup("llama-3.1-8b", context=8192))
    assert by_tokens.predicted.endswith("The log has room for 102,752 tokens: 12.54 GiB of cache.")
    need = "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is"
    found = explain(f"{need} needed, which is larger than the available KV cache memory (5.60 GiB).")
    assert "leaves 5.60 GiB for the cache: 45,872 tokens" in with_setup(found, TrainSetup("llama-3.1-8b")).predicted


def test_tokens_beside_a_log_are_those_of_its_version():
    """5.60 GiB are 4,587 pages of 10 layers, which Gemma-3-27B's seven groups of layers share.

    Up to 0.20 a log says 655 blocks of 16 tokens. From 0.21 on it says users times their context: of 8,192 tokens 512
    pages of the full layers and 513 of each of the six windows, of which a sequence of up to 10,464 tokens has room.
    """
    need = "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is"
    end = f"{need} needed, which is larger than the available KV cache memory (5.60 GiB)."
    setup, h100 = ServeSetup("gemma-3-27b-text", context=8192), device("h100")
    older = with_setup(explain(f"Initializing a V1 LLM engine (v0.19.0) with config: model='g'\n{end}"), setup, h100)
    newer = with_setup(explain(f"vLLM API server version 0.33.1\n{end}"), setup, h100)
    assert "for the cache: 10,480 tokens of all" in older.predicted
    of_all = 4587 * 8192 // (512 + 6 * 513)
    assert f"the cache: {of_all:,} tokens of all sequences, and one sequence of up to 10,464." in newer.predicted
    assert with_setup(explain(end), setup, h100).predicted == newer.predicted
    assert with_setup(explain(f"vLLM API server version 9.99.1\n{end}"), setup, h100).predicted == newer.predicted
