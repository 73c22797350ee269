"""Brought: blocks on their way to the device, with what is made of their edges beforehand.

In-edges go first, out-edges when backward asks for them. With either go the tasks that a GPU's
kernels cut their rows into, where plans count them: made on the device they would take several
times the room, at every visit, and the device would be waited for.

Legend: P rows of a block, S its sources, E its edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial

import numba
import torch
from torch import Tensor

from tiergnn.kernels.block import Block, Transposed
from tiergnn.kernels.tasks import cut_rows, packed, placed
from tiergnn.memory.pinning import page_bytes

_Arrays = dict[str, Tensor]
_TASKS = {"tasks": False, "tasks_t": True}  # of in-edges, and of out-edges
_SHARED = ("dst_gid", "src_gid", "reverses", "degrees")  # with the same block less its loops
_ALIGNED_BYTES = 64


def less_loops(block: Block, *, edge_ids: bool) -> Block:
    """A block less its loops, whose other edges keep their place in the graph (``edge_ids``);
    itself where it has none."""
    if _has_loops(block.rowptr.numpy(), block.col.numpy()):
        block = block.only(torch.nonzero(block.col != block.edge_dst).flatten())
        block = block if edge_ids else replace(block, eid=None)
    vars(block)["loopless"] = None
    return block


@numba.njit(cache=True, nogil=True)
def _has_loops(rowptr, col):
    for row in range(rowptr.size - 1):
        for e in range(rowptr[row], rowptr[row + 1]):
            if col[e] == row:
                return True
    return False


def sort_edges(block: Block, *, out: bool, tasks: bool) -> None:
    """Make on the CPU, once, what a device would need several times its bytes for: out-edges, and
    the tasks of a GPU; also of edges without loops where they were made."""
    for edges in _all_edges(block):
        rowptrs = {False: edges.rowptr} | ({True: edges.transposed.rowptr_t} if out else {})
        for flipped, rowptr in rowptrs.items() if tasks else ():
            key = _key(edges, flipped)
            if key not in edges.plans:
                made = cut_rows(rowptr)
                edges.plans[key] = packed(made, rowptr.numel() - 1, edges.num_edges)


def moved(block: Block, device: torch.device, *, out: bool = True) -> Block:
    """A block on ``device``, with its out-edges (``out``) where they were made; itself on the CPU.

    Copies are queued on the current stream, of pinned memory without waiting.
    """
    if device == block.device:
        return block
    return _copied(block, partial(_on, device), out=out)


def twin(block: Block) -> Block:
    """The same in-edges and tasks, with nothing of what is kept beside them when it is used."""
    return _copied(block, dict, out=False)


def add_out_edges(there: Block, block: Block) -> None:
    """Bring the out-edges of ``block`` to where its in-edges are already, if they are not there."""
    for target, edges in zip(_all_edges(there), _all_edges(block), strict=True):
        if "transposed" not in vars(target):
            _give(target, edges, _on(there.device, _out_arrays(edges)))


def pinned(block: Block) -> tuple[Block, Tensor]:
    """A block of host memory with its out-edges, where they were made, in memory to be pinned."""
    held = sum(map(_room, _all_arrays(block)))
    memory, done = page_bytes(held), 0

    def copy(arrays: Mapping[str, Tensor]) -> _Arrays:
        nonlocal done
        copies = {}
        for name, array in arrays.items():
            place = memory[done : done + array.numel() * array.element_size()]
            copies[name] = place.view(array.dtype).view(array.shape).copy_(array)
            done += _room(array)
        return copies

    return _copied(block, copy, out=True), memory


def topology_bytes(block: Block, *, out: bool) -> int:
    """Of what is brought of a block's in-edges, or of its out-edges."""
    if out:
        for edges in _all_edges(block):
            _ = edges.transposed
        arrays = [a for edges in _all_edges(block) for a in _out_arrays(edges).values()]
    else:
        arrays = list(_all_arrays(block, out=False))
    return sum(a.numel() * a.element_size() for a in arrays)


def _room(array: Tensor) -> int:
    return -(-array.numel() * array.element_size() // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _on(device: torch.device, arrays: Mapping[str, Tensor]) -> _Arrays:
    return {name: array.to(device, non_blocking=True) for name, array in arrays.items()}


def _all_edges(block: Block) -> Iterator[Block]:
    """A block, and the same without loops where that was made and is another."""
    yield block
    bare = vars(block).get("loopless")
    if bare is not None:
        yield bare


def _all_arrays(block: Block, *, out: bool = True) -> Iterator[Tensor]:
    for edges in _all_edges(block):
        yield from _arrays(edges, out=out, beside=edges is not block).values()


def _key(block: Block, flipped: bool) -> tuple:
    """Of the plan that the kernels of a GPU ask a block for."""
    return "aggregate", "gpu", flipped, (0, block.num_src)


def _arrays(block: Block, *, out: bool, beside: bool = False) -> _Arrays:
    """A block's tensors, those of its out-edges where they were made, and packed tasks. ``beside``:
    but for what another block has of the same rows. Ids of rows that sources begin with are once
    there."""
    found = {f.name: getattr(block, f.name) for f in fields(block)}
    own = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if beside:
        own = {name: value for name, value in own.items() if name not in _SHARED}
    elif _begins_with(block.src_gid, block.dst_gid):
        del own["dst_gid"]
    own |= _tasks(block, "tasks")
    return own | _out_arrays(block) if out else own


def _begins_with(ids: Tensor | None, first: Tensor | None) -> bool:
    return ids is not None and first is not None and ids.data_ptr() == first.data_ptr()


def _out_arrays(block: Block) -> _Arrays:
    if "transposed" not in vars(block):
        return {}
    return block.transposed._asdict() | _tasks(block, "tasks_t")


def _tasks(block: Block, name: str) -> _Arrays:
    made = block.plans.get(_key(block, _TASKS[name]))
    return {} if made is None or made.memory is None else {name: made.memory}


def _copied(block: Block, copy: Callable[[_Arrays], _Arrays], *, out: bool) -> Block:
    """A block of copied arrays, and beside it the same without loops where that was made."""
    there = _with(block, copy(_arrays(block, out=out)))
    if "loopless" in vars(block):
        bare = block.loopless
        if bare is not None:
            shared = {n: getattr(there, n) for n in _SHARED if getattr(bare, n) is not None}
            bare = _with(bare, copy(_arrays(bare, out=out, beside=True)) | shared)
        vars(there)["loopless"] = bare
    return there


def _with(block: Block, arrays: _Arrays) -> Block:
    """A block with others in the place of its ``_arrays``."""
    own = {f.name: arrays[f.name] for f in fields(block) if f.name in arrays}
    if block.dst_gid is not None and "dst_gid" not in own:
        own["dst_gid"] = own["src_gid"][: block.num_dst]
    made = replace(block, **own)
    _give(made, block, arrays)
    return made


def _give(there: Block, block: Block, arrays: _Arrays) -> None:
    """Out-edges and tasks of ``block`` whose memory was copied."""
    if "rowptr_t" in arrays:
        vars(there)["transposed"] = Transposed(*(arrays[name] for name in Transposed._fields))
    for name in _TASKS.keys() & arrays.keys():
        key = _key(block, _TASKS[name])
        there.plans[key] = placed(block.plans[key], arrays[name])
