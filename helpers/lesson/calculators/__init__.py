"""Calculators: pure functions from choices to an Answer, and thin widgets over them.

from helpers.lesson.calculators import training_memory
training_memory()                                       # live, in a notebook
print(training_memory().answer(micro_batch=4))          # the same in text
"""

from .allocation import AllocationAnswer, allocation, allocation_answer
from .block_map import BlockMapAnswer, block_map, block_map_answer
from .checkpointing import CheckpointingAnswer, checkpointing, checkpointing_answer
from .kv_cache import KVCacheAnswer, kv_cache, kv_cache_answer
from .quantization import QuantizationAnswer, quantization, quantization_answer
from .roofline import RooflineAnswer, roofline, roofline_answer
from .serving_memory import serving_answer
from .shell import Answer, Calculator, MemoryAnswer
from .training_memory import changes_that_fit, training_answer, training_memory
from .zero import ZeroAnswer, zero, zero_answer

__all__ = [
    "AllocationAnswer",
    "Answer",
    "BlockMapAnswer",
    "Calculator",
    "CheckpointingAnswer",
    "KVCacheAnswer",
    "MemoryAnswer",
    "QuantizationAnswer",
    "RooflineAnswer",
    "ZeroAnswer",
    "allocation",
    "allocation_answer",
    "block_map",
    "block_map_answer",
    "changes_that_fit",
    "checkpointing",
    "checkpointing_answer",
    "kv_cache",
    "kv_cache_answer",
    "quantization",
    "quantization_answer",
    "roofline",
    "roofline_answer",
    "serving_answer",
    "training_answer",
    "training_memory",
    "zero",
    "zero_answer",
]
