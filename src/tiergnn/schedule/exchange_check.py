"""The proof of an ExchangePlan: senders have what they send, and nobody receives a row twice."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from tiergnn.errors import PlanError
from tiergnn.schedule.exchange import ExchangePlan, Send


def check_exchange(plan: ExchangePlan) -> None:
    """Prove that a plan meets its demands exactly.

    Every sender holds the rows before the stage begins; every rank receives a row once at most and
    an owner never; every reader receives it; ranks that do not read a row pass it on; there are at
    most W - 1 stages, none empty, and the sends stand in order. So each row's sends form a tree,
    and backward, the stages in reverse, gives every share to its owner exactly once.
    Raises PlanError naming the send or the demand that breaks it.
    """
    _check_order(plan)
    by_demand: dict[int, list[Send]] = defaultdict(list)
    for send in plan.sends:
        by_demand[send.demand].append(send)
    for i in range(len(plan.demands)):
        _check_demand(plan, i, by_demand[i])


def _check_order(plan: ExchangePlan) -> None:
    if list(plan.sends) != sorted(plan.sends):
        raise PlanError("wanted sends in ascending order, by stage, sender and receiver")
    stages = sorted({send.stage for send in plan.sends})
    if stages != list(range(len(stages))):
        raise PlanError(f"wanted stages 0, 1, ... with a send in each, had {stages}")
    most = max(1, plan.num_ranks - 1)
    if len(stages) > most:
        raise PlanError(
            f"wanted at most {most} stages of {plan.num_ranks} ranks, had {len(stages)}"
        )
    for send in plan.sends:
        ranks = {send.sender, send.receiver}
        if len(ranks) != 2 or not ranks <= set(range(plan.num_ranks)):
            raise PlanError(
                f"wanted two of the ranks 0..{plan.num_ranks - 1} at the ends of a send",
                culprit=str(send),
            )
        if not 0 <= send.demand < len(plan.demands):
            raise PlanError(f"wanted one of {len(plan.demands)} demands", culprit=str(send))
        if not 0 <= send.start < send.stop <= plan.demands[send.demand].rows:
            raise PlanError(
                f"wanted some of the {plan.demands[send.demand].rows} rows of the demand",
                culprit=str(send),
            )


def _check_demand(plan: ExchangePlan, number: int, sends: list[Send]) -> None:
    """Between two neighbouring ends of sends all rows are alike: they are checked as one."""
    need = plan.demands[number]
    cuts = sorted({0, need.rows, *(s.start for s in sends), *(s.stop for s in sends)})
    since: list[dict[int, int]] = [{need.owner: 0} for _ in cuts[:-1]]  # rank -> first stage held
    passed: list[set[int]] = [set() for _ in cuts[:-1]]
    for send in sends:
        for i in range(bisect_left(cuts, send.start), bisect_left(cuts, send.stop)):
            held, rows = since[i], f"rows {cuts[i]}:{cuts[i + 1]}"
            if held.get(send.sender, plan.num_ranks) > send.stage:
                raise PlanError(
                    f"wanted rank {send.sender} to hold what it sends, had {rows} not there before "
                    f"stage {send.stage}",
                    culprit=str(send),
                )
            if send.receiver in held:
                raise PlanError(
                    f"wanted rank {send.receiver} to receive a row once, had {rows} there already",
                    culprit=str(send),
                )
            held[send.receiver] = send.stage + 1
            passed[i].add(send.sender)
    for i, held in enumerate(since):
        rows = f"rows {cuts[i]}:{cuts[i + 1]}"
        missing = [rank for rank in need.readers if rank not in held]
        if missing:
            raise PlanError(
                f"wanted {rows} at rank {missing[0]}, which reads them, had no send of them to it",
                culprit=f"demand {number}: {need}",
            )
        idle = held.keys() - passed[i] - set(need.readers) - {need.owner}
        if idle:
            raise PlanError(
                f"wanted rank {min(idle)} to read or pass on {rows}, had neither",
                culprit=f"demand {number}: {need}",
            )
