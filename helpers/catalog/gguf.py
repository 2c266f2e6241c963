"""A model's shape out of a GGUF file: every tensor in its own type, and what llama.cpp keeps of a token.

from helpers.catalog import model
model("Llama-3.1-8B-Instruct-Q4_K_M.gguf")      # reads the header alone
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from .errors import WorkbookError
from .gguf_header import Header, StoredTensor, Value, read_header
from .layers import Attention, Layer, Mla, Mlp, RecurrentState
from .shape import Counted, ModelShape

MOST_LAYERS, MOST_UNITS = 4096, 2**26
# How many layers in turn there are to one without a window, the last, where the file does not say: `set_swa_pattern` in
# src/models/*.cpp of llama.cpp. The other families there do not read `attention.sliding_window`, or switch it off.
_TURNS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "olmo2": 4, "llama4": 4}
_WINDOWS = {"gemma2": 4096, "llama4": 8192}  # where the file names none
_QWEN = {"qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"}
_WITHOUT_WINDOW = _QWEN | {"llama", "mistral3", "phi3", "phimoe"}
_SHARED = {"gemma3n": 20}  # layers with a cache of their own; the others read theirs
# Which layers keep a state (src/models/*.cpp): all of them; those before every so many; those without KV heads
_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
_BOTH = {"falcon-h1"}  # a state and attention in every layer
_INTERVAL = {"qwen3next", "qwen35", "qwen35moe"}
_BY_HEADS = {"jamba", "granitehybrid", "plamo2", "lfm2", "lfm2moe", "kimi-linear", "nemotron_h", "nemotron_h_moe"}
_STATE_KEYS = ("ssm.", "wkv.", "kda.", "shortconv.")


def is_gguf(spec: object) -> TypeGuard[str | Path]:
    return isinstance(spec, str | Path) and str(spec).lower().endswith(".gguf")


def refuse_file(model: ModelShape, what: str) -> None:
    """WorkbookError where `model` is a GGUF file, about which `what` cannot be asked: with the doors that answer."""
    if model.stored:
        file = f"--model {model.source} --gpu CARD"
        do = f"`workbook estimate serve --engine llama.cpp {file}`; or name the model's config.json"
        raise WorkbookError(f"{what} of {model.name}", "what llama.cpp asks of a GGUF file, which it alone serves", do)


def from_gguf(path: Path) -> ModelShape:
    """The shape of the model in the file at `path`, or in the parts beside it. Raises WorkbookError."""
    if not path.is_file():
        do = "check the path; a file of the hub must be downloaded first, its first few MB will do"
        raise WorkbookError(f"there is no file {str(path)!r}", "a GGUF file", do)
    status = path.stat()
    return _read(path.resolve(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _read(path: Path, changed_ns: int, size: int) -> ModelShape:
    return _Keys.of(path, read_header(path)).shape()


@dataclass(frozen=True)
class _Keys:
    """Typed access to the metadata of one file; a key is named without its family."""

    path: Path
    family: str
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def of(cls, path: Path, header: Header) -> _Keys:
        family = header.metadata.get("general.architecture")
        if not isinstance(family, str) or not family:
            raise cls(path, "", {}, {})._wrong("general.architecture", family, "the name of a family")
        return cls(path, family, header.metadata, {tensor.name: tensor for tensor in header.tensors})

    def shape(self) -> ModelShape:
        table = self.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            what = f"{self.path.name!r} has no embedding of tokens: it is no language model on its own"
            raise WorkbookError(
                what, "a decoder's GGUF file", "name the file of the language model, not mmproj or LoRA"
            )
        attentions = tuple(self._attentions())
        ffn = self.each("feed_forward_length", 0, least=0)
        positions = self.tensors.get("position_embd.weight")
        return ModelShape(
            name=self.path.name,
            family=self.family,
            hidden=table.shape[1],
            vocab=table.shape[0],
            tied="output.weight" not in self.tensors,
            layers=tuple(
                Layer(attention, self._mlp(width), 0, ()) for attention, width in zip(attentions, ffn, strict=False)
            ),
            max_positions=self.whole("context_length", 0, least=0, most=2**40),
            final_norm_parameters=0,
            source=str(self.path),
            learned_positions=positions.shape[0] if positions else 0,
            norm="",
            counted=self._counted(),
        )

    def _mlp(self, width: int) -> Mlp:
        experts = self.whole("expert_count", 0, least=0)
        used = self.whole("expert_used_count", 0, least=0, most=max(experts, 0))
        return Mlp(width, False, "", (), experts=experts, experts_per_token=used)

    def _counted(self) -> Counted:
        stateful = self._has(*_STATE_KEYS)
        known = stateful == (self.family in _RECURRENT | _BOTH | _INTERVAL | _BY_HEADS)
        known = known and not self._has("attention.indexer.")
        window = self.whole("attention.sliding_window", 0, least=0)
        if window and self._pattern() is None and self.family not in _WITHOUT_WINDOW:
            known = False
        tensors = tuple(self.tensors.values())
        values = sum(tensor.values for tensor in tensors)
        return Counted(values, (), tuple(tensor.shape for tensor in tensors), known, tensors)

    def _attentions(self) -> Iterator[Attention]:
        """One layer after the other; layers that guess tokens ahead keep nothing unless they are used."""
        heads, kv_heads, states = self.each("attention.head_count", 1, least=0), self._kv_heads(), self._states()
        own = self.layers - self.whole("nextn_predict_layers", 0, least=0, most=self.layers - 1)
        own -= self.whole("attention.shared_kv_layers", 0, least=0, most=own)
        own = min(own, _SHARED.get(self.family, own))
        for number, (query, kv, window) in enumerate(zip(heads, kv_heads, self._windows(), strict=True)):
            state = states[number] if number < own else None
            one = self._attention(query, kv if number < own else 0, window)
            yield replace(one, mamba=state) if state else one

    def _states(self) -> tuple[RecurrentState | None, ...]:
        """What recurrent layers keep: n_embd_r and n_embd_s in src/llama-hparams.cpp."""
        kv_heads, heads = self._kv_heads(), self.each("attention.head_count", 1, least=0)
        ffn, turn = self.each("feed_forward_length", 0, least=0), self.whole("full_attention_interval", 4)
        if not self._has(*_STATE_KEYS):
            return (None,) * self.layers

        def recurs(number: int) -> bool:
            if self.family in _INTERVAL:
                return (number + 1) % turn != 0
            alone = self.family.startswith("nemotron") and ffn[number] > 0  # a layer of nothing but its MLP
            return self.family in _RECURRENT | _BOTH or (not kv_heads[number] and not alone)

        return tuple(self._state(heads[number]) if recurs(number) else None for number in range(self.layers))

    def _state(self, heads: int) -> RecurrentState:
        hidden = self.whole("embedding_length")
        if self._has("wkv."):
            return RecurrentState(hidden * (self.whole("wkv.head_size") + self.whole("token_shift_count", 2)))
        if self._has("shortconv."):
            return RecurrentState(0, hidden, self.whole("shortconv.l_cache"))
        kernel = self.whole("ssm.conv_kernel")
        if self._has("kda."):
            width = self.whole("kda.head_dim")
            return RecurrentState(heads * width * width, 3 * heads * width, kernel)
        inner, state = self.whole("ssm.inner_size"), self.whole("ssm.state_size")
        return RecurrentState(inner * state, inner + 2 * self.whole("ssm.group_count", 0, least=0) * state, kernel)

    def _has(self, *keys: str) -> bool:
        return any(told.startswith(f"{self.family}.{key}") for told in self.metadata for key in keys)

    def _attention(self, heads: int, kv_heads: int, window: int | None) -> Attention:
        if not kv_heads:
            return Attention(heads, 0, 0, ())
        if f"{self.family}.attention.key_length_mla" in self.metadata:
            rank, key = self.whole("attention.kv_lora_rank"), self.whole("attention.key_length")
            if key <= rank:
                raise self._wrong("attention.key_length", key, f"more than attention.kv_lora_rank, which is {rank}")
            latent = Mla(rank, key - rank, 0, self.whole("attention.value_length_mla"), None)
            return Attention(heads, 1, key, (), mla=latent)
        usual = self.whole("embedding_length") // max(1, heads)
        suffix = "_swa" if window and f"{self.family}.attention.key_length_swa" in self.metadata else ""
        both = sum(self.whole(f"attention.{one}_length{suffix}", usual) for one in ("key", "value"))
        if both % 2:
            raise self._wrong("attention.key_length", both, "keys and values whose sum is even")
        return Attention(heads, kv_heads, both // 2, (), window=window)

    def _kv_heads(self) -> tuple[int, ...]:
        if self.family in _RECURRENT:
            return (0,) * self.layers
        if self.family in _INTERVAL:
            turn, told = self.whole("full_attention_interval", 4), self.whole("attention.head_count_kv")
            return tuple(0 if (number + 1) % turn else told for number in range(self.layers))
        if f"{self.family}.attention.head_count_kv" in self.metadata:
            return self.each("attention.head_count_kv", 1, least=0)
        return self.each("attention.head_count", 1, least=0)

    def _windows(self) -> tuple[int | None, ...]:
        pattern = self._pattern()
        window = self.whole("attention.sliding_window", _WINDOWS.get(self.family, 0), least=0)
        if not window or pattern is None:
            return (None,) * self.layers
        return tuple(window if pattern[number % len(pattern)] else None for number in range(self.layers))

    def _pattern(self) -> tuple[bool, ...] | None:
        """Which layers in turn have the window; None where neither the file nor the family says."""
        told = self.metadata.get(f"{self.family}.attention.sliding_window_pattern", _TURNS.get(self.family))
        if isinstance(told, tuple) and told:
            return tuple(bool(one) for one in told)
        if isinstance(told, int) and 0 <= told <= MOST_LAYERS:
            return tuple(turn < told - 1 for turn in range(told)) or (True,)
        return None

    @property
    def layers(self) -> int:
        return self.whole("block_count", most=MOST_LAYERS)

    def each(self, key: str, default: int, least: int = 1) -> tuple[int, ...]:
        """A number for each layer, from a list of them or from one for all."""
        found = self.metadata.get(f"{self.family}.{key}", default)
        if not isinstance(found, tuple):
            return (self.whole(key, default, least),) * self.layers
        numbers = [one for one in found if type(one) is int and least <= one <= MOST_UNITS]
        if len(numbers) < len(found) or len(found) < self.layers:
            raise self._wrong(key, found, f"{self.layers} whole numbers, one for each layer")
        return tuple(numbers[: self.layers])

    def whole(self, key: str, default: int | None = None, least: int = 1, most: int = MOST_UNITS) -> int:
        found = self.metadata.get(f"{self.family}.{key}", default)
        if type(found) is not int or not least <= found <= most:
            raise self._wrong(key, found, f"a whole number from {least} to {most:,}")
        return found

    def _wrong(self, key: str, found: object, expected: str) -> WorkbookError:
        spelled = f"{self.family}.{key}" if self.family else key
        what = f"{self.path.name!r}: {spelled} is {found!r:.80}"
        return WorkbookError(what, f"{spelled}: {expected}", "download the file again, or name the model's config.json")
