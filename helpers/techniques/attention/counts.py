"""What attention moves, keeps and computes, counted from shapes and tiles: bytes of memory and FLOPs. No torch.

The rules. The naive way is PyTorch's operators one by one: each reads its inputs and writes its result. A tiled kernel
has one program for each row of tiles and each head of keys, which works for all query heads that share it: it reads its
queries once, and keys and values of every tile that it visits. No program finds in a cache what another one read, so
the truth lies between these bytes and `once`, where every tensor is moved once. FLOPs are those of matrix products, in
whole tiles. Making a mask is left out: all layers share one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import add, attrgetter

from ...catalog.errors import WorkbookError, require_whole
from ...catalog.formats import number_format
from ...memory.breakdown import rounded
from ...memory.work import Work
from ...memory.work import attention as once_each
from .masks import Causal, Mask, joined

SUMS = 4  # bytes of a number in FP32: log-sum-exps, and what gradients are added up in


@dataclass(frozen=True)
class Call:
    """One call of attention: `queries` aligned to the last of `keys` (as many, if 0). `tile` is (queries, keys).

    Sizes that are left out are those of Llama-3-8B.

    >>> call = Call(queries=4096)
    >>> call.matrix_bytes, call.saved_bytes, call.naive_saved_bytes  # of one layer: 1 GiB, 81 MiB, 1.1 GiB
    (1073741824, 84410368, 1140854784)
    """

    queries: int
    keys: int = 0
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    batch: int = 1
    mask: Mask = field(default_factory=Causal)
    number_format: str = "bf16"
    tile: tuple[int, int] = (128, 128)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys or self.queries)
        for name in ("queries", "keys", "heads", "kv_heads", "head_dim", "batch"):
            require_whole(name, getattr(self, name), most=2**24)
        for name, side in zip(("tile, its queries,", "tile, its keys,"), self.tile, strict=True):
            require_whole(name, side)
        if self.heads % self.kv_heads:
            what, do = f"{self.heads} heads share {self.kv_heads} of K and V", "Llama-3-8B has heads=32, kv_heads=8"
            raise WorkbookError(what, "kv_heads that divide heads", do)
        self.mask.check(self.keys)

    @property
    def value_bytes(self) -> int:
        return number_format(self.number_format).value_bytes

    @property
    def rows(self) -> int:
        """Rows of the matrix of scores: queries of all heads."""
        return self.batch * self.heads * self.queries

    @property
    def query_bytes(self) -> int:
        """Of q, and of the output."""
        return self.rows * self.head_dim * self.value_bytes

    @property
    def key_bytes(self) -> int:
        """Of k, and of v."""
        return self.batch * self.kv_heads * self.keys * self.head_dim * self.value_bytes

    @property
    def matrix_bytes(self) -> int:
        """Of the scores of all heads, and of the softmax of them."""
        return self.rows * self.keys * self.value_bytes

    @property
    def mask_bytes(self) -> int:
        return self.queries * self.keys

    @property
    def sum_bytes(self) -> int:
        """Of the log-sum-exp: one FP32 number for each row."""
        return self.rows * SUMS

    @property
    def saved_bytes(self) -> int:
        """What the tiled way keeps for backward: q, k, v, the output and the log-sum-exp. SDPA's kernels do, too."""
        return 2 * self.query_bytes + 2 * self.key_bytes + self.sum_bytes

    @property
    def naive_saved_bytes(self) -> int:
        """What autograd keeps of `naive`: q times the scale, k, v, the softmax, and two masks of one byte a place."""
        return self.query_bytes + 2 * self.key_bytes + self.matrix_bytes + self.mask_bytes + self.queries

    @property
    def naive_peak_bytes(self) -> int:
        """The most beside the inputs while `naive` runs without gradients, blocks rounded as the allocator does."""
        matrix, query, mask = rounded(self.matrix_bytes), rounded(self.query_bytes), rounded(self.mask_bytes)
        return mask + max(2 * matrix, matrix + query, matrix + 2 * query + rounded(self.queries))

    @property
    def peak_bytes(self) -> int:
        """The most beside the inputs that a tiled kernel on a GPU takes: its results. Its tiles are on the chip."""
        return rounded(self.query_bytes) + rounded(self.sum_bytes)

    @property
    def working_set_bytes(self) -> int:
        """Beside its results, what `tiled` in PyTorch takes: two tiles of scores, three of queries, columns of numbers.

        Merging takes six tiles of queries, which is more where tiles of scores are small. It does not know how long the
        sequence is. Tensors in 16 bits add the FP32 copy of a tile of values.
        """
        scores, queries, keys, row = self._tile_bytes
        copied = keys if self.value_bytes < SUMS else 0
        return max(2 * scores + 3 * queries + 4 * row + copied, 6 * queries + 7 * row)

    @property
    def backward_peak_bytes(self) -> int:
        """The most that `tiled_backward` takes beside what was saved and the output's gradient.

        The gradients, that of q in FP32; a number for each row; and the same tiles, however long the sequence is.
        """
        scores, queries, keys, row = self._tile_bytes
        copied = queries + 2 * keys if self.value_bytes < SUMS else 0
        if self.heads > self.kv_heads:  # heads of a group are brought together, and so are two numbers of each row
            copied = queries + 2 * row + (copied and 2 * keys)
        whole = self.rows * self.head_dim * SUMS, self.key_bytes, self.key_bytes, self.sum_bytes
        return sum(map(rounded, whole)) + 3 * scores + 2 * queries + 4 * keys + copied

    @property
    def _tile_bytes(self) -> tuple[int, int, int, int]:
        """FP32 tiles of scores, of queries, of keys, and one number for each row of a tile."""
        tile_q, tile_k = min(self.tile[0], self.queries), min(self.tile[1], self.keys)
        rows, keys = self.batch * self.heads * tile_q, self.batch * self.kv_heads * tile_k
        sizes = (rows * tile_k, rows * self.head_dim, keys * self.head_dim, rows)
        scores, queries, keys, row = (rounded(size * SUMS) for size in sizes)
        return scores, queries, keys, row


def once(call: Call) -> Work:
    """Every tensor moved once, nothing taken off for the mask: no kernel moves less, unless a cache held the inputs."""
    sizes = (call.queries, call.keys, call.heads, call.head_dim, call.kv_heads, call.batch)
    return once_each(*sizes, call.number_format)


def once_backward(call: Call) -> Work:
    """The same of a backward without the matrix: what was saved is read, and the output's gradient; three are written.

    Five products to forward's two: the scores are computed again.
    """
    read = 3 * call.query_bytes + 2 * call.key_bytes + call.sum_bytes
    flops = 10 * call.rows * call.keys * call.head_dim
    return Work(flops, read, call.query_bytes + 2 * call.key_bytes)


def naive(call: Call) -> dict[str, Work]:
    """The kernels of `naive`, in order: the matrix is written three times and read three times."""
    q, kv, matrix, mask = call.query_bytes, call.key_bytes, call.matrix_bytes, call.mask_bytes
    product = 2 * call.rows * call.keys * call.head_dim
    return {
        "scale": Work(0, q, q),
        "scores": Work(product, q + kv, matrix),
        "mask": Work(0, matrix + mask, matrix),
        "softmax": Work(0, matrix, matrix),
        "values": Work(product, matrix + kv, q),
        "empty rows": Work(0, mask, call.queries) + Work(0, q + call.queries, q),
    }


def naive_backward(call: Call) -> dict[str, Work]:
    """The kernels that autograd runs for `naive`: the matrix is written three times and read six times."""
    q, kv, matrix, mask = call.query_bytes, call.key_bytes, call.matrix_bytes, call.mask_bytes
    product = 2 * call.rows * call.keys * call.head_dim
    return {
        "empty rows": Work(0, q + call.queries, q),
        "of values": Work(product, matrix + q, kv),
        "of the softmax": Work(product, q + kv, matrix),
        "of the scores": Work(0, 2 * matrix, matrix),
        "mask": Work(0, matrix + mask, matrix),
        "of keys": Work(product, matrix + q, kv),
        "of queries": Work(product, matrix + kv, q),
        "scale": Work(0, q, q),
    }


def tiled(call: Call) -> Work:
    """The tiled forward: queries once, keys and values in every tile that is visited; output and log-sum-exp once.

    >>> call = Call(queries=4096, heads=1, kv_heads=1, head_dim=64)
    >>> round(tiled(call).bytes / sum_of(naive(call)).bytes, 2)
    0.08
    """
    seen = visited(call)
    a_key = 2 * call.batch * call.kv_heads * call.head_dim * call.value_bytes  # with its value
    read = seen.queries * call.query_bytes // call.queries + seen.keys_read * a_key
    flops = 4 * call.batch * call.heads * call.head_dim * seen.pairs
    return Work(flops, read, call.query_bytes + call.sum_bytes)


def tiled_backward(call: Call) -> Work:
    """The tiled backward, a program for each column: keys and values once, each row that it visits, their gradients.

    First each row's delta is made of the output and its gradient. A visit reads q, the output's gradient, log-sum-exp
    and delta, and adds to the gradient of q in FP32, which in 16 bits is rounded at the end. Five products to forward's
    two.
    """
    seen = visited(call)
    delta = Work(0, 2 * call.query_bytes, call.sum_bytes)
    sums = call.rows * call.head_dim * SUMS  # the gradient of q in FP32: zeroed, added to, rounded
    per_visit = 2 * call.query_bytes + 2 * call.sum_bytes + sums
    read = 2 * call.key_bytes * seen.keys // call.keys + per_visit * seen.rows_read // call.queries
    written = sums + sums * seen.rows_read // call.queries + 2 * call.key_bytes
    flops = 10 * call.batch * call.heads * call.head_dim * seen.pairs
    total = delta + Work(flops, read, written)
    return total if call.value_bytes == SUMS else total + Work(0, sums, call.query_bytes)


def split(call: Call, splits: int) -> dict[str, Work]:
    """Decoding with the keys in `splits` parts, each a program of its own; then their results are merged.

    One query makes one row of tiles, so without splits one program for each head reads all keys: few of the chip's
    units have work. The parts cost their FP32 outputs and log-sum-exps, written and read.
    """
    require_whole("splits", splits, most=call.keys)
    whole, parts = tiled(call), splits * (call.rows * call.head_dim * SUMS + call.sum_bytes)
    queries = (splits - 1) * call.query_bytes
    return {
        "splits": Work(whole.flops, whole.read_bytes + queries, parts),
        "merge": Work(0, parts, call.query_bytes + call.sum_bytes),
    }


def sum_of(kernels: dict[str, Work]) -> Work:
    """The work of all of them."""
    return reduce(add, kernels.values())


@dataclass(frozen=True)
class Visited:
    """What the rows of tiles of one head visit, in queries and keys; a ragged tile at an end counts what is in it."""

    queries: int  # of rows that visit anything
    keys: int  # of columns that anything visits
    keys_read: int  # over all rows
    rows_read: int  # queries over all columns
    pairs: int  # in all tiles visited
    tiles: int


def visited(call: Call) -> Visited:
    """What a tiled kernel visits for `call`."""
    return _visited(call.mask, call.queries, call.keys, *call.tile)


@lru_cache(maxsize=256)
def _visited(mask: Mask, all_queries: int, all_keys: int, tile_q: int, tile_k: int) -> Visited:
    queries = keys_read = rows_read = pairs = tiles = 0
    columns: list[range] = []
    for row, ranges in enumerate(mask.columns(all_queries, all_keys, tile_q, tile_k)):
        height = min(tile_q, all_queries - row * tile_q)
        width, count = _keys(ranges, tile_k, all_keys), sum(map(len, ranges))
        queries += height if ranges else 0
        keys_read += width
        rows_read += height * count
        pairs += height * width
        tiles += count
        columns += ranges
    keys = _keys(joined(sorted(columns, key=attrgetter("start"))), tile_k, all_keys)
    return Visited(queries, keys, keys_read, rows_read, pairs, tiles)


def _keys(ranges: list[range], tile_k: int, keys: int) -> int:
    """Keys in columns of tiles; the last column may be a narrow one."""
    return sum(min(span.stop * tile_k, keys) - span.start * tile_k for span in ranges)
