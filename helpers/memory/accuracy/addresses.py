"""Where CUDA's driver puts new segments: it decides which of two equal free blocks is used, and so fragmentation."""

from __future__ import annotations

from ..allocator.driver import Driver


class TopDown(Driver):
    """A driver whose addresses fall, as those of mmap do.

    The caching allocator takes the lowest address among free blocks of one size (BlockComparatorSize in
    CUDACachingAllocator.cpp). A GPU shares the addresses of its process (unified virtual addressing), and Linux gives
    those out from the top down, so a newer segment lies below the older ones. The driver's source is not public: that
    cudaMalloc follows is inferred.
    """

    def _address(self, size: int) -> int:
        if self._recorded and self._recorded[0][0] == size:
            return self._recorded.popleft()[1]
        self._next -= size
        return self._next
