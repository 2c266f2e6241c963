"""Perplexity and recall: what they count, through a cache and with another tokenizer, and what they refuse."""

import math

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Cache, DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicLayer

from helpers.catalog import WorkbookError
from helpers.small_lm import Recall, held_out_documents, perplexity, recall, recall_documents
from helpers.small_lm.language import TOKEN_ID
from helpers.small_lm.model import tokenizer as words_tokenizer
from helpers.small_lm.scores import DistanceRecall, tokenized_texts

WORDS = len(TOKEN_ID)


def llama(vocabulary=WORDS, positions=4096):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=positions,
        )
    ).eval()


class Oracle(torch.nn.Module):
    """Copies what followed the last earlier place of the current token: the model that training aims at."""

    def __init__(self, reach=10**6):
        super().__init__()
        self.reach, self.config, self.device = reach, llama().config, torch.device("cpu")

    def forward(self, input_ids, **_):
        logits = torch.zeros(*input_ids.shape, len(TOKEN_ID))
        for row, ids in enumerate(input_ids.tolist()):
            last = {}
            for at, token in enumerate(ids):
                if token in last and at - last[token] <= self.reach:
                    logits[row, at, ids[last[token] + 1]] = 10.0
                last[token] = at
        return type("Output", (), {"logits": logits})


@pytest.fixture(scope="module")
def pieces():
    """A tokenizer that cuts words in pieces, as a hub model's does."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = [document.text for document in held_out_documents(4, 200)]
    trained.train_from_iterator(
        text,
        trainers.BpeTrainer(vocab_size=320, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    return PreTrainedTokenizerFast(tokenizer_object=trained)


def test_a_model_that_copies_recalls_everything():
    scored = recall(Oracle(), distances=(50, 200))
    assert (scored.total, scored.questions) == (1.0, 4 * 7 + 4 * 16)


def test_a_model_that_reaches_less_far_recalls_what_it_reaches():
    scored = recall(Oracle(reach=100), distances=(50, 100, 101))
    assert (scored[50], scored[100], scored[101]) == (1.0, 1.0, 0.0)
    assert scored.total == pytest.approx((28 + 56) / (28 + 56 + 56))


def test_an_untrained_model_knows_nothing():
    model = llama()
    assert recall(model, distances=(50,)).total < 0.2
    assert perplexity(model, held_out_documents(2, 64)) == pytest.approx(len(TOKEN_ID), rel=0.1)


def test_perplexity_is_exp_of_the_mean_loss_of_all_tokens():
    """Documents of unequal length: a token counts the same in each."""
    model, documents = llama(), [*held_out_documents(3, 64), *held_out_documents(1, 16)]
    losses = []
    for document in documents:
        ids = torch.tensor([document.ids])
        logits = model(ids).logits[0, :-1].log_softmax(-1)
        losses += [-logits[at, token].item() for at, token in enumerate(document.ids[1:])]
    assert perplexity(model, documents) == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_a_worse_model_has_no_limit():
    model = llama()
    with torch.no_grad():
        model.lm_head.weight *= 1e6
    assert perplexity(model, held_out_documents(1, 64)) == math.inf


@pytest.mark.parametrize("documents", [1, 5])
def test_scores_repeat(documents):
    model = llama()
    first = recall(model, distances=(50,), documents=documents)
    assert first == recall(model, distances=(50,), documents=documents)
    assert first.questions == 7 * documents


def test_a_full_cache_changes_no_logit(monkeypatch):
    """Prefill and decode in pieces see what one forward sees."""
    from helpers.small_lm import scores

    model = llama()
    text = next(iter(tokenized_texts(model, recall_documents(60, 2))))
    at_once = model(text.ids).logits[:, [position - 1 for position in text.answers]]
    decoded = torch.stack(list(scores._decoded(model, text, DynamicCache(config=model.config))), dim=1)
    torch.testing.assert_close(decoded, at_once, atol=1e-5, rtol=1e-5)


class Forgetful(DynamicLayer):
    """Keeps no key of the prefill."""

    def update(self, keys, values, *args, **kwargs):
        keys, values = super().update(keys, values, *args, **kwargs)
        if keys.shape[-2] > 12:
            self.keys, self.values = self.keys * 0, self.values * 0
        return keys, values


def test_the_cache_is_asked_for_its_keys():
    """The questions are decoded from the cache: one that has lost the facts gives other logits."""
    from helpers.small_lm import scores

    model = llama()
    text = next(iter(tokenized_texts(model, recall_documents(60, 2))))
    kept = list(scores._decoded(model, text, DynamicCache(config=model.config)))
    lost = list(scores._decoded(model, text, Cache(layers=[Forgetful() for _ in range(2)])))
    assert (kept[0] - lost[0]).abs().max() > 1e-4


def test_a_fresh_cache_for_every_batch():
    made = []

    def cache():
        made.append(DynamicCache())
        return made[-1]

    recall(llama(), distances=(10, 20), cache=cache, documents=5)
    assert len(made) == 4  # two distances, four documents and one
    assert len({id(each) for each in made}) == 4


def test_places_of_words_in_pieces(pieces):
    document = recall_documents(50, 1)[0]
    text = next(iter(tokenized_texts(llama(len(pieces)), [document], pieces)))
    tokens = pieces.convert_ids_to_tokens(text.ids[0].tolist())
    for word, place in zip(document.words[1:], text.word_starts[1:], strict=True):
        piece = tokens[place].removeprefix("Ġ")
        assert piece  # a token of its own for the space is not where the word begins
        assert word.startswith(piece)
    assert len(tokens) > len(document.words)
    assert tokens[text.questions].removeprefix("Ġ")[0] == "r"  # recall


def test_scores_of_another_vocabulary(pieces):
    model = llama(len(pieces))
    assert perplexity(model, held_out_documents(2, 64), tokenizer=pieces) == pytest.approx(len(pieces), rel=0.1)
    assert recall(model, distances=(50,), tokenizer=pieces).questions == 28


def test_its_own_tokenizer_changes_nothing():
    model = llama()
    assert recall(model, (50,), tokenizer=words_tokenizer()) == recall(model, (50,))


def refused_scores():
    broken = llama()
    broken.lm_head.weight.data[5] = math.nan
    short = llama(positions=128)
    return [
        ("another vocabulary", lambda: perplexity(llama(500)), "500"),
        ("no documents", lambda: perplexity(llama(), []), "no documents"),
        ("not finite", lambda: perplexity(broken, held_out_documents(1, 16)), "finite"),
        ("not finite, recall", lambda: recall(broken, (20,)), "finite"),
        ("too long", lambda: perplexity(short), "1024"),
        ("too far", lambda: recall(short, (200,)), "313"),
        ("a number for distances", lambda: recall(llama(), 100), "100"),
        ("no distances", lambda: recall(llama(), ()), "()"),
        ("a distance beyond", lambda: recall(llama(), (100, 2000)), "2000"),
        ("no document", lambda: recall(llama(), (50,), documents=0), "0"),
        ("a distance not asked", lambda: Recall((DistanceRecall(50, 4, 4),))[100], "100"),
    ]


@pytest.mark.parametrize(
    ("name", "call", "said"), refused_scores(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_refused(name, call, said):
    with pytest.raises(WorkbookError) as caught:
        call()
    assert said in caught.value.what
    assert caught.value.do


def test_text_form():
    assert (
        str(Recall((DistanceRecall(100, 64, 64), DistanceRecall(1000, 64, 48))))
        == "recall 87.5 %  (100: 100.0 %, 1000: 75.0 %)"
    )
