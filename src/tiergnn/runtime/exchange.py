"""Running an ExchangePlan: boundary rows to all that read them, and their gradients back.

Each rank holds the rows that it owns or receives in slots, by demand, so that what a send names is
a stretch of slots. Backward runs the stages in reverse: a receiver gives back the sum that it has
for a row, and senders add, lower receivers first, so the same plan gives the same bits.

Legend: P own rows of a rank, H rows of others that it reads (by owner, then ascending), S slots,
D columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tiergnn.errors import PlanError
from tiergnn.graph.boundary import Boundary
from tiergnn.schedule.exchange import ExchangePlan

Messages = list[list[tuple[int, torch.Tensor]]]  # by stage: the other rank, and slots here


class Routes:
    """What one rank does in an exchange: which slots to send, to receive and to read.

    A planned exchange must be proven first (``schedule.exchange_check``). Raises PlanError where
    the plan is of other demands than the boundary's.
    """

    def __init__(
        self,
        plan: ExchangePlan,
        boundary: Boundary,
        rank: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if plan.demands != boundary.demands:
            raise PlanError(
                f"wanted a plan for the {boundary.num_classes} demands of these parts, had one "
                f"for {len(plan.demands)} others",
                hint="plan_exchange(topology, boundary.demands, row_bytes)",
            )
        self.rank, self.num_ranks, self._device = rank, plan.num_ranks, device
        place = _Slots(plan, boundary, rank)
        self.num_slots = place.num_slots
        self.outgoing: Messages = [[] for _ in range(plan.num_stages)]
        self.incoming: Messages = [[] for _ in range(plan.num_stages)]
        stretches: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for send in plan.sends:
            if rank in (send.sender, send.receiver):
                first = int(boundary.ptr[send.demand])
                key = (send.stage, send.sender, send.receiver)
                stretches[key].append((first + send.start, first + send.stop))
        for (stage, sender, receiver), listed in sorted(stretches.items()):
            slots = self._index(place.of(_ranges(np.array(listed))))
            if sender == rank:
                self.outgoing[stage].append((receiver, slots))
            else:
                self.incoming[stage].append((sender, slots))
        mine = np.flatnonzero(boundary.owner == rank)
        own = _ranges(np.stack([boundary.ptr[mine], boundary.ptr[mine + 1]], axis=1))
        own_slot, own_row = place.of(own), boundary.row[own]
        self._own_slot, self._own_row = self._index(own_slot), self._index(own_row)
        self._rounds = [
            (self._index(own_slot[chosen]), self._index(own_row[chosen]))
            for chosen in _rounds(own_row)
        ]
        read = (boundary.readers >> np.uint64(rank)) & np.uint64(1) != 0
        classes = np.flatnonzero(read)
        rows = _ranges(np.stack([boundary.ptr[classes], boundary.ptr[classes + 1]], axis=1))
        owners = np.repeat(boundary.owner[classes], np.diff(boundary.ptr)[classes])
        order = np.lexsort((boundary.row[rows], owners))
        self._halo = self._index(place.of(rows[order]))

    @property
    def num_halo(self) -> int:
        return self._halo.numel()

    def fill(self, x_PD: torch.Tensor) -> torch.Tensor:
        """Slots [S, D] with the rank's own rows in theirs; the others are not written yet."""
        held = x_PD.new_empty((self.num_slots, *x_PD.shape[1:]))
        return held.index_copy_(0, self._own_slot, x_PD.index_select(0, self._own_row))

    def halo(self, held_SD: torch.Tensor) -> torch.Tensor:
        """[H, D]: the rows of others that the rank reads."""
        return held_SD.index_select(0, self._halo)

    def spread(self, grad_HD: torch.Tensor) -> torch.Tensor:
        """Slots [S, D] with what the rank itself gives to the rows that it reads, else 0."""
        held = grad_HD.new_zeros((self.num_slots, *grad_HD.shape[1:]))
        return held.index_copy_(0, self._halo, grad_HD)

    def collect(self, held_SD: torch.Tensor, num_rows: int) -> torch.Tensor:
        """[P, D]: what all ranks give to the rank's own rows, of its slots."""
        grad = held_SD.new_zeros((num_rows, *held_SD.shape[1:]))
        for slots, rows in self._rounds:  # a row once a round: the order of additions is fixed
            grad.index_add_(0, rows, held_SD.index_select(0, slots))
        return grad

    def _index(self, places: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(places.astype(np.int64)).to(self._device)


class _Slots:
    """Where a rank holds which boundary rows: stretches of ``Boundary.row``, in its order."""

    def __init__(self, plan: ExchangePlan, boundary: Boundary, rank: int) -> None:
        mine = np.flatnonzero(boundary.owner == rank)
        owned = np.stack([boundary.ptr[mine], boundary.ptr[mine + 1]], axis=1)
        came = [(s.demand, s.start, s.stop) for s in plan.sends if s.receiver == rank]
        demand, start, stop = np.array(came, np.int64).reshape(-1, 3).T
        received = np.stack([boundary.ptr[demand] + start, boundary.ptr[demand] + stop], axis=1)
        held = np.concatenate([owned, received])
        held = held[np.argsort(held[:, 0], kind="stable")]
        self._first = held[:, 0]
        self._shift = np.cumsum(held[:, 1] - held[:, 0]) - held[:, 1]  # slot less place, a stretch
        self.num_slots = int((held[:, 1] - held[:, 0]).sum())

    def of(self, places: np.ndarray) -> np.ndarray:
        """Slots of places in ``Boundary.row``, all of which the rank holds."""
        if not places.size:
            return places
        return places + self._shift[np.searchsorted(self._first, places, side="right") - 1]


def _ranges(stretches: np.ndarray) -> np.ndarray:
    """All numbers of [first, last) stretches [N, 2], one stretch after the other."""
    if not stretches.size:
        return np.empty(0, np.int64)
    first, last = stretches.astype(np.int64).T
    counts = last - first
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _rounds(rows: np.ndarray) -> list[np.ndarray]:
    """Places of rows, so that no row stands twice in a round."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    turn = np.arange(rows.size) - np.searchsorted(ordered, ordered, side="left")
    return [order[turn == k] for k in range(int(turn.max(initial=-1)) + 1)]


def exchange_virtual(routes: Sequence[Routes], x_PD: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Ranks of one process: from the own rows of each to the rows of others that each reads."""
    return list(_Virtual.apply(tuple(routes), *x_PD))


def exchange(
    routes: Routes, x_PD: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """[H, D] of this rank, over a process group. All of its ranks call it, and blocks for them.

    Rows are as wide, and of one dtype, on all ranks. Its backward is an exchange, too.
    """
    return _Distributed.apply(routes, group, x_PD)


class _Virtual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, routes: tuple[Routes, ...], *x_PD: torch.Tensor) -> Any:
        ctx.routes, ctx.num_rows = routes, [x.shape[0] for x in x_PD]
        held = [route.fill(x) for route, x in zip(routes, x_PD, strict=True)]
        for stage in range(len(routes[0].outgoing)):
            moving = {
                (route.rank, receiver): held[route.rank].index_select(0, slots)
                for route in routes
                for receiver, slots in route.outgoing[stage]
            }
            for route in routes:
                for sender, slots in route.incoming[stage]:
                    held[route.rank].index_copy_(0, slots, moving[sender, route.rank])
        return tuple(route.halo(held[route.rank]) for route in routes)

    @staticmethod
    def backward(ctx: Any, *grad_HD: torch.Tensor) -> Any:
        routes = ctx.routes
        held = [route.spread(grad) for route, grad in zip(routes, grad_HD, strict=True)]
        for stage in reversed(range(len(routes[0].outgoing))):
            moving = {
                (sender, route.rank): held[route.rank].index_select(0, slots)
                for route in routes
                for sender, slots in route.incoming[stage]
            }
            for route in routes:
                for receiver, slots in route.outgoing[stage]:
                    held[route.rank].index_add_(0, slots, moving[route.rank, receiver])
        return None, *(
            route.collect(held[route.rank], rows)
            for route, rows in zip(routes, ctx.num_rows, strict=True)
        )


class _Distributed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, routes: Routes, group: dist.ProcessGroup | None, x_PD: torch.Tensor
    ) -> torch.Tensor:
        ctx.routes, ctx.group, ctx.num_rows = routes, group, x_PD.shape[0]
        held = routes.fill(x_PD)
        for out, into in zip(routes.outgoing, routes.incoming, strict=True):
            for slots, rows in _pass(held, out, into, group):
                held.index_copy_(0, slots, rows)
        return routes.halo(held)

    @staticmethod
    def backward(ctx: Any, *grad_HD: torch.Tensor) -> Any:
        held = ctx.routes.spread(grad_HD[0])
        stages = zip(ctx.routes.outgoing, ctx.routes.incoming, strict=True)
        for out, into in reversed(list(stages)):
            for slots, rows in _pass(held, into, out, ctx.group):
                held.index_add_(0, slots, rows)
        return None, None, ctx.routes.collect(held, ctx.num_rows)


def _pass(
    held_SD: torch.Tensor,
    out: Sequence[tuple[int, torch.Tensor]],
    into: Sequence[tuple[int, torch.Tensor]],
    group: dist.ProcessGroup | None,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One stage of messages, all at once: (slots, rows) of those that came, lower ranks first."""

    def peer(rank: int) -> int:
        return rank if group is None else dist.get_global_rank(group, rank)

    came = [(slots, held_SD.new_empty((slots.numel(), *held_SD.shape[1:]))) for _, slots in into]
    ops = [
        dist.P2POp(dist.irecv, rows, peer(rank), group)
        for (rank, _), (_, rows) in zip(into, came, strict=True)
    ] + [
        dist.P2POp(dist.isend, held_SD.index_select(0, slots), peer(rank), group)
        for rank, slots in out
    ]
    for request in dist.batch_isend_irecv(ops) if ops else ():
        request.wait()
    return came
