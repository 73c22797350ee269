"""Machines and schedules for tests: one by hand that uses everything, and random legal ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tiergnn.hardware.machine import LINKS, Curve, Device, Link, Machine, Tier
from tiergnn.schedule.actions import Action, Lane, Op, Work
from tiergnn.schedule.schedule import Schedule, Writer

PLENTY = 10**12


def machine(
    num_devices: int = 1,
    *,
    device: int = PLENTY,
    host: int = PLENTY,
    disk: int | None = PLENTY,
    num_hosts: int = 1,
    links: dict[str, Link] | None = None,
) -> Machine:
    """A machine with these bytes in its tiers; every link moves 1 byte a second by default."""
    one = Curve.flat(1.0)
    return Machine(
        name="test",
        num_devices=num_devices,
        num_hosts=num_hosts,
        device=Device(
            name="test",
            kind="cuda",
            memory=Tier(device),
            cache_bytes=0,
            stream_Bps=1.0,
            gather_Bps=one,
            cached_gather_Bps=one,
            matmul_flops={"float32": one},
            launch_s=0.0,
        ),
        host=Tier(host),
        disk=None if disk is None else Tier(disk),
        links={name: Link(Bps=one) for name in LINKS} | (links or {}),
    )


def move(link: str, num_bytes: int) -> Work:
    return Work(kind="move", amount=num_bytes, place=link)


def stream(num_bytes: int) -> Work:
    return Work(kind="stream", amount=num_bytes)


def whole() -> Schedule:
    """Two ranks, all tiers, meetings of every kind, a gradient that is reduced and stepped by."""
    w = Writer("whole", 2)
    for r in range(2):
        w.given(f"x{r}", r, "host", "features", 100)
        w.given(f"params{r}", r, "device", "parameters", 40)
        w.buffer(f"a{r}", r, "device", "staging", 60)
        w.buffer(f"h{r}", r, "device", "activations", 50)
        w.buffer(f"out{r}", r, "device", "activations", 30)
        w.buffer(f"grads{r}", r, "device", "gradients", 40)
        w.buffer(f"scratch{r}", r, "device", "workspace", 7)
    w.given("disk0", 0, "disk", "features", 1000)
    w.buffer("page0", 0, "host", "staging", 20)
    w.buffer("got1", 1, "device", "staging", 50)
    w.reserve(0, "page0")
    w.add(0, Lane.DISK_READ, Op.COPY, reads=["disk0"], writes=["page0"])
    for r in range(2):
        w.reserve(r, f"a{r}")
        reads = [f"x{r}"] + ["page0"] * (r == 0)
        w.add(r, Lane.H2D, Op.COPY, reads=reads, writes=[f"a{r}"], work=[move("h2d", 60)])
        w.reserve(r, f"h{r}", f"scratch{r}")
        w.add(
            r,
            Lane.COMPUTE,
            Op.FORWARD,
            stage=0,
            part=r,
            reads=[f"a{r}", f"params{r}"],
            writes=[f"h{r}", f"scratch{r}"],
            work=[stream(30)],
        )
    w.release(0, "page0")
    w.meet(Op.BARRIER, "ready")
    for r in range(2):
        w.release(r, f"a{r}")
        w.reserve(r, f"out{r}")
        reads = ["h0", "h1", f"params{r}"]
        w.add(r, Lane.COMPUTE, Op.FORWARD, stage=1, part=r, reads=reads, writes=[f"out{r}"])
    w.reserve(1, "got1")
    w.add(0, Lane.PEER, Op.SEND, tag="rows", reads=["h0"])
    w.add(1, Lane.PEER, Op.RECV, tag="rows", writes=["got1"])
    w.add(1, Lane.COMPUTE, Op.ACCUMULATE, reads=["got1"], writes=["h1"], after=[_met(w, 1)])
    w.meet(Op.BARRIER, "read")
    for r in range(2):
        w.reserve(r, f"grads{r}")
        w.add(r, Lane.COMPUTE, Op.ZERO, writes=[f"grads{r}"])
        grads = f"grads{r}"
        reads = [f"out{r}", f"h{r}", f"params{r}", grads]
        w.add(r, Lane.COMPUTE, Op.BACKWARD, stage=1, part=r, reads=reads, writes=[grads])
    own = {r: [f"grads{r}"] for r in range(2)}
    w.meet(Op.REDUCE, "sum", reads=own, writes=own)
    for r in range(2):
        names = [f"params{r}"]
        w.add(r, Lane.COMPUTE, Op.STEP, reads=[*names, f"grads{r}"], writes=names)
        w.release(r, f"grads{r}", f"out{r}", f"h{r}", f"scratch{r}")
    w.release(1, "got1")
    return w.finish()


def _met(w: Writer, rank: int) -> int:
    """A barrier after which a rank may write what the other has read."""
    return w.meet(Op.BARRIER, "between")[rank]


def random_legal(
    seed: int, *, ranks: int = 2, steps: int = 30, tiers: tuple[str, ...] = ("device", "host")
) -> Schedule:
    """A legal schedule: what is touched is there and written; ranks meet before they share."""
    rng = Random(seed)
    w = Writer("random", ranks)
    lanes = list(Lane)
    written: dict[str, int] = {}  # live and written, and its rank
    empty: dict[str, int] = {}  # live and not written
    for r in range(ranks):
        written[w.given(f"given{r}", r, "host", "features", rng.randrange(50))] = r
    lasting = set(written)
    touched: dict[str, set[int]] = {}  # ranks that have used it since all last met

    def free_for(name: str, rank: int) -> bool:
        return touched.get(name, set()) <= {rank}

    for step in range(steps):
        rank = rng.randrange(ranks)
        mine = [name for name, owner in written.items() if owner == rank]
        choice = rng.random()
        lane = rng.choice(lanes)
        if choice < 0.25:
            kind = rng.choice(["activations", "staging", "saved"])
            name = w.buffer(f"b{step}", rank, rng.choice(tiers), kind, rng.randrange(100))
            w.reserve(rank, name, lane=lane)
            touched[name] = {rank}
            empty[name] = rank
        elif choice < 0.7:
            targets = [n for n, q in (written | empty).items() if q == rank and n not in lasting]
            targets = [name for name in targets if free_for(name, rank)]
            sources = [name for name in written if free_for(name, rank) or name in lasting]
            writes = rng.sample(targets, min(len(targets), rng.randrange(3)))
            reads = rng.sample(sources, min(len(sources), rng.randrange(3)))
            in_place = Work(kind="stream", amount=0, place="host")  # whatever the tier
            works = [move("h2d", rng.randrange(40)), stream(rng.randrange(40))]
            w.add(
                rank,
                lane,
                rng.choice([Op.FORWARD, Op.BACKWARD]),
                part=step,
                reads=reads,
                writes=writes,
                work=[in_place, *rng.sample(works, rng.randrange(3))],
            )
            for name in (*reads, *writes):
                touched.setdefault(name, set()).add(rank)
            for name in writes:
                empty.pop(name, None)
                written[name] = rank
        elif choice < 0.85:
            gone = [name for name in mine if name not in lasting and free_for(name, rank)]
            if gone:
                name = rng.choice(gone)
                w.release(rank, name, lane=lane)
                del written[name]
        elif choice < 0.95:
            w.meet(rng.choice([Op.BARRIER, Op.EXCHANGE]), f"m{step}", lane)
            touched.clear()
        elif ranks > 1:
            other = (rank + 1) % ranks
            w.add(rank, Lane.PEER, Op.SEND, tag=f"m{step}", reads=mine[:1])
            w.add(other, Lane.PEER, Op.RECV, tag=f"m{step}")
            for name in mine[:1]:
                touched.setdefault(name, set()).add(rank)
    w.meet(Op.BARRIER, "last")
    for name, rank in (written | empty).items():
        if name not in lasting:
            w.release(rank, name)
    return w.finish()


# Breaking one thing


def edit(schedule: Schedule, index: int, **changes) -> Schedule:
    actions = list(schedule.actions)
    actions[index] = replace(actions[index], **changes)
    return replace(schedule, actions=tuple(actions))


def renumbered(schedule: Schedule, order: list[int]) -> Schedule:
    """The schedule with its actions in another order, or fewer of them."""
    place = {old: new for new, old in enumerate(order)}
    actions = [
        replace(
            schedule.actions[old],
            index=new,
            after=tuple(sorted(place[i] for i in schedule.actions[old].after if i in place)),
        )
        for old, new in place.items()
    ]
    return replace(schedule, actions=tuple(actions))


def without(schedule: Schedule, *dropped: int) -> Schedule:
    return renumbered(schedule, [i for i in range(len(schedule.actions)) if i not in dropped])


def find(schedule: Schedule, text: str) -> int:
    """The index of the one action whose text contains this."""
    found = [action.index for action in schedule.actions if text in f"{action} "]
    assert len(found) == 1, (text, found)
    return found[0]


def inserted(schedule: Schedule, at: int, action: Action) -> Schedule:
    """The schedule with one more action at a place; what it is ``after`` stands before it."""
    later = [
        replace(a, index=a.index + 1, after=tuple(i + (i >= at) for i in a.after))
        for a in schedule.actions[at:]
    ]
    return replace(schedule, actions=(*schedule.actions[:at], replace(action, index=at), *later))
