"""The witness: the model that Transformers builds on meta from the same config."""

from collections import Counter

import pytest


def build_on_meta(config):
    """The Transformers model of `config`, without memory; a config dict or a live config object."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if isinstance(config, dict):
        config = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def on_meta():
    return build_on_meta


@pytest.fixture
def assert_same_tensors():
    """Compares a ModelShape with a built model: the total, and every tensor up to a transpose (GPT-2)."""

    def compare(shape, net):
        parameters = list(net.parameters())
        built = Counter(tuple(sorted(parameter.shape)) for parameter in parameters)
        assert Counter(tuple(sorted(tensor)) for tensor in shape.tensors()) == built
        assert shape.parameters == sum(parameter.numel() for parameter in parameters)
        assert sum(shape.parameters_by_part.values()) == shape.parameters

    return compare
