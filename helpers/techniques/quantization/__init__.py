"""Weights, and activations, in fewer bits, with the bytes really stored. Imports torch; engines only when asked.

    from helpers.techniques import quantization as q
    small = q.replace_linears(model, functools.partial(q.QuantizedLinear.of, grid=q.Grid(bits=4, group=64)))
    q.model_bytes(small), q.model_bytes(q.engines.bitsandbytes_4bit(model))

`grids` rounds, `packing` stores, `nf4` and `int8` are formats of their own, `blocks` has those of chips and of GGUF,
`linears` puts them in a model, `engines` are the field's.
"""

from . import blocks, engines
from .grids import Grid, GridScales, require_finite
from .int8 import Int8Tensor, llm_int8, w8a8
from .linears import (
    Int8Linear,
    NF4Linear,
    QuantizedLinear,
    StoredLinear,
    dense_linears,
    model_bytes,
    replace_linears,
    swapped,
)
from .nf4 import NF4_LEVELS, NF4Tensor, normal_levels
from .packing import QuantizedTensor, Stored, pack, storage_bits, unpack
