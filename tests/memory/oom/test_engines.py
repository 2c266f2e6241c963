"""Messages of engines and of the driver, and what the calls above them tell."""

import pytest

from helpers.memory.oom import explain

START = (
    "ValueError: Free memory on device cuda:0 ({}/24.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.97, 23.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
STACK = """Traceback (most recent call last):
  File "/srv/job/train.py", line 8, in main
    {}
  File "/venv/lib/python3.12/site-packages/torch/{}", line 70, in {}
    {}
RuntimeError: CUDA error: out of memory
"""


@pytest.mark.parametrize(
    ("free", "reason", "says"), [("1.53", "outside", "others held 22.47 GiB"), ("22.76", "capped", "a desktop take")]
)
def test_vllm_at_its_start_tells_others_from_too_large_a_share(free, reason, says):
    explained = explain(START.format(free))
    assert (explained.reason, says in explained.why.sentence) == (reason, True)
    assert "a lower gpu_memory_utilization" in str(explained)
    assert "a higher gpu_memory_utilization" not in str(explained)


def test_a_sequence_longer_than_vllms_cache_is_told_in_tokens():
    text = (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in"
    )
    explained = explain(f"{text} KV cache (7344). Try increasing `gpu_memory_utilization`")
    assert explained.reason == "capped"
    assert "32,768 tokens" in explained.why.sentence
    assert "7,344" in explained.why.sentence


@pytest.mark.parametrize(
    ("path", "function", "code", "reason", "change"),
    [
        ("utils/data/_utils/pin_memory.py", "pin_memory", "return data.pin_memory(device)", "host", "pin_memory=False"),
        ("cuda/__init__.py", "_lazy_init", "torch._C._cuda_init()", "outside", "nvidia-smi"),
        ("nn/modules/module.py", "convert", "return t.to(device)", "unclear", "nvidia-smi"),
    ],
)
def test_the_drivers_refusal_is_told_by_the_call_above_it(path, function, code, reason, change):
    explained = explain(STACK.format("run()", path, function, code))
    assert explained.reason == reason
    assert explained.changes[0].do.startswith(change)


def test_a_driver_that_names_the_size_or_the_call():
    sized = explain("failed to allocate 1.51G (1617277696 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY")
    assert "The driver refused 1.51 GiB" in sized.why.sentence
    assert (
        explain("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory").reason == "outside"
    )


def test_nccl_tells_the_size_that_stands_two_lines_below():
    text = "x NCCL WARN Cuda failure 'out of memory'\n\nx [3] alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes"
    assert "NCCL asked the driver for 6.00 MiB" in explain(text).why.sentence


def test_what_is_not_the_cards_memory_is_said_to_be_none():
    triton = explain(
        "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing"
    )
    assert "128.00 KiB of shared memory on the chip" in triton.why.sentence.replace("131,072 B", "128.00 KiB")
    bus = explain("RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error. It is possible that")
    assert (bus.reason, "--shm-size" in str(bus)) == ("host", True)
    pinned = explain("ggml_cuda_host_malloc: failed to allocate 1900,00 MiB of pinned memory: invalid argument")
    assert (pinned.reason, "1.86 GiB" in str(pinned)) == ("host", True)


@pytest.mark.parametrize(
    "text", ["exits with return code = -9", "finished with exit code 137 (interrupted by signal 9:"]
)
def test_a_kill_is_the_hosts_memory_and_says_that_this_is_not_proved(text):
    explained = explain(text)
    assert explained.reason == "host"
    assert "does not prove it" in str(explained)
