"""GRPO and DPO by stages: a training step of `budget`, and the forwards without gradients that run between two of them.

from helpers.memory.preference import grpo
grpo(GrpoSetup(TrainSetup("qwen3-8b", micro_batch=8, sequence=1024), prompt=512), "h100").peak_bytes
"""

from .stages import PreferenceBudget, PreferenceStage, dpo, grpo

__all__ = ["PreferenceBudget", "PreferenceStage", "dpo", "grpo"]
