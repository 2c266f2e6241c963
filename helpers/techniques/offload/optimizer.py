"""AdamW on the host: gradients go down as backward makes them, the update runs on the CPU, new weights come up.

    optimizer = HostAdamW(model.parameters(), streams, lr=1e-3)
    loss.backward()                  # each gradient leaves as soon as it is whole, and is freed on the device
    optimizer.step()

The device keeps weights alone. The host keeps 16 bytes for each parameter: FP32 master weight, two moments and the
gradient, 12 without the last. Ren et al., ZeRO-Offload, 2021 (arXiv 2101.06840); at work: DeepSpeed's
`offload_optimizer`, or FSDP2's `CPUOffloadPolicy`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError
from ...memory.meter.places import Place, at
from .host import HostBuffers
from .streams import Lane, StreamEvent, Streams

HOST_BYTES = {"master": 4, "first moment": 4, "second moment": 4, "gradient": 4}  # of a parameter


class HostAdamW:
    """`torch.optim.AdamW` on FP32 copies of `parameters` in host memory, fused as on a GPU.

    Any number of backward passes may come before a step: their gradients are added on the host, in FP32. What travels
    is in the weights' own format: of a BF16 model 2 bytes a parameter go down in each pass, and 2 come up in a step.
    Two buffers of the largest parameter's size, pinned if it is on a GPU, take turns for all of them. After the
    backward pass a parameter has no `grad`: whoever clips by it finds nothing.
    """

    def __init__(self, parameters: Iterable[Tensor], streams: Streams, **options: Any) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self.parameters:
            do = "pass model.parameters(), before anything is frozen"
            raise WorkbookError("no parameter wants a gradient", "one that is trained", do)
        self.streams = streams
        first = self.parameters[0]
        self.buffers = HostBuffers(2, max(one.nbytes for one in self.parameters), first.is_cuda)
        with at(Place.HOST):
            self.masters = {one: one.detach().to("cpu", torch.float32, copy=True) for one in self.parameters}
            self.optimizer = torch.optim.AdamW(self.masters.values(), fused=True, **options)
        self._coming: deque[tuple[Tensor, Tensor, StreamEvent]] = (
            deque()
        )  # parameter, where its gradient arrives, and when
        self._hooks = [one.register_post_accumulate_grad_hook(self._send) for one in self.parameters]

    def step(self) -> None:
        """Update on the host with the gradients that came down, and bring the weights up."""
        self._add_all_but(0)
        with at(Place.HOST):
            self.optimizer.step()
        going: deque[tuple[Tensor, StreamEvent]] = deque()
        for parameter, master in self.masters.items():
            if len(going) == 2:
                self._back(*going.popleft())
            if master.grad is not None:
                buffer = self.buffers.take()
                view = viewed(buffer, parameter).copy_(master.detach())  # in the weights' format, before it travels
                after = [self.streams.so_far()]
                going.append((buffer, self.streams.copy([(parameter.data, view)], after, name="weights")))
        while going:
            self._back(*going.popleft())
        self.optimizer.zero_grad()

    def holds(self) -> dict[str, list[Tensor]]:
        """The host's tensors, by what they are."""
        states = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        return {
            "master weights": list(self.masters.values()),
            "moments": [tensor for tensor in states if tensor.dim()],  # without the count of steps
            "gradients": [one.grad for one in self.masters.values() if one.grad is not None],
        }

    def close(self) -> None:
        """Take the hooks off the parameters: their gradients stay on the device from now on."""
        for hook in self._hooks:
            hook.remove()

    def _send(self, parameter: Tensor) -> None:
        """A gradient is whole: start its way down, and let the device have its bytes back."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        self._add_all_but(1)
        buffer = self.buffers.take()
        pairs, after = [(viewed(buffer, parameter), gradient)], [self.streams.so_far()]
        self._coming.append((parameter, buffer, self.streams.copy(pairs, after, lane=Lane.DOWN, name="gradient")))

    def _add_all_but(self, most: int) -> None:
        """Add what has come down to the sums in FP32, until `most` gradients are on their way."""
        while len(self._coming) > most:
            parameter, buffer, event = self._coming.popleft()
            self.streams.wait(event)
            master = self.masters[parameter]
            with at(Place.HOST), torch.no_grad():
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                master.grad += viewed(buffer, parameter)
            self.buffers.give(buffer)

    def _back(self, buffer: Tensor, event: StreamEvent) -> None:
        self.streams.wait(event)
        self.buffers.give(buffer)


def viewed(buffer: Tensor, like: Tensor) -> Tensor:
    """The beginning of a buffer of bytes, in the shape and format of `like`."""
    return buffer[: like.nbytes].view(like.dtype).view(like.shape)
