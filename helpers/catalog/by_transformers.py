"""Families without a closed form: build the Transformers model on meta (no memory) and count it.

Here, and nowhere else, a config becomes Transformers' own, without what it would have run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import without_code
from .errors import WorkbookError
from .families import FAMILIES
from .layers import Attention, Layer, Linear, LinearGroup, Mla, Mlp, RecurrentState
from .shape import Counted, ModelShape
from .shipped import left_out_rules
from .unquantized import is_left_out, spelled

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_MULTIMODAL = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM")
_DECODERS = ("language_model", "text_model")  # what Transformers calls the decoder of a multimodal model
_CONTEXT = 2  # tokens of the probe that shows what the model caches


def transformers_config(config: Mapping[str, object], **changed: object) -> PreTrainedConfig:
    """The config as Transformers' object, with those settings `changed`. It raises what Transformers raises.

    What is built from it is in 16 bits, whatever the checkpoint ships in: `memory.trace` quantizes it afterwards.
    """
    from transformers import AutoConfig

    if config.get("model_type") == "mllama_text_model":
        _register_mllama()
    kept = {key: value for key, value in without_code(config).items() if key != "quantization_config"}
    return AutoConfig.for_model(**dict[str, Any]({**kept, **changed}))


@cache
def _register_mllama() -> None:
    """The auto classes know Llama 3.2 Vision's language model by the config of the whole alone."""
    from transformers import AutoModelForCausalLM, MllamaForCausalLM
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    AutoModelForCausalLM.register(MllamaTextConfig, MllamaForCausalLM, exist_ok=True)


def with_cache(kept: object) -> dict[str, Any]:
    """How a forward takes a cache, `model(ids, **with_cache(cache))`: Transformers 5.24 has renamed the argument."""
    return {_cache_argument(): kept}


@cache
def _cache_argument() -> str:
    release = tuple(int(part) for part in version("transformers").split(".")[:2])
    return "cache" if release >= (5, 24) else "past_key_values"


def saved_config(where: str | Path, local: bool = True) -> PreTrainedConfig:
    """The config in a folder, or of a hub model as owner/name; for `from_pretrained(where, config=...)`.

    WorkbookError for a model that consists of its own code. Pass `trust_remote_code=False` there, too: a tokenizer
    and a generation config may bring code as well, and Transformers asks on the terminal unless it is told.
    """
    from transformers import AutoConfig

    try:
        found = AutoConfig.from_pretrained(where, local_files_only=local, trust_remote_code=False)
    except ValueError as problem:
        if "trust_remote_code" not in str(problem):
            raise
        expected, do = ("a model that Transformers itself can build", "choose a model of a family that it knows")
        raise WorkbookError(f"{str(where)!r} brings code of its own, which is never run", expected, do) from None
    return type(found).from_dict(without_code(found.to_dict()))


def count_on_meta(config: Mapping[str, object], name: str, source: str) -> ModelShape:
    """The shape of a model counted on what Transformers builds; WorkbookError if it cannot build it.

    Parameters are exact. The cache is what Transformers' own holds after a forward of two tokens, where that is K, V,
    a latent, or a state, for each layer or for some; for anything else `kv_values` refuses.
    """
    net = _build(config, name)
    settings = net.config
    attentions = _probe_cache(net)
    count = getattr(settings, "num_hidden_layers", 0) or 1
    unknown = Attention(getattr(settings, "num_attention_heads", 0) or 1, 1, 0, ())
    mlp = Mlp(getattr(settings, "intermediate_size", 0) or 0, False, "", ())
    embedding, head = net.get_input_embeddings(), net.get_output_embeddings()
    return ModelShape(
        name=name,
        family=str(config["model_type"]),
        hidden=settings.hidden_size,
        vocab=embedding.weight.shape[0],
        tied=head is None or head.weight is embedding.weight,
        layers=tuple(Layer(attention, mlp, 0, ()) for attention in attentions or (unknown,) * count),
        max_positions=getattr(settings, "max_position_embeddings", 0) or 0,
        norm="",
        final_norm_parameters=0,
        lm_head_bias=getattr(head, "bias", None) is not None,
        source=source,
        embedding_width=embedding.weight.shape[1],
        counted=_count(net, bool(attentions), config),
        config=config,
    )


def count_beside(config: Mapping[str, object]) -> int | None:
    """Parameters of a multimodal model's towers and projectors; None where Transformers cannot build it or is missing.

    They are what is not the language model's own, nor its head.
    """
    net = next((net for net in map(partial(_multimodal, config), _MULTIMODAL) if net is not None), None)
    if net is None:
        return None
    head = net.get_output_embeddings()
    decoder = next((part for path, part in net.named_modules() if path.split(".")[-1] in _DECODERS), None)
    if decoder is None:
        return None
    inside = {id(weight) for part in (decoder, head) if part is not None for weight in part.parameters()}
    return sum(weight.numel() for weight in net.parameters() if id(weight) not in inside)


def _multimodal(config: Mapping[str, object], kind: str) -> Any:
    """The whole model, built by one of Transformers' auto classes; None where that cannot."""
    try:
        import torch
        import transformers

        with torch.device("meta"):
            return getattr(transformers, kind).from_config(transformers_config(config), dtype=torch.bfloat16)
    except Exception:  # Transformers raises whatever it likes on a config it cannot use
        return None


def _build(config: Mapping[str, object], name: str):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        what = f"{name}: {config['model_type']!r} has no closed form here, and Transformers is not installed"
        do = "install transformers and torch, and the model will be counted without memory"
        raise WorkbookError(what, ", ".join(FAMILIES), do) from None
    try:
        with torch.device("meta"):
            settings = transformers_config(config)
            # The experts' grouped product takes BF16 only; counts do not depend on it.
            return AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()
    except Exception as problem:  # Transformers raises whatever it likes on a config it cannot use
        first = str(problem).strip().splitlines()[0][:160] if str(problem).strip() else type(problem).__name__
        what = f"{name}: Transformers builds no causal language model of type {config['model_type']!r}: {first}"
        do = "check model_type and the sizes in the config"
        raise WorkbookError(what, f"a decoder that Transformers knows, such as {', '.join(FAMILIES)}", do) from None


def _count(net, kv_known: bool, config: Mapping[str, object]) -> Counted:
    try:
        rules = left_out_rules(config)
    except ValueError:  # told to whoever asks for the checkpoint's format
        rules = (), ()
    named = (*_linears(net), *_stacked_experts(net))
    shapes = tuple(tuple(parameter.shape) for parameter in net.parameters())
    return Counted(
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        linears=tuple(_kept(path, group, rules) for path, group in named),
        tensors=shapes,
        kv_known=kv_known,
    )


def _kept(path: str, group: LinearGroup, rules: tuple[tuple[str, ...], tuple[str, ...]]) -> LinearGroup:
    """The group, marked if a quantized checkpoint leaves it in 16 bits."""
    return replace(group, linear=replace(group.linear, kept=any(rules) and is_left_out(spelled(path), *rules)))


def _linears(net) -> Iterator[tuple[str, LinearGroup]]:
    """The linear modules with their names, but for the head: what bitsandbytes replaces."""
    import torch
    from transformers.pytorch_utils import Conv1D

    for path, module in net.named_modules():
        if module is net.get_output_embeddings():
            continue
        name = path.rsplit(".", 1)[-1]
        if isinstance(module, torch.nn.Linear):
            linear = Linear(name, module.in_features, module.out_features, module.bias is not None)
        elif isinstance(module, Conv1D):  # GPT-2's linear, stored transposed
            inputs, outputs = module.weight.shape
            linear = Linear(name, inputs, outputs, bias=True)
        else:
            continue
        yield path, LinearGroup(_part(path), linear, 1)


def _part(path: str) -> str:
    if not any(word.isdigit() for word in path.split(".")):
        return "projections"
    return "attention" if "attn" in path or "attention" in path else "mlp"


def _stacked_experts(net) -> Iterator[tuple[str, LinearGroup]]:
    """Routed experts, which Transformers stacks as (experts, outputs, inputs)."""
    for path, parameter in net.named_parameters():
        words = path.split(".")
        if "experts" in words and parameter.ndim == 3:
            experts, outputs, inputs = parameter.shape
            yield path, LinearGroup("experts", Linear(words[-1], inputs, outputs), experts)


def _probe_cache(net) -> tuple[Attention, ...]:
    """One Attention per layer as Transformers caches it, or () when the cache is of another kind."""
    import torch

    try:
        net.set_attn_implementation("eager")  # SDPA looks into the mask that OPT makes; on meta there is no value
        with torch.no_grad():
            tokens = torch.zeros((1, _CONTEXT), dtype=torch.long, device="meta")
            cache = net(input_ids=tokens, use_cache=True).past_key_values
        plain = type(cache).__name__ == "DynamicCache"  # MiniMax keeps states in a cache of its own
        return tuple(_cached_attention(net.config, layer) for layer in cache.layers) if plain else ()
    except Exception:  # a model that cannot run on meta, or keeps another cache: its KV stays unknown
        return ()


def _cached_attention(config: Any, layer: Any) -> Attention:
    """What one layer caches: K and V of a shape or the latent of both, a state, an indexer's keys, or nothing."""
    keys: Any = getattr(layer, "keys", None)
    values: Any = getattr(layer, "values", None)
    heads, state = getattr(config, "num_attention_heads", None) or 1, _state(layer)
    if keys is None:  # it has no attention, or reads what another layer keeps
        if state is None and type(layer).__name__ != "DummyLayer":
            raise ValueError("a layer that keeps something else")
        return Attention(heads, 0, 0, (), mamba=state)
    indexer = getattr(layer, "indexer_keys", None)
    indexed = 0 if indexer is None else indexer.shape[-1]
    window = layer.sliding_window if getattr(layer, "is_sliding", False) else None
    _, kv_heads, tokens, width = keys.shape
    if tokens != _CONTEXT:
        raise ValueError("a cache of another kind")
    if kv_heads == 1 and width == getattr(config, "kv_lora_rank", None):
        mla = Mla(width, values.shape[-1], config.qk_nope_head_dim, config.v_head_dim, None)
        return Attention(heads, heads, width, (), window=window, mla=mla, mamba=state, indexer=indexed)
    if keys.shape != values.shape:
        raise ValueError("not one K and one V of the same shape")
    return Attention(heads, kv_heads, width, (), window=window, mamba=state, indexer=indexed)


def _state(layer: Any) -> RecurrentState | None:
    """The state of a recurrent layer; ValueError where it is not in FP32."""
    import torch

    made = [one for one in (getattr(layer, "recurrent_states", None) or {}).values() if one is not None]
    inputs = [one for one in (getattr(layer, "conv_states", None) or {}).values() if one is not None]
    if not made and not inputs:
        return None
    if any(one.dtype != torch.float32 for one in made) or len({one.shape[-1] for one in inputs}) > 1:
        raise ValueError("a state of another kind")
    kernel = inputs[0].shape[-1] if inputs else 1
    return RecurrentState(sum(one.numel() for one in made), sum(one.numel() for one in inputs) // kernel, kernel)
