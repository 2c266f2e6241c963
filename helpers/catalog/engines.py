"""Engines that serve models, and what each takes of a card before a request comes; by version where it matters.

engine("vllm")                      # the newest that is known
engine("vllm", "0.19")              # as of that version: 0.9 of the card, CUDA graphs outside of it
engine("vllm").batch(device("h100"))  # (tokens in one forward, sequences at once) where nobody says them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .cache_formats import KV_OF_ENGINES
from .devices import Device
from .errors import WorkbookError, unknown_name

if TYPE_CHECKING:
    from .serve_setup import ServeSetup

GIB = 2**30
LARGE_CARD_BYTES, HUGE_CARD_BYTES = 70 * GIB, 160 * GIB
NO_LARGE_CARD = "a100"  # of which vLLM thinks as of a small one: pull request 17885


@dataclass(frozen=True)
class EngineVersion:
    """One engine as of `version`.

    `share` is what it takes of the whole card where nobody says another: vLLM's gpu_memory_utilization; None for an
    engine that takes what it needs. `graphs_in_share` says that CUDA graphs are estimated before the pool is sized,
    and so are in the share. `sampler_bytes` are alive for each logit of the profile run where weights have 16 bits, and
    `sampler_rows` rows of FP32 logits for each multiprocessor stand beside them. `huge_batch` are its
    tokens of a forward on cards of 160 GiB. `logs` are those that its memory was held against, "" where none was.
    """

    name: str
    version: str
    source: str
    share: float | None = None
    block_tokens: int = 1
    graphs_in_share: bool = False
    sampler_bytes: int = 0
    sampler_rows: bool = False
    huge_batch: int = 8192
    logs: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    @property
    def logs_users(self) -> bool:
        """Whether its log's tokens are users that fit, times their context: v1/core/kv_cache_utils.py of 0.21.0.

        Up to 0.20 they were those of one endless sequence, in which windows counted as if they saw everything.
        """
        return self.name == "vllm" and _numbers(self.version) >= (0, 21)

    @property
    def states(self) -> int:
        """Pages that a recurrent layer has for a sequence: a second where prefixes are cached, as from vLLM 0.26.0 on.

        is_prefix_caching_supported in vllm/config/model.py, mamba_cache_mode "align" in v1/kv_cache_interface.py.
        """
        return 2 if self.name == "vllm" and _numbers(self.version) >= (0, 26) else 1

    def batches_in_flight(self, stages: int = 1) -> int:
        """Forwards for which windows keep blocks: max_concurrent_batches in vllm/config/vllm.py of 0.26.0; before, one.

        The next forward is scheduled while one runs; so many more of a pipeline as it has stages.

        >>> engine("vllm", "0.25").batches_in_flight(), engine("vllm", "0.26").batches_in_flight()
        (1, 2)
        """
        return stages + 1 if self.name == "vllm" and _numbers(self.version) >= (0, 26) else 1

    def batch(self, card: Device) -> tuple[int, int]:
        """Tokens of one forward and sequences at once, as the server chooses for `card`: vLLM's get_batch_defaults.

        >>> from helpers.catalog import device
        >>> [engine("vllm").batch(device(card)) for card in ("h100", "a100-80gb", "rtx-4090")]
        [(8192, 1024), (2048, 256), (2048, 256)]
        """
        if card.capacity_bytes >= HUGE_CARD_BYTES:
            return self.huge_batch, 1024
        if card.capacity_bytes >= LARGE_CARD_BYTES and NO_LARGE_CARD not in card.name:
            return 8192, 1024
        return 2048, 256


# vLLM's page "GPU", requirements; SGLang's page "Install", of FlashInfer
LEAST_CAPABILITIES = {"vllm": (7, 0), "sglang": (7, 5)}
FP8_CAPABILITY = (7, 5)  # model_executor/layers/quantization/fp8.py of vLLM 0.33.0
COUNTS_DRAFTS = ("transformers", "llama.cpp")
CONVERTED = ("fp32", "tf32", "fp16", "bf16", "mxfp4")  # weights that llama.cpp has once they are converted to GGUF
_CONFIG = "vllm/config/cache.py, vllm/engine/arg_utils.py, vllm/v1/sample of "
_SORTS = "; 38 bytes a logit is what Qwen3-14B's profile run showed in 0.15 and 0.16 (5.64 GiB on an H100)"
_MASKS = "; logits in 16 bits, in FP32, their softmax and its noise are alive: 2 + 4 + 4 + 4 bytes"
_COUNTS = "; its second runner counts every token of every sequence (v1/worker/gpu/sample/penalties.py): 4 bytes more"
_LAUNCHES = "40 launches of vLLM 0.19 on H100"
_ENGINES: tuple[EngineVersion, ...] = (
    EngineVersion("transformers", "", "no server: what a forward needs, and nothing set aside"),
    EngineVersion(
        "vllm", "0.15", f"{_CONFIG}0.15.0{_SORTS}", 0.9, 16, sampler_bytes=38, logs="two of Qwen3-14B on an H100"
    ),
    EngineVersion(
        "vllm", "0.17", f"{_CONFIG}0.17.1{_MASKS}", 0.9, 16, sampler_bytes=14, sampler_rows=True, logs=_LAUNCHES
    ),
    EngineVersion("vllm", "0.20", f"{_CONFIG}0.20.0{_MASKS}", 0.92, 16, True, 14, True),
    EngineVersion("vllm", "0.22", f"{_CONFIG}0.22.0: FlashInfer samples{_MASKS}", 0.92, 16, True, 14),
    EngineVersion(
        "sglang", "0.5.23", "sglang/srt/arg_groups/memory_hook.py of 0.5.23: a fraction of what is free, by a rule"
    ),
    EngineVersion(
        "llama.cpp", "", "ggml-org/llama.cpp, src/llama-kv-cache.cpp: takes what it needs, and sets nothing aside"
    ),
    EngineVersion("vllm", "0.33", f"{_CONFIG}0.33.0{_MASKS}{_COUNTS}", 0.92, 16, True, 18, huge_batch=16384),
)
ENGINES: tuple[str, ...] = tuple(dict.fromkeys(one.name for one in _ENGINES))
POOLED: tuple[str, ...] = tuple(dict.fromkeys(one.name for one in _ENGINES if one.share))  # that set a pool aside


def engine(name: str, version: str | None = None) -> EngineVersion:
    """The engine as of `version`, the newest that is known without one. Raises WorkbookError.

    >>> engine("vllm", "0.19.1").share, engine("vllm").share, engine("vllm").version
    (0.9, 0.92, '0.33')
    """
    known = [one for one in _ENGINES if isinstance(name, str) and one.name == name.lower()]
    if not known:
        raise _not_counted(name)
    if version is None:
        return known[-1]
    wanted, oldest, newest = _numbers(version), known[0].version, known[-1].version
    able = [one for one in known if _numbers(one.version) <= wanted]
    is_newer = wanted[: len(_numbers(newest))] > _numbers(newest)
    if not wanted or not able or is_newer or not oldest:
        what = f"{known[0].name} {version!r}"
        expected = (f"a version from {oldest} to {newest}" if oldest != newest else oldest) or "no version"
        raise WorkbookError(what, expected, "leave it out for the newest that is known")
    return replace(able[-1], version=version.removeprefix("v"))


_RUN_LLAMA_CPP = ("ollama", "lmstudio", "lm-studio", "koboldcpp", "llamafile", "jan", "llamacpp", "llama-cpp")
_OTHERS = (
    "tgi",
    "tensorrt-llm",
    "trtllm",
    "lmdeploy",
    "mlx",
    "exllamav2",
    "exllamav3",
    "ktransformers",
    "mlc",
    "aphrodite",
)


def _not_counted(name: object) -> WorkbookError:
    """The error for an engine that is none here: of one that runs llama.cpp, with that; of others without a guess."""
    typed = name.lower() if isinstance(name, str) else ""
    if typed in _RUN_LLAMA_CPP:
        return WorkbookError(f"engine {name!r}", ", ".join(ENGINES), "pass --engine llama.cpp, which it runs")
    if typed in _OTHERS:
        do = "leave --engine out for what a forward of Transformers takes, and read its log for the pool"
        return WorkbookError(f"what {name} sets aside is not counted here", ", ".join(ENGINES), do)
    return unknown_name("engine", name, ENGINES)


def require_served(name: str, setup: ServeSetup) -> None:
    """WorkbookError for a GGUF file on another engine than llama.cpp, and for what an engine has not.

    That is a cache in some format, weights quantized for others on llama.cpp, and drafts where nobody counts them.
    """
    model, known = setup.model, KV_OF_ENGINES[name]
    if name != "transformers" and any(layer.attention.crossed for layer in model.layers):
        what = f"{name} and {model.name}, whose layers attend to images"
        expected = "Transformers: vLLM had it up to 0.10, and what others keep of an image is not counted here"
        raise WorkbookError(what, expected, "leave --engine out")
    if model.stored and name != "llama.cpp":
        what, expected = f"{model.name} on {name}", "llama.cpp for a GGUF file"
        raise WorkbookError(what, expected, "pass --engine llama.cpp, or the model's config.json")
    if name == "llama.cpp" and not model.stored and setup.weights not in CONVERTED:
        what = f"llama.cpp loads no weights in {setup.weights}, which other engines quantize to"
        raise WorkbookError(what, "a GGUF file, or a checkpoint in 16 bits", "name the GGUF file: --model FILE.gguf")
    if setup.drafts and name not in COUNTS_DRAFTS:
        what = f"{setup.drafts} drafts with {name}, whose memory for them is not counted here"
        raise WorkbookError(what, "no drafts", "leave --drafts out, in Python drafts=0")
    if setup.kv not in known:
        what = f"{name} has no KV cache in {setup.kv}"
        raise WorkbookError(what, ", ".join(known), f"choose one of these, as --kv {known[-1]}, or another engine")


def require_card(name: str, card: Device, weights: str = "") -> None:
    """WorkbookError for a card without CUDA, whose rules nobody here knows, and for one too old for the engine.

    Or too old for its weights in FP8: vLLM has them on a T4, but not on a V100.
    """
    least = LEAST_CAPABILITIES[name]
    if card.capability is None:
        what, expected = f"what {name} takes of the {card.title}", "a card of NVIDIA's"
        raise WorkbookError(what, expected, "read its log for the size of its pool")
    if card.capability < least:
        what = f"{name} on the {card.title}, of compute capability {card.capability[0]}.{card.capability[1]}"
        raise WorkbookError(what, f"{least[0]}.{least[1]} or more", "pass --engine llama.cpp, or a newer card")
    if not has_weights(card, weights):
        what = f"weights in {weights} with {name} on the {card.title}, of compute capability {card.capability[0]}.0"
        raise WorkbookError(what, "7.5 or more", "take a newer card, or weights in 16 bits, as --weights fp16")


def has_weights(card: Device, weights: str) -> bool:
    """Whether an engine multiplies by weights in this format on a card of NVIDIA's: not by FP8 on a V100."""
    return not weights.startswith("fp8") or (card.capability or FP8_CAPABILITY) >= FP8_CAPABILITY


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 19, 1) of "v0.19.1"; nothing of what is no version."""
    parts = str(version).removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else ()
