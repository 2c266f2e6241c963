"""What stands beside the language model of a multimodal checkpoint: vision towers and projectors, counted.

A closed form for the towers of the usual families, checked against the model that Transformers builds; others are
counted on that, built without memory, where Transformers is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .config import ConfigKeys
from .errors import WorkbookError
from .shape import Tower

DECODERS = ("text_config", "llm_config", "language_config", "thinker_config")  # where a config keeps its decoder's
TOWERS = ("vision_config", "audio_config")
FLAT = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"}  # families whose older configs have the decoder's keys beside


def decoder_of(config: Mapping[str, object]) -> Mapping[str, object] | None:
    """The language model's own config in a multimodal one; None where `config` is a decoder's.

    What the outer config says of all (tied embeddings, the checkpoint's format) comes first, as in Transformers.
    """
    family = config.get("model_type")
    if isinstance(family, str) and family in FLAT and "text_config" not in config:
        return {**{key: value for key, value in config.items() if key not in TOWERS}, "model_type": FLAT[family]}
    for key in DECODERS:
        if key in config:
            inner = config[key]
            if not isinstance(inner, Mapping):
                what, expected = f"{key} is {inner!r:.60}", f"{key}: the config of the language model"
                raise WorkbookError(what, expected, "pass the config.json that Transformers saved, whole")
            shared = {name: config[name] for name in ("tie_word_embeddings", "quantization_config") if name in config}
            return {**inner, **shared}
    return None


def towers_of(config: Mapping[str, object], hidden: int) -> tuple[Tower, ...]:
    """What stands beside the decoder, of width `hidden`, of a multimodal config."""
    vision = config.get("vision_config")
    if not any(isinstance(config.get(key), Mapping) for key in TOWERS):
        return ()
    name, count = "vision tower and projector", _CLOSED.get(str(config.get("model_type")))
    if config.get("audio_config"):
        name = "vision and audio towers and projectors" if vision else "audio tower and projector"
    if count and isinstance(vision, Mapping) and not config.get("audio_config"):
        keys = ConfigKeys("vision_config", vision)
        return (Tower(name, count(keys, config, hidden), _kept_of_an_image(keys, config)),)
    from .by_transformers import count_beside  # pulls in torch, so only where there is no closed form

    return (Tower(name, count_beside(config)),)


def _kept_of_an_image(keys: ConfigKeys, config: Mapping[str, object]) -> str:
    """Of a model that attends to patches beside the tokens: K and V of all tiles in each such layer, in 16 bits."""
    text = config.get("text_config")
    if config.get("model_type") != "mllama" or not isinstance(text, Mapping):
        return ""
    inner = ConfigKeys("text_config", text)
    layers = len(inner.numbers("cross_attention_layers")) or len(range(3, inner.whole("num_hidden_layers", 40), 5))
    heads = inner.whole("num_attention_heads", 32)
    width = inner.whole("num_key_value_heads", 8) * (inner.whole("hidden_size", 4096) // heads)
    patches = ((keys.whole("image_size", 448) // keys.whole("patch_size", 14)) ** 2 + 1) * keys.whole(
        "max_num_tiles", 4
    )
    size = 2 * 2 * patches * width * layers / 2**20
    return f"An image adds {size:,.0f} MiB of keys and values in {layers} layers, which are not counted."


def _encoder(keys: ConfigKeys, layers: str = "num_hidden_layers", *, ffn: int = 4304) -> int:
    """Layers of four projections, an MLP of two and two LayerNorms, biases everywhere: SigLIP and its kin."""
    width, wide = keys.whole("hidden_size", 1152), keys.whole("intermediate_size", ffn)
    return keys.whole(layers, 27) * (4 * width * width + 2 * width * wide + 9 * width + wide)


def _gemma3(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """SigLIP, a position for each patch; a norm and a matrix project what it returns."""
    width, patch = keys.whole("hidden_size", 1152), keys.whole("patch_size", 14)
    positions = (keys.whole("image_size", 896) // patch) ** 2 * width
    ends = 3 * patch * patch * width + width + positions + 2 * width
    if keys.flag("vision_use_head", True):  # a probe that attends to all patches, with a norm and an MLP
        ends += _encoder(ConfigKeys(keys.name, {**keys.values, "num_hidden_layers": 1})) - width
    return _encoder(keys) + ends + width + width * hidden


def _llama4(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """A class token, a norm before and one behind the layers, an adapter of two matrices, and one that projects."""
    width, patch = keys.whole("hidden_size", 1408), keys.whole("patch_size", 14)
    positions = (keys.whole("image_size", 336) // patch) ** 2 + 1
    between, out = keys.whole("projector_input_dim", 4096), keys.whole("projector_output_dim", 4096)
    adapter = keys.whole("intermediate_size", 5632) * between + between * out
    ends = width + positions * width + 3 * patch * patch * width + 4 * width
    return _encoder(keys, ffn=5632) + ends + adapter + keys.whole("vision_output_dim", 4096) * hidden


def _mllama(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """Layers for each tile and for all, with gates; tables of positions, of tiles and of their proportions; one matrix.

    Of what it returns five layers are taken beside the last. Eight more rows of the embedding stand for images.
    """
    width, wide, patch = (
        keys.whole("hidden_size", 1280),
        keys.whole("intermediate_size", 5120),
        keys.whole("patch_size", 14),
    )
    patches = (keys.whole("image_size", 448) // patch) ** 2 + 1
    whole, each = keys.whole("num_global_layers", 8), keys.whole("num_hidden_layers", 32)
    layer = 4 * width * width + 2 * width * wide + 5 * width + wide
    tiles = keys.whole("max_num_tiles", 4, most=2**10)
    told = keys.values.get("supported_aspect_ratios")
    shapes = 1 + (len(told) if isinstance(told, list | tuple) else sum(tiles // side for side in range(1, tiles + 1)))
    tables = patches * width + shapes * tiles * patches * width + 2 * shapes * tiles * width
    ends = width + 3 * patch * patch * width + 4 * width + 3  # class, patches, norms, gates
    out = keys.whole("vision_output_dim", 7680)
    return (each + whole) * layer + 2 * whole + tables + ends + out * hidden + hidden + 8 * hidden


def _qwen3(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """Patches in time and space, a position table, and a merger of four patches; one more for each deepstack layer."""
    width, patch = keys.whole("hidden_size", 1152), keys.whole("patch_size", 16)
    merged, out = width * keys.whole("spatial_merge_size", 2) ** 2, keys.whole("out_hidden_size", hidden)
    embedding = 3 * keys.whole("temporal_patch_size", 2) * patch * patch * width + width
    positions = keys.whole("num_position_embeddings", 2304) * width
    matrices = merged * merged + merged + merged * out + out
    deep = len(keys.numbers("deepstack_visual_indexes")) * (2 * merged + matrices)
    return _encoder(keys, "depth") + embedding + positions + 2 * width + matrices + deep


def _mistral3(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """Pixtral: Llama's layers without biases; then a norm, a merger of four patches and two matrices."""
    width, wide = keys.whole("hidden_size", 1024), keys.whole("intermediate_size", 4096)
    patch, count = keys.whole("patch_size", 16), keys.whole("num_hidden_layers", 24)
    layers = count * (4 * width * width + 3 * width * wide + 2 * width)
    whole = ConfigKeys("config", config)
    merge = whole.whole("spatial_merge_size", 2) ** 2
    bias = 2 * hidden if whole.flag("multimodal_projector_bias", False) else 0
    projector = width + merge * width * width + width * hidden + hidden * hidden + bias
    return layers + 3 * patch * patch * width + width + projector


def _kimi_vl(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """MoonViT: SigLIP's layers and a table of positions; then a norm, and two matrices over four patches."""
    width, patch = keys.whole("hidden_size", 1152), keys.whole("patch_size", 14)
    positions = keys.whole("init_pos_emb_height", 64) * keys.whole("init_pos_emb_width", 64) * width
    merged = 4 * width
    projector = 2 * width + merged * merged + merged + merged * hidden + hidden
    return _encoder(keys) + 3 * patch * patch * width + width + positions + 2 * width + projector


def _qwen2_5(keys: ConfigKeys, config: Mapping[str, object], hidden: int) -> int:
    """Gated MLPs with biases and RMSNorm, and a merger of four patches."""
    width, wide, patch = keys.whole("hidden_size", 1280), keys.whole("intermediate_size", 3420), 14
    layers = keys.whole("depth", 32) * (4 * width * width + 3 * width * wide + 7 * width + 2 * wide)
    merged, out = width * keys.whole("spatial_merge_size", 2) ** 2, keys.whole("out_hidden_size", hidden)
    embedding = 3 * 2 * patch * patch * width
    return layers + embedding + width + merged * merged + merged + merged * out + out


_CLOSED: dict[str, Callable[[ConfigKeys, Mapping[str, object], int], int]] = {
    "gemma3": _gemma3,
    "kimi_vl": _kimi_vl,
    "llama4": _llama4,
    "mistral3": _mistral3,
    "mllama": _mllama,
    "qwen2_5_vl": _qwen2_5,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3),
}
