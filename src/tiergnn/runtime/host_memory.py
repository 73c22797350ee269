"""HostMemory: the one piece of host memory that the schedules of a run take turns in."""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.memory.pinning import Pins, page_bytes


class HostMemory:
    """Pages that come when they are first asked for, pinned where ``device`` is a GPU. A larger
    piece takes the place of a smaller one, which nobody may use any more."""

    def __init__(self, device: torch.device):
        self._device, self._pages, self._pins = device, page_bytes(0), Pins()

    def of(self, num_bytes: int) -> Tensor:
        """uint8 of at least so many bytes: the same ones, as long as they do."""
        if self._pages.numel() < num_bytes:
            self.close()
            self._pages = page_bytes(num_bytes)
            if self._device.type == "cuda":
                self._pages.zero_()  # its pages come in all threads, before they come in one
            self._pins.add(self._pages)
        return self._pages

    @property
    def address(self) -> int:
        """Where the pages lie now."""
        return self._pages.data_ptr()

    def close(self) -> None:
        """Give it back."""
        self._pins.close()
        self._pages = page_bytes(0)
