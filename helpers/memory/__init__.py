"""What we compute: how many bytes, of what, when. Imports catalog; torch only in `measure`.

    from helpers.memory import budget, measure
    budget.train(setup).peak                        # closed form: no torch, no GPU
    measure.training_step(setup).peak               # the same question, asked of this machine

`budget` predicts, `zero` what ranks hold and send, `activations` is the list of saved tensors, `measure` measures,
`meter` is what it measures with; all answer in the types of `account` and `timeline`.
"""

from .account import Breakdown, Moment, human, rounded

__all__ = ["Breakdown", "Moment", "human", "rounded"]
