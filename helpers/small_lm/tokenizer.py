"""The language's tokenizer in Transformers' format: one token per word, ids in the order of `words.VOCABULARY`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .language import TOKEN_ID
from .words import BEGIN, END, PAD, UNKNOWN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def tokenizer() -> PreTrainedTokenizerFast:
    """Splits at spaces and puts <bos> first; `save_pretrained(folder)` makes a folder that AutoTokenizer loads.

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
