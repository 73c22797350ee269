"""Effort: how much measuring may use, in bytes, widths and seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """``budget_s`` is of one figure; nothing is larger than ``most_bytes`` at a time."""

    budget_s: float
    most_bytes: int  # of all that is held at once
    read_bytes: int  # gathered by one call
    row_bytes: tuple[int, ...]  # widths of rows
    matmul_flops: float  # of one product
    other_width: int  # of a product, or as its narrowest
    product_bytes: int  # of its rows at most
    narrowest: tuple[int, ...]  # widths of products
    tensor_bytes: tuple[int, ...]  # of operations in order
    copy_bytes: int
    attend_edges: int  # of a call that takes many times what its launch does
    attend_degree: int  # edges of a row, beside few
    processor_time: bool = False  # see ``Clock``

    def within(self, free_bytes: int) -> Effort:
        """The same with a quarter of the free memory at most."""
        most = min(self.most_bytes, max(4 * MIB, free_bytes // 4))
        return replace(
            self,
            most_bytes=most,
            read_bytes=min(self.read_bytes, most // 2),
            copy_bytes=min(self.copy_bytes, most // 4),
            product_bytes=min(self.product_bytes, most // 8),
            tensor_bytes=tuple(size for size in self.tensor_bytes if 4 * size <= most) or (MIB,),
        )


CPU = Effort(
    budget_s=0.09,
    most_bytes=1024 * MIB,
    read_bytes=128 * MIB,
    row_bytes=(16, 64, 256, 1024, 4096),
    matmul_flops=2.0**29,
    other_width=64,
    product_bytes=16 * MIB,  # which no cache holds with what is made of them
    narrowest=(2, 4, 16, 64, 256, 512),
    tensor_bytes=tuple(int(mib * MIB) for mib in (0.25, 1, 4, 16, 64)),
    copy_bytes=128 * MIB,
    attend_edges=2**19,
    attend_degree=16,
)
CUDA = Effort(
    budget_s=0.04,
    most_bytes=16 * 1024 * MIB,
    read_bytes=4 * 1024 * MIB,
    row_bytes=(16, 32, 64, 128, 256, 1024),
    matmul_flops=2.0**36,
    other_width=256,
    product_bytes=2048 * MIB,
    narrowest=(4, 16, 64, 256, 1024),
    tensor_bytes=tuple(mib * MIB for mib in (128, 1024)),  # of smaller ones the launch is most
    copy_bytes=512 * MIB,
    attend_edges=2**23,
    attend_degree=48,  # tiles of fewer edges are not full
)
# To see in a second or two that everything works; the figures are rough.
TINY = Effort(
    budget_s=0.002,
    most_bytes=64 * MIB,
    read_bytes=4 * MIB,
    row_bytes=(64, 256),
    matmul_flops=2.0**22,
    other_width=256,
    product_bytes=8 * MIB,
    narrowest=(16, 64),
    tensor_bytes=(MIB // 4, 2 * MIB),
    copy_bytes=8 * MIB,
    attend_edges=2**15,
    attend_degree=16,
)
