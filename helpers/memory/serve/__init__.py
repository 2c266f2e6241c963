"""A serving replica in closed form: weights, caches, and what a forward makes. Integers, no torch.

    from helpers.memory import budget
    budget.serve(ServeSetup("llama-3-8b", users=8)).held                    # weights and KV cache

`weights` are those of a served model in its format, `serving` a replica's forwards, `reads` what a step of decoding
reads, `rank_weights` what a rank holds and reads, `engines` what a named engine takes beside them. Imports catalog and
breakdown.
"""
