"""Ranks on GPUs of one host that read each other's device memory in place.

Needs CUDA. Messages, meetings and rows in host memory go over the board and shared memory.
"""

from __future__ import annotations

import base64
import ctypes
import math
import os
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


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class _Memory:
    """Device memory at an address, as torch takes it in."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Ipc(Shared):
    """CUDA IPC: whole allocations of cudaMalloc, mapped by the others. Ranks may share a card."""

    name = "ipc"

    def __init__(self, watch: Board, rank: int, **options: Any) -> None:
        self._cudart = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        self._made: list[int] = []
        self._mapped: list[int] = []
        super().__init__(watch, rank, **options)

    def _make(self, num_bytes: int, kind: str) -> Piece:
        if kind == "cpu":
            return super()._make(num_bytes, kind)
        torch.cuda.current_stream().synchronize()  # the context exists, and is of this device
        address, handle = ctypes.c_void_p(), _Handle()
        # Smaller ones would share a block of the driver, whose handle is that of its first.
        size = -(-max(1, num_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES
        if self._cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)):
            raise PlanError(
                f"device memory of {format_bytes(size)} wanted for rows that peers read",
                hint="a plan with a smaller device_memory, or more ranks",
            )
        _asked(self._cudart.cudaIpcGetMemHandle(ctypes.byref(handle), address), "cannot be shared")
        assert address.value is not None
        self._made.append(address.value)
        memory = _tensor(address.value, size)[:num_bytes].zero_()
        torch.cuda.current_stream().synchronize()
        told = base64.b64encode(bytes(handle)).decode()
        # Kept until the end: a peer may have it mapped.
        return Piece(memory, f"{told}:{num_bytes}", lambda: None)

    def _map(self, address: str, kind: str) -> Tensor:
        if kind == "cpu":
            return super()._map(address, kind)
        told, _, num_bytes = address.partition(":")
        handle = _Handle.from_buffer_copy(base64.b64decode(told))
        there = ctypes.c_void_p()
        code = self._cudart.cudaIpcOpenMemHandle(
            ctypes.byref(there), handle, ctypes.c_uint(_LAZY_PEER_ACCESS)
        )
        _asked(code, "of a peer cannot be mapped")
        assert there.value is not None
        self._mapped.append(there.value)
        return _tensor(there.value, max(1, int(num_bytes)))[: int(num_bytes)]

    def _end(self) -> None:
        super()._end()
        torch.cuda.synchronize()
        for address in self._mapped:
            self._cudart.cudaIpcCloseMemHandle(ctypes.c_void_p(address))
        for address in self._made:
            self._cudart.cudaFree(ctypes.c_void_p(address))
        self._mapped.clear()
        self._made.clear()


class Symmetric(Ipc):
    """torch's symmetric memory for what is allocated: of all ranks, as large as the largest."""

    name = "symmetric"

    def __init__(self, watch: Board, rank: int, *, store: Any, **options: Any) -> None:
        # Two ranks of one card are refused otherwise, and work.
        os.environ.setdefault(_OVERLAPPING, "1")
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
        memory = symmetric.empty(max(1, most), dtype=dtype, device=torch.device(device))
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
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.as_tensor(_Memory(address, num_bytes), device=device)


def _asked(code: int, problem: str) -> None:
    if code:
        raise PlanError(
            f"device memory {problem}: CUDA error {code}",
            hint="--transport nccl, or one rank a card with peer access",
        )
