"""A second tier behind the prefix cache: blocks that leave the device wait in host memory, and come back when asked.

A prefix cache forgets a block when its place is needed. `HostTier` copies it out first, under all tokens up to its end,
and copies it in again when a prompt begins with these. Whether that pays is a matter of bytes: `break_even_bytes_per_s`
is the rate at which a token's keys and values arrive in the time that computing them takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .blocks import BlockManager
from .prefix import CachedBlock, PrefixCache

if TYPE_CHECKING:
    from torch import Tensor

    from .attention import KVPool

    Contents = list[tuple[Tensor, Tensor]]  # of one block: keys and values of each layer


class HostTier(PrefixCache):
    """A prefix cache of `manager` that keeps what it evicts from `pool` in the host's memory, without a limit.

    `stored` are blocks that went there, `loaded` tokens that came back.
    """

    def __init__(self, manager: BlockManager, pool: KVPool) -> None:
        super().__init__(manager)
        self.pool, self.loaded = pool, 0
        self.stored: dict[tuple[int, ...], Contents] = {}

    @property
    def bytes(self) -> int:
        """Of the host's memory."""
        return sum(part.nbytes for contents in self.stored.values() for layer in contents for part in layer)

    def adopt(self, sequence: object, tokens: Sequence[int], count: bool = True) -> int:
        """As a prefix cache does, after what is on the host was fetched; returns how many need not be computed."""
        self._fetch(tokens[:-1])
        return super().adopt(sequence, tokens, count)

    def _fetch(self, tokens: Sequence[int]) -> None:
        """Bring in the blocks that follow those on the device: a sequence of its own holds them while it does."""
        size, chain = self.manager.block_size, self.find(tokens)
        end = len(chain)
        while (end + 1) * size <= len(tokens) and tuple(tokens[: (end + 1) * size]) in self.stored:
            end += 1
        missing = end - len(chain)
        fetching = object()
        self.manager.share(fetching, [entry.block for entry in chain])
        if missing and self.manager.has(missing):
            self.manager.append(fetching, missing * size)
            for at in range(len(chain), end):
                contents = self.stored[tuple(tokens[: (at + 1) * size])]
                self.pool.put(self.manager.tables[fetching][at], contents)
            self.insert(fetching, tokens[: end * size])
            self.loaded += missing * size
        self.manager.release(fetching)

    def _forget(self, entry: CachedBlock) -> None:
        self.stored.setdefault(_path(entry), self.pool.take(entry.block))
        super()._forget(entry)


def _path(entry: CachedBlock) -> tuple[int, ...]:
    """All tokens up to the end of a block: with others before them its keys and values would be others."""
    return (*_path(entry.parent), *entry.tokens) if entry.parent else entry.tokens


def break_even_bytes_per_s(token_bytes: int, parameters: int, flops_per_s: float) -> float:
    """The rate from which on fetching a token is quicker than computing it, which takes two FLOPs a parameter.

    Attention is not counted: it makes computing dearer in long prompts, by 5 % at 8,192 tokens of Llama-3.1-70B.

    >>> break_even_bytes_per_s(327_680, 70_553_706_496, 8 * 0.5 * 989.4e12) / 1e9  # that model on eight H100
    9.190...
    """
    return token_bytes * flops_per_s / (2 * parameters)
