"""Block: the topology that one kernel call works on.

Legend: P destinations, S sources, E edges, D columns.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from tiergnn.errors import GraphError
from tiergnn.kernels.arguments import told
from tiergnn.kernels.backend import load
from tiergnn.kernels.csr import check_csr, out_edges
from tiergnn.kernels.table import Places, places_of

if TYPE_CHECKING:
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.table import Table


_IDS = ("dst_gid", "src_gid", "eid")
_TENSORS = ("rowptr", "col", "edge_weight", "edge_attr", *_IDS)
_handles = count(1)
_blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()


class Transposed(NamedTuple):
    """The out-edges of every source; those of one source stay in the order of the block."""

    rowptr_t: Tensor  # int64 [S+1]
    dst_t: Tensor  # [E] destination row of each out-edge
    edge_t: Tensor  # [E] its position among the block's edges; int32 where positions fit


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """In-edges of P rows as a CSR; columns index S sources, the first P of which are the rows.

    Edges stand row by row: their order is not that of an edge_index that they may come from, and
    rows of edges that an op is given are in the block's (``models.edges.edges_of`` has both).
    Tensors live on one device and are never written; they may share memory with a Graph. ``col``
    lies in 0..S-1: in host memory that is checked before an op first reads it, in one pass
    (``check``), and trusted on a GPU, which would have to be waited for. ``dst_gid``, ``src_gid``
    and ``eid`` say where rows and edges stand in the whole graph (None: as they stand here), so
    that random numbers are the graph's. Raises GraphError for shapes, dtypes or devices that
    contradict each other.
    """

    rowptr: Tensor  # int64 [P+1]
    col: Tensor  # int32 or int64 [E]
    num_src: int
    dst_gid: Tensor | None = None  # int64 [P]
    src_gid: Tensor | None = None  # int64 [S]
    eid: Tensor | None = None  # int64 [E]
    edge_weight: Tensor | None = None  # [E]
    edge_attr: Tensor | None = None  # [E, D]
    num_graph_nodes: int | None = None  # of the whole graph; None: num_src
    num_graph_edges: int | None = None  # of the whole graph; None: num_edges
    turn: int = 0  # source j is row (j + turn) mod S of what is gathered: see ``rows``
    whole: Block | None = field(default=None, repr=False)  # whose rows these are
    checked: bool = field(default=False, repr=False)  # rowptr and col are known to be right
    # int32 [P, 2] where the edges are another block's reversed: the in-degrees that its rows had
    # there, with and without loops.
    reverses: Tensor | None = None
    degrees: Tensor | None = None  # int64 [P, 2] of rows whose edges are elsewhere: see ``bare``
    handle: int = field(init=False, repr=False, default=0)  # names it in ops: see ``by_handle``

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _TENSORS and not isinstance(value, Tensor | None):
                raise GraphError(f"{f.name} needs a tensor, had {type(value).__name__}")
        if self.rowptr.dtype != torch.int64 or self.rowptr.dim() != 1 or not self.rowptr.numel():
            raise GraphError(f"rowptr needs int64 [P+1], has {told(self.rowptr)}")
        if self.col.dtype not in (torch.int32, torch.int64) or self.col.dim() != 1:
            raise GraphError(f"col needs int32 or int64 [E], has {told(self.col)}")
        if self.num_src < self.num_dst:
            raise GraphError(
                f"the first {self.num_dst} sources are the destinations, has {self.num_src} sources"
            )
        rows = {"dst_gid": self.num_dst, "src_gid": self.num_src} | dict.fromkeys(
            ("eid", "edge_weight", "edge_attr"), self.num_edges
        )
        for name, num_rows in rows.items():
            value = getattr(self, name)
            if value is None:
                continue
            if value.dim() == 0 or value.shape[0] != num_rows:
                raise GraphError(f"{name} needs {num_rows} rows, has {told(value)}")
            if name in _IDS and (value.dtype != torch.int64 or value.dim() != 1):
                raise GraphError(f"{name} needs int64 [{num_rows}], has {told(value)}")
            if value.device != self.device:
                raise GraphError(f"{name} is on {value.device}, col on {self.device}")
        if self.rowptr.device != self.device:
            raise GraphError(f"rowptr is on {self.rowptr.device}, col on {self.device}")
        for name in ("rowptr", "col"):  # the kernels walk both by plain pointers
            object.__setattr__(self, name, getattr(self, name).contiguous())
        object.__setattr__(self, "handle", next(_handles))
        _blocks[self.handle] = self
        object.__setattr__(self, "num_graph_nodes", self.num_graph_nodes or self.num_src)
        object.__setattr__(self, "num_graph_edges", self.num_graph_edges or self.num_edges)

    def __repr__(self) -> str:
        named = (f.name for f in fields(self) if f.name in _TENSORS[2:])
        return (
            f"Block({self.num_dst:,} rows, {self.num_src:,} sources, {self.num_edges:,} edges on "
            f"{', '.join([str(self.device), *(n for n in named if getattr(self, n) is not None)])})"
        )

    @staticmethod
    def by_handle(handle: int) -> Block:
        """The living block that has this handle."""
        return _blocks[handle]

    @staticmethod
    def ready(handle: int) -> Block:
        """The same, checked: what an op does before it reads."""
        return _blocks[handle].check()

    @classmethod
    def bare(
        cls, degrees: Tensor, gid: Tensor, *, num_graph_nodes: int, num_graph_edges: int
    ) -> Block:
        """Rows without their edges, for row-local code: of those they know how many there are,
        ``degrees`` int64 [P, 2], with and without loops."""
        return cls(
            rowptr=torch.zeros(len(gid) + 1, dtype=torch.int64, device=gid.device),
            col=torch.zeros(0, dtype=torch.int32, device=gid.device),
            num_src=len(gid),
            dst_gid=gid,
            num_graph_nodes=num_graph_nodes,
            num_graph_edges=num_graph_edges,
            degrees=degrees,
        )

    def check(self) -> Block:
        """This block, whose row pointer and columns in host memory are now known to be right.

        Once a block: parts of a checked one are as right. Raises GraphError at what is wrong.
        """
        if self.checked or self.device.type != "cpu":
            return self
        check_csr(self.rowptr.numpy(), self.col.numpy(), self.num_src)
        object.__setattr__(self, "checked", True)
        return self

    @property
    def num_dst(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    @property
    def device(self) -> torch.device:
        return self.col.device

    @cached_property
    def in_degree(self) -> Tensor:
        """int64 [P]: in-edges of every row; duplicates and loops count."""
        return self.rowptr.diff() if self.degrees is None else self.degrees[:, 0]

    @property
    def edge_dst(self) -> Tensor:
        """int64 [E], made at every call: the destination row of each edge."""
        rows = torch.arange(self.num_dst, device=self.device)
        return torch.repeat_interleave(rows, self.in_degree, output_size=self.num_edges)

    @cached_property
    def transposed(self) -> Transposed:
        """The CSR of out-edges, by a stable counting sort: linear in edges, made once."""
        self.check()
        return Transposed(*out_edges(self.rowptr, self.col, self.num_src))

    def transposed_rows(self, first: int, last: int) -> Transposed:
        """The out-edges of sources first..last-1 alone; made once for each such range."""
        if (first, last) == (0, self.num_src):
            return self.transposed
        if (first, last) not in self._ranges:
            rowptr_t, dst_t, edge_t = self.transposed
            low, high = int(rowptr_t[first]), int(rowptr_t[last])
            own = rowptr_t[first : last + 1] - low
            self._ranges[first, last] = Transposed(own, dst_t[low:high], edge_t[low:high])
        return self._ranges[first, last]

    @cached_property
    def _ranges(self) -> dict[tuple[int, int], Transposed]:
        return {}

    def places(self, sizes: tuple[int, ...]) -> Places:
        """The columns as places in tables of ``sizes``; the latest translation is kept."""
        kept = self._places.get("kept")
        if kept is None or kept[0] != sizes:
            # One value, so that threads see the places of one call, whole.
            kept = self._places["kept"] = sizes, places_of(self.check().col, sizes)
        return kept[1]

    @cached_property
    def _places(self) -> dict[str, Any]:
        return {}

    def transposed_weight(self, weight_E: Tensor) -> Tensor:
        """Edge weights in the order of the out-edges; kept until asked for other weights.

        For weights that need no gradient: the same ones come again at every step. What torch does
        not count as a change (writes through NumPy, or to ``.data``) is not seen.
        """
        # Of tensors made in inference mode torch counts no changes.
        version = None if weight_E.is_inference() else weight_E._version
        made = weight_E.data_ptr(), weight_E.dtype, weight_E.stride(), version
        kept: tuple[Any, ...] = self._weights.get("kept", (None, None, None))
        if kept[0] != made or version is None:
            weight = weight_E.detach()
            # Holding the memory keeps its address from being another tensor's. One value, so that
            # threads see the weights of one call, whole.
            kept = made, weight, weight[self.transposed.edge_t]
            self._weights["kept"] = kept
        return kept[2]

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return {}

    def plan(
        self,
        op: str,
        backend: str,
        transposed: bool = False,
        rows: tuple[int, int] | None = None,
    ) -> Any:
        """What an op's backend wants to know about the rows, made by its ``plan(rowptr)`` and kept.

        Rows are those of the block, or of its transposed CSR, or some of the latter's.
        """
        rows = rows or (0, self.num_src)
        key = (op, backend, transposed, rows)
        if key not in self.plans:
            rowptr = self.transposed_rows(*rows).rowptr_t if transposed else self.rowptr
            self.plans[key] = load(op, backend).plan(rowptr)
        return self.plans[key]

    @cached_property
    def plans(self) -> dict[tuple[Any, ...], Any]:
        """Those that were made: by op, backend, ``transposed`` and rows."""
        return {}

    @cached_property
    def loop_edge(self) -> Tensor:
        """int64 [P]: position of each row's last self-loop among the edges; -1: it has none."""
        rows = self.edge_dst
        place = torch.arange(self.num_edges, device=self.device)
        place = place.masked_fill_(self.col != rows, -1)
        out = torch.full((self.num_dst,), -1, dtype=torch.int64, device=self.device)
        # Positions ascend, so the greatest is the last: no write order is relied on.
        return out.scatter_reduce(0, rows, place, "amax")

    def loop_weight(self, weight_E: Tensor | None = None, *, fill: float = 1.0) -> Tensor | float:
        """The weight of the one loop that every row gets, [P] or a number.

        A row's own last loop keeps its weight, as in PyG's ``add_remaining_self_loops``; a row
        without one gets ``fill``. Without weights every loop weighs ``fill``. Differentiable.
        """
        if weight_E is None:
            return fill
        has = self.loop_edge >= 0
        if not self.num_edges:
            return weight_E.new_full((self.num_dst,), fill)
        return torch.where(has, weight_E[self.loop_edge.clamp(min=0)], fill)

    @property
    def without_loops(self) -> Block:
        """This block less its self-loops, to sum rows over: what edges carry, and which ones of the
        graph they are, stays behind. Itself when there are none."""
        return self if self.loopless is None else self.loopless

    @cached_property
    def loopless(self) -> Block | None:
        """The same; None for itself, since what holds itself outlives its last user."""
        if self.degrees is not None:
            return replace(self, degrees=self.degrees[:, 1:].expand(-1, 2))
        keep = self.col != self.edge_dst
        if bool(keep.all()):
            return None
        bare = replace(self, eid=None, edge_weight=None, edge_attr=None)
        return replace(bare.only(torch.nonzero(keep).flatten()), eid=None)

    def only(self, kept: Tensor) -> Block:
        """This block with some of its edges, of positions ``kept`` (int64, ascending).

        Rows and sources stay; edges keep their ``eid``.
        """
        before = torch.searchsorted(kept, self.rowptr)
        return replace(
            self,
            whole=None,
            rowptr=before,
            col=self.col[kept],
            eid=kept if self.eid is None else self.eid[kept],
            edge_weight=None if self.edge_weight is None else self.edge_weight[kept],
            edge_attr=None if self.edge_attr is None else self.edge_attr[kept],
        )

    def rows(self, first: int, last: int, edges: tuple[int, int] | None = None) -> Block:
        """The in-edges of rows first..last-1 of a square block, as a block of those rows.

        Its sources are all rows, turned so that its own come first: it gathers by ``turned``.
        ``edges``: the first of them and the one after the last, so that no device is waited for.
        """
        low, high = edges or (int(self.rowptr[first]), int(self.rowptr[last]))
        return replace(
            self,
            rowptr=self.rowptr[first : last + 1] - low,
            col=torch.remainder(self.col[low:high] - first, max(1, self.num_src)),
            dst_gid=None if self.dst_gid is None else self.dst_gid[first:last],
            src_gid=None,
            eid=None if self.eid is None else self.eid[low:high],
            edge_weight=None if self.edge_weight is None else self.edge_weight[low:high],
            edge_attr=None if self.edge_attr is None else self.edge_attr[low:high],
            turn=first,
            whole=self,
        )

    def turned(self, x: Tensor) -> Tensor:
        """Rows [S, ...] in the order of the sources."""
        return x if not self.turn else torch.cat([x[self.turn :], x[: self.turn]])

    def straight(self, x: Tensor) -> Tensor:
        """Rows in the order of the sources as they are gathered."""
        return x if not self.turn else torch.cat([x[-self.turn :], x[: -self.turn]])

    def to(self, device: torch.device | str) -> Block:
        """This block with its tensors on ``device``; itself when they are there already."""
        if torch.empty(0, device=device).device == self.device:  # "cuda" is some cuda:N
            return self
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    @classmethod
    def from_graph(cls, graph: Graph, device: torch.device | str = "cpu") -> Block:
        """The whole graph as one block, P = S = V; shares the graph's memory on the CPU.

        Raises GraphError when the topology of a folder contradicts itself: kernels trust it.
        """
        from tiergnn.graph.csr import check_topology

        if graph.path is not None:  # a graph in memory was checked when it was made
            check_topology(graph.rowptr, graph.col)
        weight, attr = graph.edge_weight, graph.edge_attr
        return cls(
            rowptr=wrap(graph.rowptr),
            col=wrap(graph.col),
            num_src=graph.num_nodes,
            edge_weight=None if weight is None else wrap(weight),
            edge_attr=None if attr is None else rows_of(attr),
            checked=True,
        ).to(device)


def wrap(array: np.ndarray) -> Tensor:
    """A tensor over the array's own memory, which must not be written (it may be a file)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def rows_of(table: Table) -> Tensor:
    """A table's rows [R, D] as floats: a view of the stored bits when they are a torch float.

    int8, uint8 and bool rows become float32, times their scale.
    """
    if table.dtype == "bfloat16":
        return wrap(table.data.view(np.int16)).view(torch.bfloat16)
    if table.data.dtype.kind == "f":
        return wrap(table.data)
    return torch.from_numpy(table.decode())
