"""How long planning takes, and how much memory: graphs given by counts, each in its own process.

Seconds are of planning itself, all imports done: of the processor, and of the wall, which others on
the machine lengthen. Bytes are the peak of the process, imports and all. Also the frontier of a
chain of 30 stages with 16 choices, and a placement of 1,000 blocks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from provenance import RESULTS, peak_bytes, provenance

# Graph, model, width, layers, machine, device and host budget in GiB (0: what there is), ranks,
# whether the whole frontier is asked for.
CASES = (
    ("papers100M", "gcn", 128, 3, "a100x8-nvswitch", 80, 512, 1, False),
    ("papers100M", "gcn", 128, 3, "a100x8-nvswitch", 24, 128, 1, False),
    ("papers100M", "sage", 256, 3, "a5000-nvme", 24, 128, 1, False),
    ("papers100M", "gcn", 128, 3, "a100x8-nvswitch", 0, 0, 8, False),
    ("papers100M", "gcn", 128, 3, "a100x8-nvswitch", 80, 512, 1, True),
    ("papers100M", "gcn", 128, 3, "a100x8-nvswitch", 0, 0, 8, True),
    ("products", "sage", 256, 3, "h200", 8, 0, 1, False),
    ("reddit", "gat", 8, 2, "a5000-nvme", 0, 0, 1, False),
)


def plan_case(shape: str, model: str, hidden: int, layers: int, machine: str, device: int,
              host: int, ranks: int, frontier: bool) -> dict[str, Any]:  # fmt: skip
    """Choose among all strategies; the plan's schedule is written and proven."""
    from tiergnn.errors import PlanError
    from tiergnn.graph.published import published_shape
    from tiergnn.hardware.presets import preset
    from tiergnn.planner.choose import Choosing, best, undominated
    from tiergnn.planner.models import classic

    start, start_cpu = time.perf_counter(), time.process_time()
    graph = published_shape(shape)
    found = preset(machine).with_budgets(
        device_bytes=device * 2**30 or None, host_bytes=host * 2**30 or None
    )
    work = classic(model, graph.num_features, graph.num_classes, hidden=hidden, layers=layers)
    asked = Choosing(
        workload=work, shape=graph, machine=found, ranks=ranks, thorough=frontier,
        fewer=frontier and ranks > 1,
    )  # fmt: skip
    trials = asked.trials()
    try:
        plan = best(trials)
        answer = f"{plan.strategy} {plan.knobs}: {plan.seconds:.3f} s a step, modelled"
    except PlanError as error:
        answer = str(error).splitlines()[0]
    return {
        "graph": shape,
        "model": f"{model} {layers}x{hidden}",
        "machine": machine,
        "device budget GiB": device or None,
        "host budget GiB": host or None,
        "ranks": ranks,
        "frontier": len(undominated(trials)) if frontier else None,
        "trials": len(trials),
        "processor_s": time.process_time() - start_cpu,
        "seconds": time.perf_counter() - start,
        "peak_bytes": peak_bytes(),
        "answer": answer,
    }


def chain_case() -> dict[str, Any]:
    from tiergnn.planner.search import Choice, Stage, frontier

    random = np.random.default_rng(0)

    def choice(i: int) -> Choice:
        seconds, kept, work = random.random(), *random.integers(1, 1_000_000, 2).tolist()
        return Choice(name=str(i), seconds=seconds, kept=(kept, 0, 0), backward=(work, 0, 0))

    stages = [Stage(name=f"s{s}", choices=tuple(map(choice, range(16)))) for s in range(30)]
    start = time.process_time()
    points = len(frontier(stages))
    return {"what": "frontier of 30 stages x 16 choices, seconds and device bytes",
            "points": points, "processor_s": time.process_time() - start}  # fmt: skip


def placement_case() -> dict[str, Any]:
    from tiergnn.graph.published import published_shape
    from tiergnn.graph.shape import expected_layout
    from tiergnn.hardware.presets import preset
    from tiergnn.planner.placement import blocks_of, leo_question
    from tiergnn.planner.placing import place

    shape = published_shape("reddit")
    part = expected_layout(shape, 8).parts[0]
    machine = preset("a100x8-pcie")
    budget = 64 * shape.num_nodes // 4
    zero_copy = machine.link("zero_copy").Bps.at(64)
    asked = leo_question(
        part,
        local_edge_s=64 / machine.device.gather_Bps.at(64),
        remote_edge_s=64 / machine.link("peer").Bps.at(64),
        host_row_s=64 / zero_copy,
        row_bytes=64,
        device_bytes=budget,
        host_bytes=budget,
    )
    start = time.process_time()
    found = place(asked)
    return {"what": "LEO's placement of one part of Reddit in 8", "blocks": len(blocks_of(part)),
            "gap": found.gap, "solver": found.solver,
            "processor_s": time.process_time() - start}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, help="run one case in this process and print it")
    chosen = parser.parse_args().case
    if chosen is not None:
        print(json.dumps(plan_case(*CASES[chosen])))
        return
    rows = []
    for i in range(len(CASES)):
        done = subprocess.run([sys.executable, __file__, "--case", str(i)], check=True,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
        rows.append(json.loads(done.stdout))
        row = rows[-1]
        print(f"{row['graph']:<12} {row['model']:<11} {row['machine']:<16} "
              f"{row['processor_s']:6.2f} s of the processor {row['seconds']:6.2f} s of the wall "
              f"{row['peak_bytes'] / 2**20:5.0f} MiB  {row['answer']}", flush=True)  # fmt: skip
    programs = [chain_case(), placement_case()]
    for row in programs:
        print(row)
    found = {**provenance(), "plans": rows, "programs": programs}
    (RESULTS / "planning-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
