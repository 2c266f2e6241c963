"""The prefix cache: full blocks that an earlier prompt filled, found again by a chain of hashes. No torch.

A key depends on all tokens before it, so a block is good for another sequence only if everything up to its end is the
same. Hence the chain: a block is known by the entry before it and by its own tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from .blocks import BlockManager

HashFunction = Callable[[int, tuple[int, ...]], int]


def chain_hash(parent: int, tokens: tuple[int, ...]) -> int:
    """Hash of a block from that of the block before it (0 for the first) and its tokens. Equal in every process."""
    return hash((parent, tokens))  # of integers only: PYTHONHASHSEED does not change it


@dataclass(eq=False)
class CachedBlock:
    """A full block that the cache holds a reference to."""

    parent: CachedBlock | None
    tokens: tuple[int, ...]
    hash: int
    block: int
    children: int = 0


@dataclass(frozen=True)
class Hits:
    """Tokens of prompts that were found in the cache, of those asked for."""

    found: int = 0
    asked: int = 0

    @property
    def rate(self) -> float:
        return self.found / self.asked if self.asked else 0.0


class PrefixCache:
    """Keeps full blocks of `manager` after their sequences are gone, until the manager needs them.

    The least recently used block that nobody else refers to is evicted first, and never before the blocks that follow
    it in a chain. A hash only narrows the search: tokens are compared, so a collision finds nothing wrong.

    >>> manager = BlockManager(blocks=8, block_size=2); cache = PrefixCache(manager)
    >>> manager.append("a", 5); cache.insert("a", [1, 2, 3, 4, 5])
    []
    >>> cache.adopt("b", [1, 2, 3, 4, 9]), manager.tables["b"], cache.hits.rate
    (4, [0, 1], 0.8)
    """

    def __init__(self, manager: BlockManager, hash_function: HashFunction = chain_hash) -> None:
        self.manager, self.hash_function = manager, hash_function
        self.buckets: defaultdict[int, list[CachedBlock]] = defaultdict(list)
        self.queue: OrderedDict[CachedBlock, None] = OrderedDict()  # longest unused first, each before those it follows
        self.hits = Hits()
        manager.cache = self

    def find(self, tokens: Sequence[int]) -> list[CachedBlock]:
        """The longest chain of entries that `tokens` begins with. Changes nothing."""
        chain: list[CachedBlock] = []
        for block in self._full_blocks(tokens):
            entry = self._entry(chain[-1] if chain else None, block)
            if entry is None:
                break
            chain.append(entry)
        return chain

    def needed(self, tokens: Sequence[int]) -> int:
        """Available blocks that a sequence with this prompt would take: new ones, and unused ones that it adopts."""
        found = sum(map(self._in_use, self.find(tokens[:-1])))
        return self.manager.blocks_for(len(tokens)) - found

    def adopt(self, sequence: Hashable, tokens: Sequence[int], count: bool = True) -> int:
        """Start `sequence` on the blocks found for its prompt; returns how many tokens need not be computed.

        At least one token stays to be computed, for its logits. `count=False`: `hits` had this request before.
        """
        chain = self.find(tokens[:-1])
        self._touch(chain)
        self.manager.share(sequence, [entry.block for entry in chain])
        found = len(chain) * self.manager.block_size
        if count:
            self.hits = Hits(self.hits.found + found, self.hits.asked + len(tokens))
        return found

    def insert(self, sequence: Hashable, tokens: Sequence[int]) -> None:
        """Keep the full blocks of `sequence`, whose keys and values exist for `tokens`. Known ones stay as they are."""
        chain: list[CachedBlock] = []
        for tokens_of_block, block in zip(self._full_blocks(tokens), self.manager.tables[sequence], strict=False):
            parent = chain[-1] if chain else None
            chain.append(self._entry(parent, tokens_of_block) or self._keep(parent, tokens_of_block, block))
        self._touch(chain)

    def unused(self) -> int:
        """Blocks that eviction could free."""
        return sum(1 for _ in self._evictable())

    def can_free(self, wanted: int) -> bool:
        """Whether `unused` are as many. It looks no further than that: a full pool asks at each step."""
        return wanted <= 0 or next(islice(self._evictable(), wanted - 1, None), None) is not None

    def evict(self, wanted: int) -> int:
        """Free up to `wanted` blocks, the longest unused first; returns how many."""
        chosen = list(islice(self._evictable(), wanted))
        for entry in chosen:
            self._forget(entry)
        return len(chosen)

    def _evictable(self) -> Iterator[CachedBlock]:
        """In order: nobody else refers to these blocks, and what follows them in a chain is gone by then."""
        references, gone = self.manager.references, Counter[CachedBlock]()
        for entry in self.queue:
            if references[entry.block] == 1 and gone[entry] == entry.children:
                yield entry
                if entry.parent:
                    gone[entry.parent] += 1

    def _in_use(self, entry: CachedBlock) -> bool:
        return self.manager.references[entry.block] > 1

    def _entry(self, parent: CachedBlock | None, tokens: tuple[int, ...]) -> CachedBlock | None:
        bucket = self.buckets.get(self._hash(parent, tokens), ())
        return next((entry for entry in bucket if entry.parent is parent and entry.tokens == tokens), None)

    def _keep(self, parent: CachedBlock | None, tokens: tuple[int, ...], block: int) -> CachedBlock:
        entry = CachedBlock(parent, tokens, self._hash(parent, tokens), block)
        self.buckets[entry.hash].append(entry)
        if parent is not None:
            parent.children += 1
        self.manager.hold(block)
        return entry

    def _forget(self, entry: CachedBlock) -> None:
        self.buckets[entry.hash].remove(entry)
        if not self.buckets[entry.hash]:
            del self.buckets[entry.hash]
        if entry.parent is not None:
            entry.parent.children -= 1
        del self.queue[entry]
        self.manager.let_go(entry.block)

    def _touch(self, chain: list[CachedBlock]) -> None:
        """To the end of the queue, the last of the chain first: it has to go before those that it follows."""
        for entry in reversed(chain):
            self.queue[entry] = None
            self.queue.move_to_end(entry)

    def _hash(self, parent: CachedBlock | None, tokens: tuple[int, ...]) -> int:
        return self.hash_function(parent.hash if parent else 0, tokens)

    def _full_blocks(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.manager.block_size
        return [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
