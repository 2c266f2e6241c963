"""Lines of engines' logs: each pattern reads its own example, and nothing of a person comes along."""

from __future__ import annotations

import json

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.accuracy.from_logs import as_entry, cases_of, lines
from helpers.memory.accuracy.table import rows_of
from helpers.memory.accuracy.user_cases import read

VLLM = """\
INFO 04-22 19:31:20 [utils.py:233] non-default args: {'gpu_memory_utilization': 0.95, 'max_num_seqs': 1024}
INFO 04-22 19:31:24 [scheduler.py:231] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=133) INFO [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', \
tokenizer='/data/jane/models', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, \
pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto
INFO [gpu_model_runner.py:4820] Model loading took 15.27 GiB memory and 15.038281 seconds
DEBUG Memory profiling takes 6.42 seconds. Total non KV cache memory: 17.73GiB; torch peak memory increase: 2.21GiB
INFO [gpu_worker.py:436] Available KV cache memory: 57.5 GiB
INFO [kv_cache_utils.py:1319] GPU KV cache size: 418,688 tokens
"""
SGLANG = """\
[2025-11-03 10:22:41 TP0] Load weight end. type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=16.51 GB, \
mem usage=56.94 GB.
[2025-11-03 10:22:42 TP0] KV Cache is allocated. #tokens: 141056, K size: 6.46 GB, V size: 6.46 GB
"""
LLAMA_CPP = """\
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 131072
llama_context: n_ubatch      = 512
llama_kv_cache:       MTL0 KV buffer size =  3072.00 MiB
llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), K (f16): 1536.00 MiB, V (f16): 1536.00 MiB
llama_kv_cache:       MTL0 KV buffer size =    18.00 MiB
sched_reserve:       MTL0 compute buffer size =   420.08 MiB
"""


@pytest.mark.parametrize("line", lines(), ids=lambda line: f"{line.of} {line.tells}")
def test_each_pattern_reads_its_own_line_and_no_other_engine_s(line) -> None:
    assert line.read(line.log)
    others = {"vllm": SGLANG, "sglang": VLLM, "llama.cpp": VLLM, "torch": VLLM}
    assert line.read(others[line.of]) is None


def test_a_start_of_vllm_is_a_launch_with_its_prediction_beside() -> None:
    (case,) = cases_of(VLLM, gpu="h100")
    assert (case.setup["model"], case.setup["version"], case.device) == ("Qwen/Qwen3-8B", "0.19.0", "h100-80gb")
    assert (case.setup["share"], case.setup["max_seqs"], case.setup["tokens"]) == (0.95, 1024, 418_688)
    assert dict(case.figures) == {"weights": 15.27, "profile run": 2.21, "pool": 57.5}
    assert all(abs(row.error) < 0.002 for row in rows_of(case))


def test_nothing_personal_comes_along() -> None:
    own = VLLM.replace("model='Qwen/Qwen3-8B'", "model='/data/jane/secret'")
    for text, model in ((VLLM, None), (own, "qwen3-8b")):
        entry = json.dumps([as_entry(case) for case in cases_of(text, model, "h100")])
        assert not any(word in entry for word in ("jane", "/data", "/models", "pid", "133"))


def test_a_path_is_no_name_of_a_model() -> None:
    with pytest.raises(WorkbookError, match="add --model"):
        cases_of(VLLM.replace("model='Qwen/Qwen3-8B'", "model='/data/jane/secret'"))


def test_sglang_and_llama_cpp_have_what_is_derived_of_them() -> None:
    (row,) = [row for case in cases_of(SGLANG, "qwen3-30b-a3b") for row in rows_of(case)]
    assert (row.quantity, abs(row.error) < 0.002) == ("weights", True)
    rows = {row.quantity: row for case in cases_of(LLAMA_CPP, "gpt-oss-20b") for row in rows_of(case)}
    assert rows["KV cache"].error == 0  # 3,072 + 18 MiB
    assert rows["compute buffer"].predicted is None


def test_a_message_of_torch_has_no_setup() -> None:
    (row,) = [row for case in cases_of("Of it 75.92 GiB is allocated by PyTorch, and so on.") for row in rows_of(case)]
    assert row.predicted is None
    assert "explain-oom" in row.why


@pytest.mark.parametrize("text", ["", "nothing of a kind", "INFO Available KV cache memory: -2.14 GiB"])
def test_a_log_without_a_size_is_refused(text: str) -> None:
    with pytest.raises(WorkbookError, match="with a size in it"):
        cases_of(text)


def test_what_is_printed_is_read_again(tmp_path) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([as_entry(case) for case in cases_of(VLLM, gpu="h100")]))
    (case,) = read(file)
    assert [row.predicted for row in rows_of(case)] == [
        row.predicted for one in cases_of(VLLM, gpu="h100") for row in rows_of(one)
    ]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"engine": {"engine": "vllm", "modle": "x"}}, "did you mean 'model'"),
        ({"figures": {"weight": 1.0}}, "did you mean 'weights'"),
        ({"device": "h1000"}, "h1000"),
    ],
)
def test_a_file_with_a_slip_is_told(tmp_path, changed, told) -> None:
    (case,) = cases_of(VLLM, gpu="h100")
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([as_entry(case) | changed]))
    with pytest.raises(WorkbookError, match=told):
        read(file)
