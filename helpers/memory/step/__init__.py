"""A training step in closed form: how many bytes, of what, at which moment. One tape; integers, no torch.

    from helpers.memory import budget
    budget.train(TrainSetup("llama-2-7b", optimizer="adamw-fused")).peak     # the largest of a step's moments

On a `tape`, where autograd counts bytes, `operators` are the kernels, `decoders` the models, written as torch runs
them, and `checkpoints` what is run again. `layer_run` runs each kind of layer once; `chain` adds the runs up in their
order, and `step` reads its moments off, `flops` its FLOPs. `ranks` say what is otherwise where ranks share. `kernels`
are a card's, `frozen` what a base takes that is not trained. `activations` names what a
layer keeps, for people. `refusals` says what has no answer. Imports catalog and breakdown.
"""
