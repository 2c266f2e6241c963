"""Splitting one model over several GPUs: by its layers in a pipeline, and by its tokens in attention. Imports torch.

    from helpers.techniques.parallel import pipeline, ring, ulysses
    schedule = pipeline.one_f_one_b(ranks=4, micro_batches=8)

`pipeline` has schedules as data and a runner for them. `ring` and `ulysses` divide the tokens of attention, and
`layouts` says who has which. `device_map` shows what `device_map="auto"` does. May import catalog, memory and, for the
merge of partial results, `attention`.
"""
