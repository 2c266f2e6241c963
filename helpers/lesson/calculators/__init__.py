"""Calculators: pure functions from choices to a CalculatorAnswer, and thin widgets over them.

    from helpers.lesson.calculators import training_memory
    training_memory()                                       # live, in a notebook
    print(training_memory().answer(micro_batch=4))          # the same in text

An answer needs the standard library alone; ipywidgets and IPython are imported when a calculator is shown.
"""

from .allocation import AllocationAnswer, allocation, allocation_answer
from .answers import CalculatorAnswer, MemoryAnswer
from .attention import AttentionAnswer, attention, attention_answer
from .block_map import BlockMapAnswer, block_map, block_map_answer
from .calculator import Calculator
from .can_i_run import UsesAnswer, can_i_run, can_i_run_answer
from .checkpointing import CheckpointingAnswer, checkpointing, checkpointing_answer
from .engine_memory import EngineAnswer, engine_answer
from .engine_others import LlamaCppAnswer, SglangAnswer, llamacpp_answer, sglang_answer
from .fine_tuning import FineTuningAnswer, as_usual, fine_tuning, fine_tuning_answer
from .histograms import Histogram
from .kv_cache import KVCacheAnswer, kv_cache, kv_cache_answer
from .memory import TrainingAnswer, changes_that_fit, training_answer, training_memory
from .mesh import MeshAnswer, mesh, mesh_answer
from .numbers import NumberAnswer, number_answer, numbers
from .offload import offload
from .offload_serving import OffloadServingAnswer, offload_serving_answer
from .offload_training import OffloadTrainingAnswer, offload_training_answer
from .planner import PlannerAnswer, planner, planner_answer
from .preference import PreferenceAnswer, preference_answer, reinforcement
from .quantization import QuantizationAnswer, quantization, quantization_answer
from .roofline import RooflineAnswer, roofline, roofline_answer
from .service_planner import ServicePlannerAnswer, service_planner, service_planner_answer
from .serving_load import ServingLoadAnswer, serving_load, serving_load_answer
from .serving_memory import ServingAnswer, serving_answer
from .tensor_numbers import TensorNumbersAnswer, tensor_answer, tensor_numbers
from .workloads import Efficiencies, Workload
from .zero import ZeroAnswer, zero, zero_answer
