"""The models of a step, written as torch runs them: `linears`, `attending`, `decoder`, and a page for each family.

`families` has the dense ones and all names, `experts` and `delta` the others. `losses` never hold all logits.
"""
