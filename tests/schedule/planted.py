"""Planted faults: one thing broken in a legal schedule, and the words in which it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.schedule.legal import edit, find, inserted, machine, renumbered, whole, without
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.schedule.schedule import Schedule, Writer

GOOD = whole()
MACHINE = machine(2)


def dropped(text: str) -> Schedule:
    return without(GOOD, find(GOOD, text))


def changed(text: str, **changes) -> Schedule:
    return edit(GOOD, find(GOOD, text), **changes)


def moved(text: str, before: str) -> Schedule:
    """An action issued before another one; what it waited for and comes later is not waited for."""
    what, where = find(GOOD, text), find(GOOD, before)
    order = [i for i in range(len(GOOD.actions)) if i != what]
    order.insert(order.index(where), what)
    schedule = renumbered(GOOD, order)
    for action in schedule.actions:
        after = tuple(i for i in action.after if i < action.index)
        schedule = edit(schedule, action.index, after=after)
    return schedule


def buffer(name: str, **changes) -> Schedule:
    buffers = (replace(b, **changes) if b.name == name else b for b in GOOD.buffers)
    return replace(GOOD, buffers=tuple(buffers))


def added(at: int, **fields) -> Schedule:
    action = Action(**({"index": at, "rank": 0, "lane": Lane.COMPUTE} | fields))
    return inserted(GOOD, at, action)


def extra(**fields) -> Schedule:
    """One more action, at the end."""
    return added(len(GOOD.actions), **fields)


def no_barrier() -> Schedule:
    return without(
        GOOD, find(GOOD, "r0 peer BARRIER tag ready"), find(GOOD, "r1 peer BARRIER tag ready")
    )


def no_second_barrier() -> Schedule:
    """What rank 0 reads of h1 may be written over by rank 1."""
    return without(GOOD, *(a.index for a in GOOD.actions if a.tag == "between"))


def to_itself() -> Schedule:
    w = Writer("itself", 2)
    w.given("x", 0, "device", "features", 1)
    w.add(0, Lane.PEER, Op.SEND, tag="rows", reads=["x"])
    w.add(0, Lane.PEER, Op.RECV, tag="rows")
    return w.finish()


def crossed_sends() -> Schedule:
    w = Writer("crossed", 2)
    for rank in range(2):
        w.given(f"x{rank}", rank, "device", "features", 1)
        w.given(f"y{rank}", rank, "device", "staging", 1)
    for rank in range(2):
        w.add(rank, Lane.PEER, Op.SEND, tag=f"from{rank}", reads=[f"x{rank}"])
        w.add(rank, Lane.PEER, Op.RECV, tag=f"from{1 - rank}", writes=[f"y{rank}"])
    return w.finish()


def other_order() -> Schedule:
    first, second = (
        find(GOOD, "r1 peer BARRIER tag between"),
        find(GOOD, "r1 peer BARRIER tag read "),
    )
    return edit(edit(GOOD, first, tag="read"), second, tag="between")


def reduce_of_one() -> Schedule:
    """Both ranks step, but the sum is of rank 0 alone."""
    schedule = changed("r0 peer REDUCE", tag="sum@0")
    return without(schedule, find(schedule, "r1 peer REDUCE"))


def gradients(*steps: str) -> Schedule:
    """Two ranks that do this with their gradients, one after the other."""
    w = Writer("gradients", 2)
    names = {r: [f"g{r}"] for r in range(2)}
    for r in range(2):
        w.buffer(f"g{r}", r, "device", "gradients", 4)
        w.reserve(r, f"g{r}")
    for number, step in enumerate(steps):
        if step == "REDUCE":
            w.meet(Op.REDUCE, f"sum{number}", reads=names, writes=names)
            continue
        for r in range(2):
            w.add(
                r,
                Lane.COMPUTE,
                Op(step),
                reads=names[r] if step == "STEP" else (),
                writes=() if step == "STEP" else names[r],
            )
    for r in range(2):
        w.release(r, f"g{r}")
    return w.finish()


def left_out() -> Schedule:
    """A STEP that reads one of two gradients."""
    w = Writer("left_out")
    for name in "gh":
        w.buffer(name, 0, "device", "gradients", 4)
    w.reserve(0, "g", "h")
    w.add(0, Lane.COMPUTE, Op.BACKWARD, writes="gh")
    w.add(0, Lane.COMPUTE, Op.STEP, reads="g")
    w.release(0, "g", "h")
    return w.finish()


def circle() -> Schedule:
    w = Writer("circle", 1)
    w.given("x", 0, "device", "features", 1)
    for lane in (Lane.COMPUTE, Lane.PEER):
        w.add(0, lane, Op.COPY, reads=["x"])
    return edit(edit(w.finish(), 0, after=(1,)), 1, after=(0,))


def forward_dependency() -> Schedule:
    w = Writer("forward", 1)
    w.given("x", 0, "device", "features", 1)
    for lane in (Lane.COMPUTE, Lane.PEER):
        w.add(0, lane, Op.COPY, reads=["x"])
    return edit(w.finish(), 0, after=(1,))


FAULTS: dict[str, tuple[Callable[[], Schedule], str]] = {
    "use before load": (
        lambda: dropped("r0 h2d COPY"),
        "wanted a0 written before FORWARD s0 p0 reads it, had unwritten memory: nothing does",
    ),
    "load not waited for": (
        lambda: changed("r0 compute FORWARD s0 p0", after=()),
        "a0 may be read while it is being written: nothing orders 3 COPY before FORWARD s0 p0",
    ),
    "loaded too late": (
        lambda: moved("r0 compute FORWARD s0 p0", "r0 h2d COPY"),
        "wanted a0 written before FORWARD s0 p0 reads it.* action 4 does, not surely before",
    ),
    "no room": (
        lambda: dropped("r0 compute RESERVE writes a0"),
        "wanted a0 reserved before it is written, had no RESERVE",
    ),
    "room too late": (
        lambda: changed("r0 h2d COPY", after=(1,)),
        "a0 may be written before it is reserved: nothing orders 2 RESERVE before COPY",
    ),
    "use after free": (
        lambda: extra(op=Op.FORWARD, reads=("h0",)),
        "use after free: h0",
    ),
    "release in use": (
        lambda: changed("r1 compute RELEASE writes a1", after=(7,), lane=Lane.D2H),
        "a1 may be released while it is in use: nothing orders 9 FORWARD s0 p1 before RELEASE",
    ),
    "double free": (
        lambda: extra(op=Op.RELEASE, writes=("h0",)),
        "double free of h0: action 36",
    ),
    "double reserve": (
        lambda: extra(op=Op.RESERVE, writes=("h0",)),
        "double reserve of h0: action 4",
    ),
    "reserve of given": (
        lambda: extra(op=Op.RESERVE, writes=("x0",)),
        "x0 is reserved though it is given",
    ),
    "release of lasting": (
        lambda: extra(op=Op.RELEASE, writes=("x0",)),
        "x0 is released though it is lasting",
    ),
    "leak": (
        lambda: dropped("r1 compute RELEASE writes got1"),
        "leak: got1 is never released",
    ),
    "leak of given": (
        lambda: buffer("x0", lasting=False),
        "leak: x0 is never released",
    ),
    "only declared": (
        lambda: replace(GOOD, buffers=(*GOOD.buffers, replace(GOOD.buffers[2], name="idle"))),
        "wanted idle reserved, had it only declared",
    ),
    "another rank's room": (
        lambda: changed("r1 compute RELEASE writes got1", rank=0, after=()),
        "wanted got1 of rank 1 reserved and released there, had RELEASE on rank 0",
    ),
    "missing barrier": (
        no_barrier,
        "h1 may be read before it is reserved: nothing orders 8 RESERVE before FORWARD "
        "s1 p0: a missing barrier between rank 1 and rank 0",
    ),
    "no barrier after a read": (
        no_second_barrier,
        "h1 may be written over while it is being read: nothing orders 15 FORWARD s1 p0 "
        "before ACCUMULATE: a missing barrier between rank 0 and rank 1",
    ),
    "crossed sends": (
        crossed_sends,
        "crossed sends that block each other",
    ),
    "no partner": (
        lambda: dropped("r1 peer BARRIER tag ready"),
        "had no such action on rank 1: the others would wait",
    ),
    "no receiver": (
        lambda: dropped("r1 peer RECV"),
        "one SEND and one RECV with tag rows, had 1 and 0",
    ),
    "a partner twice": (
        lambda: changed("r0 peer BARRIER tag between", tag="read"),
        "each of the ranks 0,1 once in BARRIER read, had rank 0 twice",
    ),
    "a stranger": (
        lambda: extra(rank=1, lane=Lane.PEER, op=Op.BARRIER, tag="alone@0"),
        "had rank 1 though the tag leaves it out",
    ),
    "other operation": (
        lambda: changed("r0 peer BARRIER tag ready", op=Op.EXCHANGE),
        "wanted EXCHANGE on lane peer of every rank with tag ready",
    ),
    "no tag": (
        lambda: changed("r0 peer BARRIER tag ready", tag=""),
        "wanted a tag on BARRIER",
    ),
    "tag of nobody": (
        lambda: changed("r0 peer BARRIER tag ready", tag="ready@7"),
        "lists no ascending ranks below 2",
    ),
    "send to itself": (
        to_itself,
        "both ends on rank 0",
    ),
    "collectives in another order": (
        other_order,
        "BARRIER in different orders",
    ),
    "gradient never reduced": (
        lambda: without(GOOD, find(GOOD, "r0 peer REDUCE"), find(GOOD, "r1 peer REDUCE")),
        "gradient grads0 summed over the ranks 0,1 before this STEP, had it never "
        "reduced since action 29",
    ),
    "gradient reduced by one": (
        reduce_of_one,
        "summed over the ranks 0,1 before this STEP, had it summed over 0 alone since action 33",
    ),
    "gradient reduced early": (
        lambda: gradients("BACKWARD", "REDUCE", "BACKWARD", "STEP"),
        "never reduced since action 6 wrote it",
    ),
    "gradient reduced twice": (
        lambda: gradients("BACKWARD", "REDUCE", "REDUCE", "STEP"),
        "had those of 0,1 reduced twice by sum2",
    ),
    "gradient unlike": (
        lambda: buffer("grads1", num_bytes=44),
        "wanted 40 bytes summed by REDUCE sum on every rank, had 44 on rank 1",
    ),
    "gradient too late": (
        lambda: gradients("BACKWARD", "REDUCE", "STEP", "BACKWARD"),
        "wanted the gradient g0 whole before the STEP at 6 reads it",
    ),
    "gradient never used": (
        left_out,
        "wanted the gradient h used, had nothing read what BACKWARD at 1 wrote of it",
    ),
    "step without gradients": (
        lambda: changed("r0 compute STEP", reads=("params0",)),
        "wanted the gradients of its parameters among what a STEP reads",
    ),
    "circle": (
        circle,
        "actions that wait for each other: 0 COPY \\(rank 0\\) for 1, 1 COPY \\(rank 0\\) for 0",
    ),
    "forward dependency": (
        forward_dependency,
        "wanted every action that COPY waits for issued before it, had 1 after it",
    ),
    "race of two writers": (
        lambda: added(15, lane=Lane.D2H, op=Op.FORWARD, writes=("out0",), after=(14,)),
        "two writers race for out0: nothing orders 15 FORWARD before FORWARD s1 p0",
    ),
    "write while read": (
        lambda: added(6, lane=Lane.H2D, op=Op.COPY, writes=("a0",)),
        "a0 may be written over while it is being read: nothing orders 5 FORWARD",
    ),
    "unwritten": (
        lambda: dropped("r0 compute ZERO"),
        "wanted grads0 written before BACKWARD s1 p0 reads it",
    ),
    "dangling name": (
        lambda: changed("r0 compute STEP", reads=("params9",)),
        "unknown buffer params9",
    ),
    "no such action": (
        lambda: changed("r0 compute STEP", after=(99,)),
        "waits for action 99, which is not there",
    ),
    "another rank's action": (
        lambda: changed("r1 compute STEP", after=(35,)),
        "to wait for actions of its own, had 35 of rank 0",
    ),
    "unknown lane": (
        lambda: changed("r0 compute STEP", lane="warp"),
        "unknown lane 'warp'",
    ),
    "unknown operation": (
        lambda: changed("r0 compute STEP", op="JUMP"),
        "unknown operation 'JUMP'",
    ),
    "unknown rank": (
        lambda: changed("r0 compute STEP", rank=2),
        "wanted a rank below 2, had 2",
    ),
    "wrong index": (
        lambda: replace(GOOD, actions=(*GOOD.actions[:-1], replace(GOOD.actions[-1], index=3))),
        "wanted index 39, had 3",
    ),
    "name twice": (
        lambda: replace(GOOD, buffers=(*GOOD.buffers, GOOD.buffers[0])),
        "had x0 twice",
    ),
    "rank of a buffer": (
        lambda: buffer("x0", rank=2),
        "wanted x0 on a rank below 2",
    ),
    "unknown tier": (
        lambda: buffer("x0", tier="tape"),
        "wanted a tier, had 'tape'",
    ),
    "not brought from the disk": (
        lambda: buffer("params0", tier="disk"),
        "wanted params0 on the device for FORWARD s0 p0, had it on the disk",
    ),
    "not brought to the device": (
        lambda: changed("r0 compute FORWARD s0 p0", reads=("x0", "params0")),
        "wanted x0 on the device for FORWARD s0 p0, had it on the host",
    ),
    "wrong lane of a copy": (
        lambda: changed("r0 h2d COPY", lane=Lane.D2H),
        "wanted COPY on lane d2h from the device, had x0, which is on the host",
    ),
    "copy to the wrong tier": (
        lambda: changed("r0 disk_read COPY", lane=Lane.DISK_WRITE, reads=("x0",)),
        "wanted COPY on lane disk_write to the disk, had page0, which is on the host",
    ),
    "kept workspace": (
        lambda: changed("r0 compute FORWARD s1 p0", reads=("h0", "h1", "scratch0")),
        "wanted scratch0 as scratch within one action",
    ),
    "reads of room": (
        lambda: changed("r0 compute RESERVE writes a0", reads=("x0",)),
        "wanted no reads of RESERVE",
    ),
}
