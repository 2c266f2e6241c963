"""What an engine takes of a card, as it divides it at its start: `vllm`, `sglang`, `llamacpp`.

`llamacpp_layers` says what goes onto a card, and what stays on the host. `pages`, `profile` and `weights` are vLLM's:
its cache, the run that it is measured by, and its tensors.
"""
