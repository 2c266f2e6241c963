"""The models of a step, written as torch runs them: `linears`, `attending`, `decoder`, and a page for each family.

`families` has the pages and the dense ones; `experts`, `delta` and `llama4` are larger ones. `losses` are those that
never hold all logits.
"""
