"""Ways to need less memory, each short enough to read in one sitting. Imports catalog and memory.

    from helpers.techniques import quantization
    small = quantization.replace_linears(model, quantization.NF4Linear.of)
    quantization.model_bytes(small)                 # measured on its storages

Each technique is a package of its own, and imports torch; this file imports nothing. `pareto` is for two of them.
"""
