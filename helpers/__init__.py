"""The GPU Memory Workbook's package: look things up, compute memory, need less of it, teach it, run a course.

Rooms, and what each may import (downwards only; a test holds it):

    catalog      devices, models, number formats, setups      nothing of ours
    memory       closed form, meter, trace, allocator …       catalog
    techniques   ways to need less                            catalog, memory
    watch        a running machine: samples, alarms           catalog, memory
    lesson       what a notebook shows                        catalog, memory, techniques, watch, small_lm
    course       what an author runs: build, release, doctor  all of these
    grading      what an instructor runs                      all of these
    cli          the `workbook` command                       anything
    small_lm     the small language model, a leaf             catalog

This file imports nothing, so `import helpers` is instant and never loads torch. Ask a room for what you need:

    from helpers.catalog.train_setup import TrainSetup
    from helpers.memory import budget
    budget.train(TrainSetup(model="llama-2-7b", optimizer="adamw-fused")).peak_bytes
"""

__version__ = "0.1.0"
PACKAGE = __name__  # in a wheel "gpu_memory_workbook": see setup.py
