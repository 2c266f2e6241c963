"""The small model's tensors by powers of two, counted again; `python -m tests.lesson.calculators.small_model_tensors`
writes helpers/lesson/data/histograms.json."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from helpers.lesson import calculators

STORED = Path(calculators.__file__).parent.parent / "data" / "histograms.json"
SOURCE = "the small model in FP32, 2 held-out documents of 1,152 words, mean loss (helpers.small_lm)"
WHAT = {
    "weights": "all parameters",
    "activations": "outputs of the linear layers but lm_head",
    "activation gradients": "gradients of the outputs of the linear layers but lm_head",
    "logit gradients": "gradients of the outputs of lm_head",
    "weight gradients": "gradients of all parameters",
}


def counted() -> dict[str, dict]:
    """One backward of the small model, by name of the tensor: the first power of two, counts, zeros."""
    import torch

    from helpers.small_lm import held_out_documents, load

    model = load()[0].float().eval()
    tensors = defaultdict(list)

    def watch(module, _, out):
        logits = module is model.lm_head
        if not logits:
            tensors["activations"].append(out.detach())
        out.register_hook(tensors["logit gradients" if logits else "activation gradients"].append)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(watch)
    ids = torch.tensor([document.ids for document in held_out_documents(2, 1152)])
    model(ids, labels=ids).loss.backward()
    tensors["weights"] = [parameter.detach() for parameter in model.parameters()]
    tensors["weight gradients"] = [parameter.grad for parameter in model.parameters()]
    return {name: _by_power(tensors[name]) for name in WHAT}


def _by_power(tensors) -> dict:
    import torch

    values = torch.cat([tensor.flatten() for tensor in tensors])
    powers = torch.frexp(values[values != 0]).exponent - 1
    first = int(powers.min())
    return {"first": first, "counts": torch.bincount(powers - first).tolist(), "zeros": int((values == 0).sum())}


if __name__ == "__main__":
    entries = {name: {"what": WHAT[name], **entry} for name, entry in counted().items()}
    lines = (f'    "{name}": {json.dumps(entry)}' for name, entry in entries.items())
    STORED.write_text(f'{{\n  "source": "{SOURCE}",\n  "tensors": {{\n' + ",\n".join(lines) + "\n  }\n}\n")
