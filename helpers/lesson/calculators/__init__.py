"""Calculators: pure functions from choices to an Answer, and thin widgets over them.

from helpers.lesson.calculators import training_memory
training_memory()                                       # live, in a notebook
print(training_memory().answer(micro_batch=4))          # the same in text
"""

from .serving_memory import serving_answer
from .shell import Answer, Calculator
from .training_memory import changes_that_fit, training_answer, training_memory

__all__ = ["Answer", "Calculator", "changes_that_fit", "serving_answer", "training_answer", "training_memory"]
