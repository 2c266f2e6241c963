"""The small language model: a language made up here, a model trained on it, and two scores. Imports only catalog.

    from helpers.small_lm import load, perplexity, recall
    model, tokenizer = load()                       # a LlamaForCausalLM of 1.7 million parameters, no download
    print(perplexity(model), recall(model))         # held-out text; facts stated up to 1,000 words before

`words` and `language` make the text, `model` loads or builds the network, `scores` has the two scores, `outliers`
plants outliers; `examples` and `training` (not imported here: they need torch) make the checkpoint.
"""

from .language import Document, held_out_documents, recall_documents, training_documents
from .model import Loaded, load
from .outliers import plant
from .scores import Recall, perplexity, recall
