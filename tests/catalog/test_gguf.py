"""GGUF: bytes of published files by the known recipe, caches by hand, and nothing hostile gets far."""

import random
import struct
import time
import tracemalloc
from contextlib import suppress

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device, model
from helpers.catalog.engines import require_served
from helpers.catalog.formats import NUMBER_FORMATS
from helpers.catalog.gguf_header import GGML_TYPES, of_types
from helpers.cli import main
from helpers.lesson import calculators
from helpers.memory import budget
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from tests.catalog.gguf_files import gguf, llama, llama_tensors, text, value


@pytest.fixture
def write(tmp_path):
    def write(content, name="model.gguf"):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def more_bits(layer, layers):
    """`use_more_bits` in llama-quant.cpp: the first and the last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def q4_k_m(layers):
    """llama.cpp's recipe: Q6_K for the output, and for attn_v and ffn_down of half of the layers; Q4_K for the rest."""

    def kind(name):
        if name == "output.weight":
            return "q6_k"
        large = name.split(".")[2] in ("attn_v", "ffn_down") if name.startswith("blk.") else False
        return "q6_k" if large and more_bits(int(name.split(".")[1]), layers) else "q4_k"

    return kind


def llama_8b(write):
    metadata = llama(32, 4096, 32, 8, 14336, 128256)
    tensors = llama_tensors(32, 4096, 1024, 14336, 128256, q4_k_m(32))
    return write(gguf(metadata, [*tensors, ("rope_freqs.weight", (64,), "f32")]))


def test_llama_8b_in_q4_k_m_is_the_published_file(write):
    """Q6_K are the output and 16 layers' ffn_down and attn_v; of 4,920,734,272 bytes 7.8 MB are the vocabulary."""
    shape = model(llama_8b(write))
    assert shape.parameters == 8_030_261_248 + 64
    assert budget.serve(ServeSetup(shape)).held["parameters"] == sum(tensor.size_bytes for tensor in shape.stored)
    sizes = dict(of_types(shape.stored))
    assert sizes["q6_k"] == (128256 * 4096 + 16 * (14336 + 1024) * 4096) * 210 // 256
    assert 7_800_000 < 4_920_734_272 - sum(sizes.values()) < 7_900_000
    assert ServeSetup(shape).shipped_told == ("Weights as shipped: Q4_K 3.40 GiB, Q6_K 1.17 GiB.",)


def gpt_oss_20b(write):
    """ggml-org's file: MXFP4 experts, Q8_0 attention and tables, FP32 biases, norms, sinks and routers."""
    more = {"attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 128}
    metadata = llama(24, 2880, 64, 8, 2880, family="gpt-oss", expert_count=32, expert_used_count=4, **more)
    shapes = {
        **{f"ffn_{name}_exps.weight": ((32, 2880, 2880), "mxfp4") for name in ("gate", "up", "down")},
        **{f"ffn_{name}_exps.bias": ((32, 2880), "f32") for name in ("gate", "up", "down")},
        "ffn_gate_inp.weight": ((32, 2880), "f32"),
        "ffn_gate_inp.bias": ((32,), "f32"),
        **{f"attn_{name}.weight": ((rows, 2880), "q8_0") for name, rows in (("q", 4096), ("k", 512), ("v", 512))},
        **{f"attn_{name}.bias": ((rows,), "f32") for name, rows in (("q", 4096), ("k", 512), ("v", 512))},
        "attn_output.weight": ((2880, 4096), "q8_0"),
        "attn_output.bias": ((2880,), "f32"),
        "attn_sinks.weight": ((64,), "f32"),
        "attn_norm.weight": ((2880,), "f32"),
        "post_attention_norm.weight": ((2880,), "f32"),
    }
    tensors = [(f"blk.{layer}.{name}", *one) for layer in range(24) for name, one in shapes.items()]
    tensors += [(name, (201088, 2880), "q8_0") for name in ("token_embd.weight", "output.weight")]
    return write(gguf(metadata, [*tensors, ("output_norm.weight", (2880,), "f32")]))


def test_gpt_oss_20b_is_the_published_file(write):
    """Of 12,109,565,632 bytes 13 MB are a vocabulary of 201,088 tokens; llama.cpp logs 3072 and 18 MiB of cache."""
    shape = model(gpt_oss_20b(write))
    assert shape.parameters == 20_914_757_184
    stored = budget.serve(ServeSetup(shape)).held["parameters"]
    assert 12_900_000 < 12_109_565_632 - stored < 13_100_000
    assert LlamaCpp(ServeSetup(shape, context=131072)).kv_bytes == (3072 + 18) * 2**20


def test_the_embedding_stays_on_the_host(write):
    """llama.cpp's log of the file: CUDA0 model buffer size = 4403.49 MiB, CPU model buffer size = 281.81 MiB."""
    served = LlamaCpp(ServeSetup(llama_8b(write)))
    assert (round(served.weight_bytes / 2**20, 2), round(served.host_bytes / 2**20, 2)) == (4403.49, 281.81)
    card, unified = (calculators.llamacpp_answer(served, device(name), 0).parts.total for name in ("3060", "m3-max"))
    assert unified - card == served.host_bytes
    tied = LlamaCpp(ServeSetup(write(gguf(llama(), [one for one in llama_tensors() if one[0] != "output.weight"]))))
    assert tied.weight_bytes == budget.serve(tied.setup).held["parameters"]
    assert tied.host_bytes == 320 * 144


def test_its_cache_is_that_of_the_model(write):
    path = llama_8b(write)
    for kv, bits in (("bf16", 16), ("q8_0", 8.5), ("q4_0", 4.5)):
        held = budget.serve(ServeSetup(path, kv=kv, users=2, context=10_000)).held["kv_cache"]
        assert held == 2 * 10_000 * 32 * 2 * 8 * 128 * bits / 8


def test_the_floor_of_a_step_reads_one_row_of_the_embedding(write):
    shape = model(llama_8b(write))
    setup = ServeSetup(shape, context=2048)
    held = budget.serve(setup).held
    table = 128256 * 4096 // 256 * 144
    assert budget.decode_bytes(setup) == held.total - table + 4096 // 256 * 144


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({}, 4 * 2 * 2 * 32 * 1000),
        ({"attention.head_count_kv": [2, 0, 4, 1]}, 7 * 2 * 32 * 1000),
        ({"attention.key_length": 64, "attention.value_length": 32}, 4 * 2 * 96 * 1000),
        ({"attention.shared_kv_layers": 1}, 3 * 2 * 2 * 32 * 1000),
        ({"nextn_predict_layers": 1}, 3 * 2 * 2 * 32 * 1000),
        ({"attention.sliding_window": 100}, 4 * 2 * 2 * 32 * 1000),  # which the family llama does not read
    ],
)
def test_keys_and_values_of_a_file(write, more, values):
    metadata = {**llama(4), **{f"llama.{key}": one for key, one in more.items()}}
    assert model(write(gguf(metadata, llama_tensors(4)))).kv_values(1000) == values


@pytest.mark.parametrize(
    ("family", "more", "windows"),
    [
        ("gemma3", {"attention.sliding_window": 100}, "wwwww-"),
        ("gemma2", {"attention.sliding_window": 100}, "w-w-w-"),
        ("gemma3n", {"attention.sliding_window": 100}, "wwww-w"),
        ("cohere2", {"attention.sliding_window": 100}, "www-ww"),
        ("gpt-oss", {"attention.sliding_window": 100}, "w-w-w-"),
        (
            "gpt-oss",
            {"attention.sliding_window": 100, "attention.sliding_window_pattern": [True, False, True]},
            "w-ww-w",
        ),
        ("newest", {"attention.sliding_window": 100, "attention.sliding_window_pattern": 3}, "ww-ww-"),
        ("newest", {"attention.sliding_window": 100, "attention.sliding_window_pattern": 0}, "wwwwww"),
    ],
)
def test_windows_by_the_file_or_by_the_family(write, family, more, windows):
    shape = model(write(gguf(llama(6, family=family, **more), llama_tensors(6))))
    assert "".join("w" if layer.attention.window == 100 else "-" for layer in shape.layers) == windows
    held = sum(100 if one == "w" else 1000 for one in windows)
    assert shape.kv_values(1000) == 2 * 2 * 32 * held


def test_a_latent_is_kept_once(write):
    mla = {"attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.value_length": 512}
    mla |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    shape = model(write(gguf(llama(3, family="deepseek2", **mla), llama_tensors(3))))
    assert shape.kv_values(1000) == 3 * 576 * 1000


@pytest.mark.parametrize("more", [{"ssm.state_size": 128}, {"attention.sliding_window": 64}])
def test_a_cache_that_is_not_understood_is_refused_and_the_weights_are_counted(write, more):
    shape = model(write(gguf(llama(2, family="newest", **more), llama_tensors())))
    assert sum(tensor.size_bytes for tensor in shape.stored) > 0
    with pytest.raises(WorkbookError) as refused:
        shape.kv_values(10)
    assert "config.json" in refused.value.do


def test_experts_are_read_as_far_as_tokens_choose_them(write):
    metadata = llama(1, family="qwen3moe", expert_count=8, expert_used_count=2)
    tensors = [*llama_tensors(1), ("blk.0.ffn_up_exps.weight", (8, 512, 256), "q8_0")]
    setup = ServeSetup(write(gguf(metadata, tensors)), context=16)
    held = budget.serve(setup).held.total
    assert held - budget.decode_bytes(setup) == 8 * 512 * 256 * 34 // 32 * 6 // 8 + 319 * 144


def test_split_files_are_found_beside_each_other(write):
    tensors = llama_tensors()
    whole = model(write(gguf(llama(), tensors)))
    names = [f"part-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    paths = [write(gguf(llama() if not number else {}, tensors[number::3]), name) for number, name in enumerate(names)]
    for path in paths:
        assert model(path).parameters == whole.parameters
        assert budget.serve(ServeSetup(path)).held == budget.serve(ServeSetup(whole)).held


def test_a_missing_part_is_named(write):
    path = write(gguf(llama(), llama_tensors()), "part-00001-of-00002.gguf")
    with pytest.raises(WorkbookError, match=r"part-00002-of-00002\.gguf' is not there"):
        model(path)


def test_a_long_vocabulary_is_passed_over(write):
    content = gguf(llama(tokens=100_000), llama_tensors())
    began = time.perf_counter()
    assert model(write(content)).vocab == 320
    assert time.perf_counter() - began < 2


HEAD = b"GGUF" + struct.pack("<I", 3)
HUGE = 2**63
BAD = {
    "empty": (b"", "empty"),
    "another file": (b"PK\x03\x04" * 9, "does not begin with"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
    "version 9": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "no tensors": (gguf(llama(), []), "no tensors"),
    "too many tensors": (HEAD + struct.pack("<QQ", HUGE, 0), "behind its end"),
    "too many entries": (HEAD + struct.pack("<QQ", 0, HUGE), "behind its end"),
    "long text": (
        HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IQ", 8, HUGE) + bytes(9),
        "behind its end",
    ),
    "long name": (HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE) + bytes(99), "behind its end"),
    "long array": (
        HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, HUGE) + bytes(9),
        "behind its",
    ),
    "long texts": (HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQQ", 9, 8, 1, HUGE), "behind its end"),
    "nested": (
        HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9,
        "type 9",
    ),
    "unknown value": (HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<I", 77) + bytes(9), "type 77"),
    "removed type": (gguf(llama(), [("a", (32, 32), 4)]), "type 4, which is not known"),
    "future type": (gguf(llama(), [("a", (32, 32), 200)]), "type 200, which is not known"),
    "broken rows": (gguf(llama(), [("a", (2, 100), "q4_k")]), "in blocks of 256"),
    "no values": (gguf(llama(), [("a", (0, 256), "q4_k")]), "in blocks of 256"),
    "huge tensor": (gguf(llama(), [("a", (2**40, 2**20), "f32")]), "in blocks of 1"),
    "no family": (gguf({}, llama_tensors()), "general.architecture is None"),
    "no layers": (gguf({"general.architecture": "llama"}, llama_tensors()), "llama.block_count is None"),
    "huge layers": (gguf(llama(2**31), llama_tensors()), "llama.block_count is 2147483648"),
    "few heads": (gguf(llama(4, kv_heads=[2, 2]), llama_tensors(4)), "head_count_kv is (2, 2)"),
    "text for a number": (gguf({**llama(), "llama.block_count": "2"}, llama_tensors()), "block_count is '2'"),
    "a projector": (gguf({"general.architecture": "clip"}, [("v.a", (4, 4), "f16")]), "no embedding of tokens"),
    "twins": (gguf(llama(), llama_tensors()[:1] * 2), "two tensors are called"),
}


@pytest.mark.parametrize(("content", "phrase"), BAD.values(), ids=BAD)
def test_what_is_no_such_file_is_told_at_once(write, content, phrase):
    path = write(content)
    tracemalloc.start()
    with pytest.raises(WorkbookError) as refused:
        model(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert phrase in refused.value.what


def test_no_damage_to_a_header_does_more_than_a_refusal(write):
    """Cut off anywhere it is refused; with bytes changed it is refused or counts something, and takes no memory."""
    whole, drawn = gguf(llama(tokens=20), llama_tensors()), random.Random(46)
    for length in drawn.sample(range(len(whole)), 60):
        with pytest.raises(WorkbookError):
            model(write(whole[:length]))
    tracemalloc.start()
    for _ in range(300):
        damaged = bytearray(whole)
        for at in drawn.sample(range(len(whole)), 3):
            damaged[at] = drawn.randrange(256)
        with suppress(WorkbookError):
            ServeSetup(model(write(bytes(damaged))), context=8)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_the_data_behind_the_header_are_not_needed(write):
    header = gguf(llama(), llama_tensors())
    assert model(write(header)).parameters == model(write(header + bytes(4096), "longer.gguf")).parameters


def test_types_are_those_of_the_catalogue_and_of_the_package():
    for kind in GGML_TYPES.values():
        if kind.name in NUMBER_FORMATS and kind.name != "nvfp4":
            assert NUMBER_FORMATS[kind.name].bits_per_value == 8 * kind.block_bytes / kind.block_values
    package = pytest.importorskip("gguf")
    computed_in = {"Q8_1", "Q8_K"}  # which no file has
    sizes = {number: size for number, size in package.GGML_QUANT_SIZES.items() if number.name not in computed_in}
    assert {number: (kind.block_values, kind.block_bytes) for number, kind in GGML_TYPES.items()} == sizes


def test_a_file_is_not_trained_sharded_or_given_another_format(write):
    path = write(gguf(llama(), llama_tensors()))
    for ask in (
        lambda: TrainSetup(path),
        lambda: ServeSetup(path, weights="nf4"),
        lambda: ServeSetup(path, skipped=["lm_head"]),
        lambda: ServeSetup("llama-3-8b", weights="gguf"),
    ):
        with pytest.raises(WorkbookError):
            ask()


ANSWERED = [
    "estimate serve --model {} --context 4096 --gpu 3060 --kv q8_0",
    "estimate serve --model {} --context 8192 --users 512 --gpu 5GiB --fit",
    "estimate kv {} --context 4096 --gpu 3060",
    "estimate offload serve --model {} --gpu 3060",
]
REFUSED = [
    "estimate kv {} --context 4096 --tensor-parallel 2",
    "estimate train --model {}",
    "estimate fine-tuning --model {}",
    "plan serve {} --users 2 --context 4096 --latency 50ms --cards h100=1",
    "trace serve --model {}",
    "trace train --model {}",
]


@pytest.mark.parametrize("command", [*ANSWERED, *REFUSED])
def test_every_command_answers_or_says_why(write, command, capsys):
    path = write(gguf(llama(), llama_tensors()))
    code = main(command.format(path).split())
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    if command in ANSWERED:
        assert code in (0, 1)
        assert "model.gguf" in told.out
    else:
        assert code == 2
        assert "expected:" in told.err


def test_what_would_fit_is_what_llama_cpp_has(write, capsys):
    path = write(gguf(llama(), llama_tensors()))
    main(f"estimate serve --model {path} --context 8192 --users 1200 --gpu 5GiB --fit".split())
    told = capsys.readouterr().out
    assert "--kv q8_0" in told
    assert "fp8" not in told
    assert "--weights" not in told


def test_a_path_that_is_not_there(tmp_path):
    for spec in (tmp_path / "none.gguf", "owner/none.gguf"):
        with pytest.raises(WorkbookError, match="there is no file"):
            model(spec)


def test_values_of_metadata_are_laid_out_as_specified():
    assert value([1, 2]) == struct.pack("<IIQII", 9, 4, 2, 1, 2)
    assert text("ab") == b"\x02\0\0\0\0\0\0\0ab"


def test_llama_cpp_serves_a_file_by_its_cells(write):
    """300 tokens take 512 cells; a layer without KV heads takes none."""
    metadata = {**llama(4), "llama.attention.head_count_kv": [2, 0, 4, 1]}
    served = LlamaCpp(ServeSetup(write(gguf(metadata, llama_tensors(4))), context=300, kv="q8_0"))
    assert served.cells == ((512, 3),)
    assert served.kv_bytes == 512 * 7 * 2 * 34
    assert served.logit_bytes == 512 * 320 * 4


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_of_checkpoints_refuse_a_file(write, engine):
    with pytest.raises(WorkbookError, match=r"llama\.cpp for a GGUF file"):
        require_served(engine, ServeSetup(write(gguf(llama(), llama_tensors()))))


def test_a_file_by_the_package_is_read_alike(tmp_path):
    package = pytest.importorskip("gguf")
    import numpy

    writer = package.GGUFWriter(tmp_path / "model.gguf", "llama")
    for key, one in llama(2).items():
        if key.startswith("llama."):
            writer.add_uint32(key, one)
    writer.add_token_list([f"token{number}" for number in range(320)])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("llama.rope.dimension_sections", [16, 24, 24, 0])
    for name, shape, kind in llama_tensors(kinds=lambda name: "q8_0"):
        values = numpy.zeros(shape, numpy.float32)
        stored = package.quants.quantize(values, package.GGMLQuantizationType[kind.upper()])
        writer.add_tensor(name, stored, raw_dtype=package.GGMLQuantizationType[kind.upper()])
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    shape, reader = model(tmp_path / "model.gguf"), package.GGUFReader(tmp_path / "model.gguf")
    theirs = [(one.name, tuple(map(int, one.shape[::-1])), int(one.n_bytes)) for one in reader.tensors]
    assert theirs == [(one.name, one.shape, one.size_bytes) for one in shape.stored]
    assert shape.kv_values(10) == 10 * 2 * 2 * 2 * 32


QWEN35 = {"attention.key_length": 256, "attention.value_length": 256, "full_attention_interval": 4}
QWEN35 |= {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16}
HYBRIDS = {  # layers, KV heads, inner size of the states, cells, slots, drafts; MiB of K and V and of states as logged
    "lmstudio-ai/lmstudio-bug-tracker#1862, Qwen3.6-27B": (64, 4, 6144, 262144, 4, 0, 16384.0, 598.5),
    "Qwen3.6-27B, one slot": (64, 4, 6144, 8192, 1, 0, 512.0, 149.62),
    "Qwen3.6-27B, two drafts": (64, 4, 6144, 8192, 1, 2, 512.0, 448.88),
    "Qwen3.5-9B": (32, 4, 4096, 135168, 4, 0, 4224.0, 201.0),
    "Qwen3.5-35B-A3B": (40, 2, 4096, 8192, 4, 0, 160.0, 251.25),
}


@pytest.mark.parametrize(("layers", "kv_heads", "inner", "cells", "slots", "drafts", "kv", "states"), HYBRIDS.values())
def test_hybrids_keep_what_llama_cpp_logs(write, layers, kv_heads, inner, cells, slots, drafts, kv, states):
    """llama_kv_cache: size and llama_memory_recurrent: size, to the 0.01 MiB that they are printed to."""
    more = {**QWEN35, "ssm.inner_size": inner}
    path = write(gguf(llama(layers, 5120, 24, kv_heads, family="qwen35", **more), llama_tensors(1)))
    served = LlamaCpp(ServeSetup(path, users=slots, context=cells // slots, drafts=drafts))
    assert served.kv_bytes / 2**20 == kv
    assert served.state_bytes / 2**20 == pytest.approx(states, abs=0.006)
    held = budget.serve(ServeSetup(path, users=slots, context=cells // slots, drafts=drafts)).held
    assert held["kv_cache"] == served.kv_bytes + served.state_bytes
    answer = calculators.kv_cache_answer(ServeSetup(path, users=slots, context=cells // slots, drafts=drafts))
    assert answer.parts["kv_cache"] == held["kv_cache"]
    assert "keep a state that does not grow" in str(answer)


@pytest.mark.parametrize(
    ("family", "heads", "more", "tokens", "state"),
    [
        (
            "mamba2",
            0,
            {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16, "ssm.group_count": 2},
            0,
            4 * 4 * (512 * 16 + 3 * 576),
        ),
        (
            "mamba",
            0,
            {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16},
            0,
            4 * 4 * (512 * 16 + 3 * 512),
        ),
        (
            "jamba",
            [0, 2, 0, 0],
            {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16},
            128,
            3 * 4 * (512 * 16 + 3 * 512),
        ),
        ("lfm2", [0, 2, 0, 2], {"shortconv.l_cache": 3}, 256, 2 * 4 * 2 * 256),
        (
            "falcon-h1",
            2,
            {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16},
            512,
            4 * 4 * (512 * 16 + 3 * 512),
        ),
        ("rwkv7", 0, {"wkv.head_size": 64}, 0, 4 * 4 * (256 * 64 + 2 * 256)),
        (
            "kimi-linear",
            [0, 2, 0, 0],
            {"kda.head_dim": 32, "ssm.conv_kernel": 4},
            128,
            3 * 4 * (8 * 32 * 32 + 3 * 3 * 8 * 32),
        ),
    ],
)
def test_states_by_family(write, family, heads, more, tokens, state):
    """n_embd_r and n_embd_s of src/llama-hparams.cpp, 4 bytes each, by hand."""
    shape = model(write(gguf(llama(4, kv_heads=heads, family=family, **more), llama_tensors(1))))
    assert (shape.kv_values(1), shape.state_bytes()) == (tokens, state)
