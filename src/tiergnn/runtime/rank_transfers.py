"""RankTransfers: rows and gradients between a rank's buffers and, when all meet, between ranks.

What is done follows from what buffers hold. Everything that meets goes over the transport's
channel ``peer``; sums over ranks are in the order of ranks.

Legend: P own rows, H rows of others that they read, R own rows that others read, N ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tiergnn.kernels import backend
from tiergnn.kernels.gather import gather
from tiergnn.kernels.gather.moves import move
from tiergnn.memory.moves import Addend, add_all
from tiergnn.memory.store import convert, encode
from tiergnn.models.moments import moments_grad
from tiergnn.models.stages import Program
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.own_part import OwnPart
from tiergnn.runtime.source_classes import Fetch
from tiergnn.schedule.actions import Action
from tiergnn.schedule.contents import Content, What
from tiergnn.transport.transport import Transport, rows_bytes

_CHANNEL = "peer"
_BROUGHT = (What.HALO, What.SOURCES)
_REPLICAS = (What.REPLICAS, What.GRAD_REPLICAS, What.SUM_REPLICAS)

# (kind, numbers) of replicas -> how they are filled
Where = Mapping[tuple[What, tuple[int, int]], Fetch]


class RankTransfers:
    """``storage``: the dtype of rows between ranks (None: as computed); inputs keep theirs.
    ``where``: the rows of others that replicas are of."""

    def __init__(
        self,
        program: Program,
        buffers: Buffers,
        part: OwnPart,
        transport: Transport,
        *,
        model: nn.Module,
        storage: torch.dtype | None,
        where: Where,
    ):
        self._where = where
        self._program, self._buffers, self._part = program, buffers, part
        self._transport, self._model, self._storage = transport, model, storage
        self._widths = {
            f"s{stage.index}": program.rows[stage.statistic.of]
            for stage in program.stages
            if stage.statistic is not None
        }

    # Meetings

    def barrier(self, action: Action) -> None:
        self._transport.barrier(channel=_CHANNEL, tag=_tag(action))

    def exchange(self, action: Action) -> int:
        """Gives the bytes that this rank sends to others."""
        contents = self._buffers.contents(action.writes)
        return sum(self._exchange(action, name, holds) for name, holds in contents)

    def _exchange(self, action: Action, name: str, holds: Content) -> int:
        if holds.what is What.PART_MOMENTS:
            return self._exchange_moments(action, name)
        part = self._part
        if holds.what in _BROUGHT:
            own = self._source(action, holds.of, What.ROWS)
            room: Any = self._buffers.room(name)
            if holds.what is What.SOURCES:
                room[: part.num_rows] = own
                room = room[part.num_rows :]
            return self._bring(action, holds.of, own, room)
        if holds.what is What.COLUMNS:
            return self._to_columns(action, holds.of, name)
        if holds.what in (What.SUM, What.SHARE):
            return self._to_rows(action, holds.of, name)
        assert holds.what is What.RETURNED, str(holds)
        return self._return(action, holds.of, name)

    def _cuts(self, width: int) -> list[int]:
        """Columns of each rank."""
        size = self._transport.size
        return [width // size + (rank < width % size) for rank in range(size)]

    def _to_columns(self, action: Action, of: str, name: str) -> int:
        """Own rows, cut into columns, to the ranks of those; own columns of all rows [V, W]."""
        rows = self._source(action, of, What.ROWS, What.SUM_GRAD).detach()
        flat, part = rows.reshape(len(rows), rows.shape[1:].numel()), self._part
        cuts = self._cuts(flat.shape[1])
        give = [len(flat) * width for width in cuts]
        take = [count * cuts[part.rank] for count in part.rows_of]
        sent = self._room((sum(give),), self._sent_dtype(of), rows.device)
        for piece, columns in zip(sent.split(give), flat.split(cuts, dim=1), strict=True):
            encode(columns, piece.view(columns.shape), of)
        got = self._swap_new(action, sent, give, take).to(rows.dtype)
        self._buffers.put(name, got.view(sum(part.rows_of), cuts[part.rank]))
        return (sum(give) - give[part.rank]) * sent.element_size()

    def _to_rows(self, action: Action, of: str, name: str) -> int:
        """Own columns of all rows [V, W] to the rows' owners; own rows of all columns."""
        columns, part = self._source(action, of, What.COLUMNS), self._part
        room: Any = self._buffers.room(name)
        flat = room.view(len(room), room.shape[1:].numel())
        cuts = self._cuts(flat.shape[1])
        give = [count * cuts[part.rank] for count in part.rows_of]
        take = [len(flat) * width for width in cuts]
        sent = columns.detach().reshape(-1)
        if self._sent_dtype(of) != sent.dtype:
            sent = self._room(tuple(sent.shape), self._sent_dtype(of), sent.device)
            encode(columns.reshape(-1), sent, of)
        got = self._swap_new(action, sent, give, take).split(take)
        for piece, there in zip(got, flat.split(cuts, dim=1), strict=True):
            convert(piece.view(there.shape), there)
        return (sum(give) - give[part.rank]) * sent.element_size()

    def _swap_new(self, action: Action, rows: Tensor, give: list[int], take: list[int]) -> Tensor:
        return self._transport.exchange(rows, give, take, channel=_CHANNEL, tag=_tag(action))

    def _source(self, action: Action, of: str, *kinds: What) -> Tensor:
        """Rows of a tensor that an action reads; of gradients of sources, those of others' rows."""
        for name, holds in self._buffers.contents(action.reads, *kinds):
            if holds.of == of:
                rows = self._buffers.get(name)
                return rows[self._part.num_rows :] if holds.what is What.SOURCES_GRAD else rows
        raise AssertionError(str(action))

    def _bring(self, action: Action, of: str, own: Tensor, room: Tensor) -> int:
        """Own rows to those who read them, rows of others into ``room`` [H, ...]."""
        part, dtype = self._part, self._sent_dtype(of)
        shape = (len(part.sent_rows), *own.shape[1:])
        sent = self._room(shape, dtype, own.device)
        if dtype == own.dtype:
            gather(own, part.sent_rows, out=sent)
        else:
            encode(gather(own, part.sent_rows), sent, of)
        self._swap(action, sent, part.sent_to, part.reads_of, room)
        return sum(part.sent_to) * rows_bytes(sent)

    def _return(self, action: Action, of: str, name: str) -> int:
        """Gradients of rows of others to their owners; what comes back stands by reader."""
        part, dtype = self._part, self._sent_dtype(of)
        given = self._source(action, of, What.HALO_GRAD, What.SOURCES_GRAD)
        if dtype != given.dtype:
            narrow = self._room(tuple(given.shape), dtype, given.device)
            encode(given, narrow, of)
            given = narrow
        room: Any = self._buffers.room(name)
        self._swap(action, given.contiguous(), part.reads_of, part.sent_to, room)
        return sum(part.reads_of) * rows_bytes(given)

    def _swap(
        self, action: Action, rows: Tensor, give: list[int], take: list[int], room: Tensor
    ) -> None:
        direct = room.dtype == rows.dtype and room.is_contiguous()
        got = self._transport.exchange(
            rows, give, take, out=room if direct else None, channel=_CHANNEL, tag=_tag(action)
        )
        if not direct:
            convert(got, room)

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return self._transport.room(shape, dtype, _CHANNEL)
        return torch.empty(shape, dtype=dtype, device=device)

    def _sent_dtype(self, of: str) -> torch.dtype:
        computed = self._program.rows[of].dtype
        narrow = self._storage is not None and computed.is_floating_point
        return self._storage or computed if narrow and of not in self._program.needs else computed

    def _exchange_moments(self, action: Action, name: str) -> int:
        """Every rank's to all others, in the order of ranks."""
        (values,) = self._buffers.get(name)
        size = self._transport.size
        given = values.detach()[None].expand(size, *values.shape).contiguous()
        ones = [1] * size
        got = self._transport.exchange(given, ones, ones, channel=_CHANNEL, tag=_tag(action))
        self._buffers.put(name, list(got.unbind()))
        return (size - 1) * rows_bytes(given)

    def reduce(self, action: Action) -> int:
        """Sums over ranks of the gradients of moments, or of the parameters."""
        name = action.reads[0]
        holds = self._buffers.holds(name)
        if holds is None:
            summed = [p.grad for p in self._model.parameters() if p.grad is not None]
        else:
            assert holds.what is What.MOMENTS_GRAD, str(holds)
            summed = [self._moments_grad(name, holds)]
            self._buffers.put(name, summed[0])
        self._transport.all_reduce(summed, channel=_CHANNEL, tag=_tag(action))
        return sum(map(self._reduced_bytes, summed))

    def _moments_grad(self, name: str, holds: Content) -> Tensor:
        """Zeros where none came."""
        grad = self._buffers.get(name)
        if grad is not None:
            return grad.contiguous()
        rows = self._widths[holds.of]
        wide = torch.promote_types(rows.dtype, torch.float32)
        return torch.zeros(3, rows.width, dtype=wide, device=self._part.device)

    def _reduced_bytes(self, tensor: Tensor) -> int:
        """Of a sum in two exchanges: all but an own slice, then that slice to the others."""
        size, count = self._transport.size, tensor.numel()
        return round(2 * (size - 1) / size * count * tensor.element_size())

    # Within the rank

    def copy(self, action: Action) -> int:
        """Rows from where they lie to a buffer of this rank; gives the bytes that they take on the
        way."""
        (target,) = action.writes
        holds = self._buffers.holds(target)
        if holds.what is What.SOURCES:
            return self._put_together(action, target)
        if holds.what not in _REPLICAS:
            return self._publish(action.reads[0], target)
        if self._buffers.holds(action.reads[0]).what in _REPLICAS:
            return self._pass_on(action.reads[0], target)
        return self._replicate(action, target)

    def _put_together(self, action: Action, target: str) -> int:
        """Rows of all owners, where they lie, to the sources of this part."""
        part = self._part
        room: Any = self._buffers.room(target)
        wanted = part.halo_rows.split(part.reads_of)
        places = room[part.num_rows :].split(part.reads_of)
        read = 0
        for name in action.reads:
            owner, rows = self._buffers.holds(name).part, self._buffers.get(name)
            if owner == part.rank:
                room[: part.num_rows] = rows
                continue
            read += len(places[owner]) * rows_bytes(rows)
            if not len(places[owner]):
                continue
            gather(rows, wanted[owner], out=places[owner])
        return read

    def _publish(self, source: str, target: str) -> int:
        """Own rows to where all ranks read them."""
        rows: Tensor = self._buffers.get(source).detach()
        room: Any = self._buffers.room(target)
        convert(rows, room)
        return len(room) * rows_bytes(room)

    def _pass_on(self, source: str, target: str) -> int:
        """Some of this rank's own replicas, between its tiers."""
        there, here = self._buffers.holds(source).rows, self._buffers.holds(target).rows
        room: Any = self._buffers.room(target)
        rows = self._buffers.get(source)[here[0] - there[0] : here[1] - there[0]]
        convert(rows, room)
        return len(room) * min(rows_bytes(rows), rows_bytes(room))

    def _replicate(self, action: Action, target: str) -> int:
        """Rows of others, where they lie, to replicas on the device."""
        holds, name = self._buffers.holds(target), backend.choose(self._part.device)
        room: Any = self._buffers.room(target)
        tables = [self._buffers.get(name).detach() for name in action.reads]  # in order of owners
        fetch = self._where[holds.what, holds.rows]
        move(tables, fetch.places, room, fetch.to, add=False, name=name)
        return len(room) * rows_bytes(tables[0])

    def zero(self, action: Action) -> None:
        """Gradients of parameters are not ours to clear: they add to what the caller left."""
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.MOMENTS_GRAD:
                self._buffers.put(name, None)
            else:
                self._buffers.put_grad(name, None)

    def accumulate(self, action: Action) -> int:
        """Add what was given to a gradient, in the order in which it stands; gives the bytes that
        are read of other ranks."""
        target = action.writes[0]
        total = self._buffers.get(target)
        kinds = {holds.what: name for name, holds in self._buffers.contents(action.reads)}
        if What.MOMENTS_GRAD in kinds:
            rows, values, grad = (
                self._buffers.get(kinds[w]) for w in (What.ROWS, What.MOMENTS, What.MOMENTS_GRAD)
            )
            if grad is not None:
                moments_grad(rows, values, grad, add_to=total)
            return 0
        read = 0
        for name in action.reads:
            if name != target:
                read += self._add(self._buffers.holds(name), self._buffers.get(name), total)
        return read

    def _add(self, holds: Content, values: Tensor, total: Tensor) -> int:
        part, reader = self._part, holds.part
        if holds.what is What.SOURCES_GRAD and reader != part.rank:
            start = part.rows_of[reader] + sum(part.reads[reader][: part.rank])
            given = values[start : start + part.sent_to[reader]]
            given = given.to(total.device, non_blocking=True)
            _add_rows(total, part.sent_rows.split(part.sent_to)[reader], given)
            return len(given) * rows_bytes(given)
        if holds.what is What.RETURNED:
            sent = self._part.sent_rows.split(self._part.sent_to)
            for rows, given in zip(sent, values.split(self._part.sent_to), strict=True):
                _add_rows(total, rows, given)
        else:  # own rows come first among sources
            total += values[: len(total)]
        return 0


def _add_rows(total: Tensor, rows: Tensor, given: Tensor) -> None:
    """total[rows] += given, for distinct, ascending rows."""
    if not given.numel():
        return
    width = total.shape[1:].numel()
    flat, values = total.view(len(total), width), given.reshape(len(given), width)
    if total.device.type == "cpu" and total.dtype in (torch.float32, torch.float64):
        add_all([Addend(flat, rows, values)])
    else:  # in one pass, without a copy of those rows
        move((values,), None, flat, rows, add=True, name=backend.choose(total.device))


def _tag(action: Action) -> str:
    return f"{action.op} {action.tag}"
