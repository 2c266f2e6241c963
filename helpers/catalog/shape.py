"""What a decoder model is made of: every trainable tensor, counted; no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from .errors import WorkbookError
from .formats import NumberFormat, number_format
from .gguf_header import StoredTensor
from .layers import LLAMA_CPP, TRANSFORMERS, Layer, Linear, LinearGroup, StateRule, TensorShape
from .optimizers import EMBEDDING, HEAD


@dataclass(frozen=True)
class Counted:
    """Figures counted on the Transformers model itself, for a family that has no closed form here, or in a file.

    `stored` are a GGUF file's tensors, each in a type of its own.
    """

    parameters: int
    linears: tuple[LinearGroup, ...]
    tensors: tuple[TensorShape, ...]
    kv_known: bool
    stored: tuple[StoredTensor, ...] = ()


@dataclass(frozen=True)
class Tower:
    """Towers and projectors of one model: what they are called, and their parameters; None where nobody counted them.

    >>> Tower("vision tower and projector", 423_060_336).told
    'Its vision tower and projector, 423,060,336 parameters, are counted in 16 bits.'
    """

    name: str
    parameters: int | None
    note: str = ""  # a sentence on what is kept of an image

    @property
    def told(self) -> str:
        if self.parameters is None:
            return f"Its {self.name} are not counted: these bytes are the language model's alone."
        counted = f"Its {self.name}, {self.parameters:,} parameters, are counted in 16 bits."
        return f"{counted} {self.note}" if self.note else counted


@lru_cache(1024)
def _tensors_of(layer: Layer, hidden: int) -> tuple[tuple[TensorShape, str], ...]:
    """Of eighty equal layers once."""
    return tuple((shape, "") for shape in layer.tensors(hidden))


@dataclass(frozen=True)
class ModelShape:
    """A decoder language model, tensor by tensor.

    `learned_positions` is the number of rows of a learned position table (0 with rotary positions);
    `embedding_width` the width of the token embedding, which OPT-350m projects to `hidden` and back with
    `projections`. `counted` is set for families known only to Transformers. `beside` are a multimodal
    checkpoint's towers: weights that are served, of which no other figure here speaks.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    max_positions: int
    final_norm_parameters: int
    source: str
    learned_positions: int = 0
    norm: str = "rmsnorm"
    lm_head_bias: bool = False
    embedding_width: int = 0
    projections: tuple[Linear, ...] = ()
    counted: Counted | None = None
    config: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    beside: tuple[Tower, ...] = ()

    def __post_init__(self) -> None:
        if not self.embedding_width:
            object.__setattr__(self, "embedding_width", self.hidden)

    def __repr__(self) -> str:
        """One line for the last line of a cell: the layers, written out, would fill pages."""
        return f"<{self.name}: {self.family}, {self.parameters:,} parameters, {len(self.layers)} layers>"

    @cached_property
    def parameters(self) -> int:
        """Every trainable value, a tied embedding counted once. Llama-2-7B: 6,738,415,616."""
        return self.counted.parameters if self.counted else sum(self.parameters_by_part.values())

    @property
    def parameters_beside(self) -> int:
        """Of towers and projectors, where they are counted. Gemma-3-27B: 423,060,336."""
        return sum(tower.parameters or 0 for tower in self.beside)

    @property
    def parameters_with_towers(self) -> int:
        """All that a checkpoint holds. Gemma-3-27B: 27,432,406,640."""
        return self.parameters + self.parameters_beside

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """The tensors of the GGUF file that the model was read from; none for any other."""
        return self.counted.stored if self.counted else ()

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of embedding, positions, attention, mlp, norms and lm_head (tied: only its bias).

        A family known only to Transformers gives embedding, lm_head, and the rest as "other".
        """
        table = self.vocab * self.embedding_width
        embedding = table + sum(projection.parameters for projection in self.projections)
        head = (0 if self.tied else table) + (self.vocab if self.lm_head_bias else 0)
        if self.counted:
            rest = self.counted.parameters - embedding - head
            return {"embedding": embedding, "other": rest, "lm_head": head}
        return {
            "embedding": embedding,
            "positions": self.learned_positions * self.hidden,
            "attention": sum(layer.attention.parameters for layer in self.layers),
            "mlp": sum(layer.mlp.parameters for layer in self.layers),
            "norms": sum(layer.norm_parameters for layer in self.layers) + self.final_norm_parameters,
            "lm_head": head,
        }

    def linears(self) -> tuple[LinearGroup, ...]:
        """Every linear layer that a weight format may shrink, equal ones together; a tied lm_head is none.

        Routed experts are in it one by one, although Transformers stacks them in one tensor.
        """
        return self._linears

    @cached_property
    def _linears(self) -> tuple[LinearGroup, ...]:
        """Counted once for a shape: a search for plans asks a thousand times."""
        groups = Counter({LinearGroup("projections", linear, 1): 1 for linear in self.projections})
        for one in self.counted.linears if self.counted else (one for layer in self.layers for one in layer.linears()):
            groups[one] += 1
        if not self.tied:
            head = Linear("lm_head", self.embedding_width, self.vocab, self.lm_head_bias)
            groups[LinearGroup("lm_head", head, 1)] += 1
        return tuple(LinearGroup(one.part, one.linear, one.count * times) for one, times in groups.items())

    @cached_property
    def experts_unread(self) -> bool:
        """Whether it has experts of which nothing says how many a token uses: counted on Transformers' model alone.

        Their stacked weights are told by their three dimensions, of which a depthwise convolution's second is 1.
        """
        counted = self.counted
        return counted is not None and not counted.stored and any(len(a) == 3 and a[1] > 1 for a in counted.tensors)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses; equal to `parameters` in a dense model."""
        if self.counted:
            what = f"how many parameters a token uses is not known for the family {self.family!r}"
            do = "read it on the model card"
            raise WorkbookError(what, "a family with a closed form in helpers.catalog.families", do)
        mlps = [layer.mlp for layer in self.layers]
        return self.parameters - sum(mlp.parameters - mlp.active_parameters for mlp in mlps)

    @property
    def is_dense_decoder(self) -> bool:
        """True when every layer is plain attention and one MLP, of a family with a closed form here."""
        attentions = (layer.attention for layer in self.layers)
        plain = not any(one.mla or one.delta for one in attentions)
        return self.counted is None and plain and not self.has_experts

    @property
    def has_experts(self) -> bool:
        """Whether some layer has routed experts, which Transformers stacks in one tensor."""
        return any(layer.mlp.experts for layer in self.layers)

    @property
    def heads(self) -> int:
        """Query heads of the first layer; `kv_heads`, `head_dim` and `ffn` are the first layer's too."""
        return self.layers[0].attention.heads

    @property
    def kv_heads(self) -> int:
        return self.layers[0].attention.kv_heads

    @property
    def head_dim(self) -> int:
        return self.layers[0].attention.head_dim

    @property
    def ffn(self) -> int:
        return self.layers[0].mlp.ffn

    def tensors(self) -> Iterator[TensorShape]:
        """The shape of every trainable tensor, as Transformers holds it (GPT-2's are transposed there).

        Rules that work per tensor need it: 8-bit optimizer states below 4096 values, Adafactor's factors.
        """
        return (shape for shape, _ in self.trained())

    def trained(self) -> Iterator[tuple[TensorShape, str]]:
        """Every tensor of `tensors`, in the order of `model.parameters()`, with its role: EMBEDDING, HEAD or ""."""
        table = (self.vocab, self.embedding_width)
        if self.counted:
            ends = iter((EMBEDDING,) if self.tied else (EMBEDDING, HEAD))
            yield from ((shape, next(ends, "") if shape == table else "") for shape in self.counted.tensors)
            return
        yield table, EMBEDDING
        if self.learned_positions:
            yield (self.learned_positions, self.hidden), EMBEDDING
        for projection in self.projections:
            yield from ((shape, "") for shape in projection.tensors())
        for layer in self.layers:
            yield from _tensors_of(layer, self.hidden)
        for _ in range(self.final_norm_parameters // self.hidden):
            yield (self.hidden,), ""
        if not self.tied:
            yield table, HEAD
        if self.lm_head_bias:
            yield (self.vocab,), ""

    def kv_values(self, context: int, piece: int = 1) -> int:
        """K and V values held for one sequence of `context` tokens, over all layers, windows bounded.

        With the last forward's `piece` of more than one token, what windows hold of it until the next (`Attention`).
        States of recurrent layers are no such values: `cache_bytes` has both.

        Llama-2-70B at 2048 tokens: 80 layers x 2 x 8 x 128 x 2048 = 335,544,320; in BF16 640 MiB.
        """
        if self.counted and not self.counted.kv_known:
            what = f"the KV cache of the family {self.family!r} is not known here"
            do = "measure it on the model; its training step is known: `workbook estimate train`"
            if self.stored:
                do = "name its config.json for the cache; the weights in the file are `model(file).stored`"
            raise WorkbookError(what, "a model whose Transformers cache holds keys and values or states", do)
        return sum(layer.attention.kv_values(context, piece) for layer in self.layers)

    @property
    def state_rule(self) -> StateRule:
        """How recurrent states are kept where no engine is named."""
        return LLAMA_CPP if self.stored else TRANSFORMERS

    def state_bytes(self, rule: StateRule | None = None) -> int:
        """Bytes that recurrent layers keep of one sequence, whatever its length; 0 in a model without.

        Without a `rule` as Transformers keeps them, and of a GGUF file as llama.cpp does.
        """
        rule = rule or self.state_rule
        states = (layer.attention.state for layer in self.layers)
        return sum(state.size_bytes(rule) for state in states if state)

    def cache_bytes(
        self, kv: str | NumberFormat, context: int, piece: int = 1, drafts: int = 0, rule: StateRule | None = None
    ) -> int:
        """All that is kept of one sequence of `context` tokens: K and V in the format `kv`, and states.

        With `drafts` tokens guessed at once an engine keeps as many more copies of each state, to go back to.

        Llama-2-70B, 2,048 tokens in BF16: 640 MiB. Qwen3-Next-80B, 262,144 tokens: 6 GiB (24 KiB a token) and 75 MiB.
        """
        stored = number_format(kv) if isinstance(kv, str) else kv
        sparse = [one for one in self.layers if stored.name.startswith("fp8") and one.attention.sparse_fp8_bytes]
        values = self.kv_values(context, piece) - sum(one.attention.kv_values(context, piece) for one in sparse)
        packed = sum(context * one.attention.sparse_fp8_bytes for one in sparse)
        return stored.storage_bytes(values) + packed + (1 + drafts) * self.state_bytes(rule)

    def kv_values_per_token_at(self, context: int) -> int:
        """K and V values that token number `context` added, over the layers that were still growing.

        A layer with a window of w grows up to and with its w-th token, and adds nothing from w + 1 on.
        """
        return self.kv_values(context) - self.kv_values(context - 1)
