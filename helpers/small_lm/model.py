"""The small language model: the shipped checkpoint (or another that WORKBOOK_MODEL names), its shape, its tokenizer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..catalog.by_transformers import saved_config
from ..catalog.errors import WorkbookError
from .language import TOKEN_ID
from .words import BEGIN, END, PAD, UNKNOWN, VOCABULARY

if TYPE_CHECKING:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        PreTrainedTokenizerFast,
    )

CHECKPOINT = Path(__file__).parent / "checkpoint"
ENVIRONMENT = "WORKBOOK_MODEL"
_UNSET = f"unset {ENVIRONMENT} to use the small model"


class Loaded(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(name: str | Path | None = None) -> Loaded:
    """Model in evaluation mode, FP32, SDPA, on the CPU, and its tokenizer.

    `name` is a folder or a hub model as owner/name; without it WORKBOOK_MODEL is asked, and without that the small
    model is loaded, which needs no network. Each call loads afresh: what is done to one model never shows in another.
    """
    chosen = name or os.environ.get(ENVIRONMENT) or CHECKPOINT
    folder = Path(chosen).expanduser()
    local = folder.is_dir()
    if not local and (str(chosen).count("/") != 1 or str(chosen).startswith((".", "/", "~"))):
        expected = "a folder with a checkpoint, or a hub model as owner/name"
        raise WorkbookError(f"no model {str(chosen)!r}", expected, _UNSET)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: str | Path = folder if local else str(chosen)
    how: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    try:
        with without_progress_bar():
            how["config"] = saved_config(where, local)
            attention = {"dtype": torch.float32, "attn_implementation": "sdpa"}
            model = AutoModelForCausalLM.from_pretrained(where, **how, **attention)
            tokenizer = AutoTokenizer.from_pretrained(where, **how)
    except (OSError, ValueError, KeyError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        expected = "a causal language model in Transformers' format, and a network for one from the hub"
        do = f"check the name and the network, or {_UNSET}"
        raise WorkbookError(f"cannot load {str(where)!r}: {first_line}", expected, do) from None
    return Loaded(model, tokenizer)  # from_pretrained leaves it in evaluation mode


@contextlib.contextmanager
def without_progress_bar() -> Iterator[None]:
    """Transformers draws a bar for seven megabytes too, on stderr, which a checked notebook cell compares."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def configuration() -> LlamaConfig:
    """The shape: 1,734,336 parameters, six query heads that share two KV heads, embedding and lm_head untied."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        pad_token_id=TOKEN_ID[PAD],
        bos_token_id=TOKEN_ID[BEGIN],
        eos_token_id=TOKEN_ID[END],
    )


def untrained(seed: int) -> LlamaForCausalLM:
    """The model before its first step, with an initialisation under which copying is learnt in 400 steps, not 1,000."""
    import torch
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(configuration())
        words = model.model.embed_tokens.weight
        # RoPE finds "the word before" only by what all queries and keys share: a direction common to all words.
        words.normal_().add_(torch.randn(words.shape[1]))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, ids in the order of `words.VOCABULARY`, <bos> before the first.

    `save_pretrained(folder)` makes a folder that AutoTokenizer loads.

    >>> tokenizer()("they gave anna bread .").input_ids == [TOKEN_ID[w] for w in "<bos> they gave anna bread .".split()]
    True
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(TOKEN_ID, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, TOKEN_ID[BEGIN])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
