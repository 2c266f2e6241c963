"""What we look up: devices, tiers, models, number formats, and a setup. Imports nothing of ours, and no torch.

    from helpers.catalog import TrainSetup, device, model
    model("llama-3-8b").parameters                  # 8030261248, exactly what Transformers builds
    device("h100").capacity_bytes / 2**30           # 79.22: what PyTorch reports of the "80 GB"
    TrainSetup("llama-2-7b", optimizer="adamw-fused", micro_batch=4)

Every figure is in data/, with its source and date. torch and Transformers are imported only by `detect` and
by `model` for a family that has no closed form in families.
"""

from .adapters import Adapter
from .devices import DEVICES, Device, Figure, detect, device
from .errors import WorkbookError, unknown_name
from .floats import FLOAT_FORMATS, FloatFormat, float_format
from .formats import NUMBER_FORMATS, NumberFormat, number_format
from .hardware import library_bytes
from .layers import Attention, Layer, Linear, Mla, Mlp
from .models import MODELS, model
from .optimizers import OPTIMIZERS, Optimizer, optimizer
from .recipes import PRECISIONS, Precision
from .serve_setup import ServeSetup
from .shape import ModelShape
from .split import Split
from .tiers import TIERS, Tier, tier
from .train_setup import TrainSetup
