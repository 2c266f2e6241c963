"""Where bitsandbytes can be compared with: its products of integers must be exact, and it does not ask."""

import pytest
import torch

from helpers.techniques.quantization import int8

OVERFLOWS = torch.backends.cpu.get_cpu_capability() == "AVX512" and not int8.cpu_kernel_is_exact()
exact_integers = pytest.mark.skipif(OVERFLOWS, reason="products of integers overflow in oneDNN, held to this processor")
