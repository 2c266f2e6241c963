"""A window with attention sinks: the first few tokens and the last w (StreamingLLM, arXiv 2309.17453).

Cached keys keep the rotation they came with and queries have their true position, so every distance that attention
sees is the true one, and a sink drifts away as the text goes on. (StreamingLLM counts positions inside the cache
instead and rotates keys when they are read: that goes on past the longest position the model was trained on. This one
does not; it saves memory within it.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layers import KVLayer, joined


class WindowLayer(KVLayer):
    """Keeps the last `window` tokens, the newest among them, and the first `sinks` ones.

    A token decoded alone attends to just those. A prompt read in one piece attends to all of itself and is cut to size
    afterwards; of several tokens at once, the later ones see as many more. `padding` [rows] counts the padding tokens
    on the left of each row, which are dropped first: without it, in a batch of ragged prompts, they would be the sinks.
    `sliding` marks a window that belongs to the model itself, whose mask is exact for any number of tokens at once.
    """

    def __init__(self, window: int, sinks: int = 0, padding: Tensor | None = None, sliding: bool = False) -> None:
        super().__init__()
        self.window, self.sinks, self.padding, self.is_sliding = window, sinks, padding, sliding

    @property
    def held(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def room(self) -> int:
        return self.sinks + self.window

    def kept(self, new: int) -> int:
        """All while there is room; then one less than the room, which the first new token fills."""
        return self.held if self.held + new <= self.room else min(self.held, self.room - 1)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is None:
            self.lead = keys.new_zeros(len(keys), dtype=torch.long) if self.padding is None else self.padding.clone()
        self._cut(self.kept(keys.shape[2]))
        found = self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        self._cut(self.room)
        return found

    def get_max_length(self) -> int:
        return self.room

    def _cut(self, room: int) -> None:
        """Down to `room` tokens, in tensors of their own: a slice would keep the whole prompt in memory."""
        surplus = self.held - room
        if surplus <= 0:
            return
        padding = self.lead.clamp(max=surplus)[:, None]  # padding goes first, then what follows the sinks
        self.lead = self.lead - padding[:, 0]
        slot = torch.arange(room, device=self.keys.device)[None]
        slot = slot + padding + (slot >= self.sinks) * (surplus - padding)
        self.keys, self.values = picked(self.keys, slot[:, None]), picked(self.values, slot[:, None])


def picked(states: Tensor, slots: Tensor) -> Tensor:
    """The tokens at `slots` [rows, heads or 1, tokens] of `states` [rows, heads, tokens, width], in a new tensor."""
    rows, heads, _, width = states.shape
    return states.gather(2, slots[..., None].expand(rows, heads, -1, width))
