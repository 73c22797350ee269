"""Ranks on GPUs of one host that read each other's device memory in place.

Needs CUDA. Messages, meetings and rows in host memory go over the board and shared memory. Memory
of a peer is told to torch as this rank's own: its kernels run here, whatever card it lies on.
"""

from __future__ import annotations

import base64
import ctypes
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiergnn.errors import PlanError
from tiergnn.transport.board import Board
from tiergnn.transport.shared import Piece, Shared
from tiergnn.transport.transport import Allocated
from tiergnn.units import format_bytes

_HANDLE_BYTES = 64  # cudaIpcMemHandle_t
_BLOCK_BYTES = 2 * 2**20
_LAZY_PEER_ACCESS = 1
_OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
_NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class Ipc(Shared):
    """CUDA IPC: whole allocations of cudaMalloc, mapped by the others. Ranks may share a card."""

    name = "ipc"

    def __init__(self, watch: Board, rank: int, **options: Any) -> None:
        torch.cuda.init()  # which loads the runtime
        self._cudart = ctypes.CDLL(_runtime())
        self._made: list[int] = []
        self._mapped: list[int] = []
        super().__init__(watch, rank, **options)

    def _make(self, num_bytes: int, kind: str) -> Piece:
        if kind == "cpu":
            return super()._make(num_bytes, kind)
        # Smaller ones would share a block of the driver, whose handle is that of its first.
        size = -(-max(1, num_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES
        address, handle = self._allocated_at(size), _Handle()
        code = self._cudart.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(address))
        self._asked(code, "cannot be shared")
        memory = _tensor(address, size)[:num_bytes].zero_()
        torch.cuda.current_stream().synchronize()
        told = base64.b64encode(bytes(handle)).decode()
        # Kept until the end: a peer may have it mapped.
        return Piece(memory, f"{told}:{num_bytes}", lambda: None)

    def _allocated_at(self, size: int) -> int:
        """The address of ``size`` bytes; torch gives back what it keeps for later where it must."""
        torch.cuda.current_stream().synchronize()  # the context exists, and is of this device
        address = ctypes.c_void_p()
        for code in (1, 0):
            if not self._cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)):
                assert address.value is not None
                self._made.append(address.value)
                return address.value
            self._cudart.cudaGetLastError()  # or torch would take it for its own
            if code:
                torch.cuda.empty_cache()
        raise PlanError(
            f"device memory of {format_bytes(size)} wanted for rows that peers read",
            hint="a plan with a smaller device_memory, or more ranks",
        )

    def _map(self, address: str, kind: str) -> Tensor:
        if kind == "cpu":
            return super()._map(address, kind)
        told, _, num_bytes = address.partition(":")
        handle = _Handle.from_buffer_copy(base64.b64decode(told))
        there = ctypes.c_void_p()
        code = self._cudart.cudaIpcOpenMemHandle(
            ctypes.byref(there), handle, ctypes.c_uint(_LAZY_PEER_ACCESS)
        )
        self._asked(code, "of a peer cannot be mapped")
        assert there.value is not None
        self._mapped.append(there.value)
        return _tensor(there.value, max(1, int(num_bytes)))[: int(num_bytes)]

    def close(self) -> None:
        if not self._closed:
            self.barrier(tag="close")  # nobody reads any more
            torch.cuda.synchronize()
            self._inbox.clear()
            for address in self._mapped:
                self._cudart.cudaIpcCloseMemHandle(ctypes.c_void_p(address))
            self._mapped.clear()
        super().close()  # all meet once more: what others have mapped must not be given back

    def _end(self) -> None:
        super()._end()
        for address in self._made:
            self._cudart.cudaFree(ctypes.c_void_p(address))
        self._made.clear()

    def _asked(self, code: int, problem: str) -> None:
        if code:
            self._cudart.cudaGetLastError()
            raise PlanError(
                f"device memory {problem}: CUDA error {code}",
                hint="--transport nccl, or one rank a card with peer access",
            )


class Symmetric(Ipc):
    """torch's symmetric memory for what is allocated: of all ranks, as large as the largest."""

    name = "symmetric"

    def __init__(self, watch: Board, rank: int, *, store: Any, **options: Any) -> None:
        # Two ranks of one card are refused otherwise, and work.
        os.environ.setdefault(_OVERLAPPING, "1")
        os.environ.setdefault(_NO_MULTICAST, "1")  # nothing here writes to all at once
        super().__init__(watch, rank, **options)
        self._ours = not dist.is_initialized()
        if self._ours:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("tiergnn/symmetric", store),  # pyright: ignore[reportPrivateImportUsage]
                rank=rank,
                world_size=self.size,
            )

    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        if torch.device(device).type == "cpu":
            return super()._share(shape, dtype, device)
        from torch.distributed import _symmetric_memory as symmetric

        shapes = self._messages(list(shape), "main", "allocate")
        most = max(math.prod(each) for each in shapes)
        where = torch.device("cuda", torch.cuda.current_device())
        memory = symmetric.empty(max(1, most), dtype=dtype, device=where)
        memory.zero_()
        torch.cuda.current_stream().synchronize()
        # Of the whole world: groups within it are not served.
        world = dist.group.WORLD
        assert world is not None  # joined above
        view = symmetric.rendezvous(memory, world)
        self._meet("main", "allocate")
        peers = tuple(
            memory[: math.prod(form)].view(form)
            if rank == self.rank
            else view.get_buffer(rank, tuple(form), dtype)
            for rank, form in enumerate(shapes)
        )
        return Allocated(peers[self.rank], peers)

    def _end(self) -> None:
        super()._end()
        if self._ours:
            dist.destroy_process_group()


def _tensor(address: int, num_bytes: int) -> Tensor:
    """uint8 [num_bytes] at an address, on the current device: asked where memory of a peer lies,
    CUDA names that one's, and torch would copy it from there."""
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch._C._construct_storage_from_data_pointer(address, device, num_bytes)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(memory, 0, (num_bytes,), (1,))


def _runtime() -> str:
    """The file of the CUDA runtime that torch has loaded, or a name to look for."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split(maxsplit=5)[-1] for line in maps if "libcudart" in line]
    return found[0] if found else f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}"
