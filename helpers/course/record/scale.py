"""How large the experiments are. In earnest: 1B and 8B shapes; tests rehearse the same functions with toys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Models by their catalogue names, tokens, and bytes.

    `sweep_bytes` None is the sweep's own choice. A cache is filled to each of `contexts` in chunks of `chunk` tokens.
    `cat_tokens` are where a cache that grows by torch.cat begins and ends, `cat_users` whose it is. A history of random
    requests has `random_steps`, of up to 2**`random_log2` bytes. A step's time is the fastest of `timed_runs`.
    """

    train: str = "llama-3.2-1b"
    sequence: int = 2048
    serve: str = "llama-3.1-8b"
    contexts: tuple[int, ...] = (2048, 8192, 16384, 32768, 65536)
    chunk: int = 2048
    decode_context: int = 8192
    sweep_bytes: int | None = None
    copy_bytes: int = 2**28
    probes: tuple[str, ...] = ("copy", "layernorm", "softmax", "GEMV", "attention", "GEMM")
    cat_tokens: tuple[int, int] = (512, 640)
    cat_users: int = 32
    random_steps: int = 3000
    random_log2: float = 26.0
    timed_runs: int = 5


EARNEST = Scale()
