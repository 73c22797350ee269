"""What a resident run takes at most, by torch's profiler: an account beside the meter's own."""

from __future__ import annotations

import gc
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from tiergnn.graph.shape import shape_of
from tiergnn.planner import memory
from tiergnn.training.assemble import resident
from tiergnn.training.loop import Trainer
from tiergnn.training.metering import workload_of
from tiergnn.training.scoring import Scoring
from tiergnn.training.splits import choose_splits


def workloads(graph, model, options):
    """Of a training step and of an evaluation, which prepares what training does."""
    step = workload_of(graph, model, options, prepared=options.prepare is not False)
    prepared = bool(step.prepared)
    return [step, workload_of(graph, model, options, training=False, prepared=prepared)]


def predicted(graph, step, evaluation):
    """Bytes of a step, and of an evaluation between steps, by the workloads of both."""
    shape = shape_of(graph)
    return memory.step_held(step, shape), memory.evaluation_held(evaluation, shape, step)


def measured(graph, model, options, steps=2):
    """(bytes of a step, bytes of an evaluation): the most that torch's allocator gave at once, with
    what lay there before: the graph's own arrays and the parameters."""
    before = sum(p.numel() * p.element_size() for p in model.parameters())
    before += graph.rowptr.nbytes + graph.col.nbytes
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the profiler sees what other threads take, not what they give back
    try:
        trainer = trainer_of(graph, model, options)
        trainer._step(1)  # what torch and Numba make once a process
        before += _inputs_bytes(graph, trainer.resident.programs[True].needs)
        del trainer
        model.zero_grad()
        gc.collect()
        held: dict[str, int] = {}
        with Profile() as found:
            trainer = trainer_of(graph, model, options)
            gc.collect()  # what tracing left
        start = before + found.left
        with Profile() as found:
            for step in range(1, steps + 1):
                trainer._step(step)
        held["step"] = start + found.most
        start += found.left
        with Profile() as found:
            trainer.scoring.scores(trainer.resident.infer())
        held["evaluation"] = start + found.most
        return held["step"], held["evaluation"]
    finally:
        torch.set_num_threads(threads)


def _inputs_bytes(graph, needs):
    """Of the graph's arrays that the program reads at every step, as they are stored."""
    arrays = {
        "x": None if graph.x is None else graph.x.data,
        "edge_weight": graph.edge_weight,
        "edge_attr": None if graph.edge_attr is None else graph.edge_attr.data,
    }
    return sum(arrays[name].nbytes for name in needs if arrays.get(name) is not None)


def trainer_of(graph, model, options):
    """As a run has it before its first step."""
    splits = choose_splits(graph, options.split, options.seed)
    held = resident(graph, model, options)
    scoring = Scoring(
        graph,
        splits,
        held.device,
        criterion=options.criterion,
        class_weight=options.class_weight,
        metric=options.metric,
        mode=options.metric_mode,
    )
    return Trainer(held, scoring, options)


class Profile:
    """``most`` and ``left``: bytes held beyond what was there before, at most and in the end."""

    def __enter__(self):
        self.Profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.Profiler.__enter__()
        return self

    def __exit__(self, *failure):
        self.Profiler.__exit__(*failure)
        if failure[0] is not None:
            return
        events = [e for e in _all(self.Profiler.profiler.kineto_results.experimental_event_tree())
                  if str(e.typed[0]).endswith("Allocation")]  # fmt: skip
        events.sort(key=lambda e: e.start_time_ns)
        totals = list(accumulate((e.extra_fields.alloc_size for e in events), initial=0))
        self.most, self.left = max(totals), totals[-1]


def _all(events):
    for event in events:
        yield event
        yield from _all(event.children)
