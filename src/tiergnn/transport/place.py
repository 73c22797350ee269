"""Where one rank stands in its job, and joining the job from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tiergnn.errors import ConfigError, unknown
from tiergnn.transport.board import Board, board_bytes
from tiergnn.transport.collective import Collective, Nccl
from tiergnn.transport.cuda import Ipc, Symmetric
from tiergnn.transport.pick import NAMES, Choice, pick, probe
from tiergnn.transport.segment import Segment
from tiergnn.transport.shared import Shared
from tiergnn.transport.store_board import StoreBoard
from tiergnn.transport.transport import CHANNELS, Transport
from tiergnn.transport.virtual import Virtual, World
from tiergnn.transport.waiting import SILENCE_FRAC, Watch

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``board``: the address of the job's board, empty across hosts; ``store``: HOST:PORT of its
    store, empty where torchrun's environment says it. ``launched``: by our own launcher."""

    rank: int
    size: int
    local_rank: int
    transport: str
    why: str
    board: str = ""
    store: str = ""
    timeout_s: float = 30.0
    debug: bool = False
    channels: tuple[str, ...] = CHANNELS
    launched: bool = False


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    return all(name in environment for name in _ENVIRONMENT)


def watch_of(place: Place, store: Any = None) -> Watch:
    """The board on which the ranks of a host see each other, or the store across hosts."""
    if place.board:
        return Board.at(place.board, place.size, place.channels)
    return StoreBoard(store or store_of(place), place.size, place.timeout_s * SILENCE_FRAC)


def store_of(place: Place) -> Any:
    host, _, port = place.store.rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False)  # pyright: ignore[reportPrivateImportUsage]


def join(place: Place, watch: Watch, store: Any = None) -> Transport:
    """This rank's transport; returns when all ranks have come."""
    options: dict[str, Any] = {
        "channels": place.channels,
        "timeout_s": place.timeout_s,
        "debug": place.debug,
        "why": place.why,
    }
    name = place.transport
    if name in ("nccl", "ipc", "symmetric"):
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    if name in ("gloo", "nccl", "symmetric"):
        options["store"] = store or store_of(place)
    if name == "gloo":
        return Collective(watch, place.rank, **options)
    if name == "nccl":
        return Nccl(watch, place.rank, **options)
    assert isinstance(watch, Board), "ranks that read each other's memory are on one host"
    if name == "virtual":  # a job of one process
        del options["channels"]
        return Virtual(World(1, place.channels), 0, **options)
    kinds: dict[str, type[Shared]] = {"shared": Shared, "ipc": Ipc, "symmetric": Symmetric}
    if name not in kinds:
        raise unknown("transport", name, NAMES)
    return kinds[name](watch, place.rank, **options)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Processes that torchrun started have met at their store."""

    store: Any
    rank: int
    size: int
    num_hosts: int


def meet_of_torchrun() -> Meeting:
    """Meet the others by torchrun's rendezvous, on any hosts.

    Raises ConfigError where the environment is not torchrun's.
    """
    if not under_torchrun():
        missing = [name for name in _ENVIRONMENT if name not in os.environ]
        raise ConfigError(
            f"wanted torchrun's environment, had no {', '.join(missing)}",
            hint="torchrun --nproc-per-node N -m tiergnn train ..., or --ranks N",
        )
    store, rank, size = next(dist.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]
    store = dist.PrefixStore("tiergnn", store)  # pyright: ignore[reportPrivateImportUsage]
    store.set(f"host/{rank}", _host())
    hosts = {store.get(f"host/{each}") for each in range(size)}
    return Meeting(store, rank, size, len(hosts))


def place_of_torchrun(
    meeting: Meeting | None = None,
    *,
    transport: str | None = None,
    on_gpu: bool = False,
    timeout_s: float = 30.0,
    debug: bool = False,
    channels: tuple[str, ...] = CHANNELS,
) -> tuple[Place, Watch, Any]:
    """This process's place among those that torchrun started, its watch and the store.

    Rank 0 chooses for all, ``transport`` and ``timeout_s`` as well. Raises ConfigError where the
    environment is not torchrun's, and where the transport that was asked for cannot work.
    """
    meeting = meeting or meet_of_torchrun()
    store, rank, size = meeting.store, meeting.rank, meeting.size
    board: Board | None = None
    if rank == 0:
        one_host = meeting.num_hosts == 1
        choice = pick(probe(size, one_host=one_host, on_gpu=on_gpu), transport)
        address = ""
        if one_host and probe(size).shared_memory:
            segment = Segment(board_bytes(size, len(channels)))
            board, address = Board.on(segment, size, channels), segment.address
        store.set("choice", f"{choice.name}\n{choice.why}\n{address}\n{timeout_s}")
    name, why, address, seconds = store.get("choice").decode().split("\n")
    choice, timeout_s = Choice(name, why), float(seconds)
    place = Place(
        rank=rank,
        size=size,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        transport=choice.name,
        why=choice.why,
        board=address,
        timeout_s=timeout_s,
        debug=debug,
        channels=channels,
    )
    return place, board or watch_of(place, store), store


def _host() -> str:
    """Alike on processes that can open each other's memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename
