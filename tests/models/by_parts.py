"""An executor of programs by parts, for tests: rows are global, every part gathers its sources."""

from __future__ import annotations

import torch

from tiergnn.models.parts import part_of


def split(num_rows, num_parts, seed=0):
    """The rows of each part, in any order; parts may be empty."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(num_parts, (num_rows,), generator=generator)
    order = torch.randperm(num_rows, generator=generator)
    return [order[owner[order] == part] for part in range(num_parts)]


def run_by_parts(program, inputs, block, key=None, num_parts=3, seed=0):
    """What ``program.run`` gives, differentiable; a part sees what a stage declares, no more."""
    rows = split(block.num_dst, num_parts, seed)
    parts = [part_of(block, owned) for owned in rows]
    order = {
        "nodes": torch.cat(rows).argsort(),
        "edges": torch.cat([part.edges for part in parts]).argsort(),
    }
    whole = {name: inputs[name] for name in program.needs}

    def own(stage, owned, part):
        taken = {name: whole[name] for name in stage.statistics}
        names = (*stage.reads, *stage.edges)
        if stage.statistic is not None:
            names = (*names, stage.statistic.of)
        for name in names:
            of = program.rows[name].of
            taken[name] = whole[name][owned if of == "nodes" else part.edges]
        return taken

    for stage in program.stages:
        if stage.statistic is not None:
            moments = stage.combine(
                [
                    stage.partial(
                        part.block, {stage.statistic.of: whole[stage.statistic.of][owned]}
                    )
                    for owned, part in zip(rows, parts, strict=True)
                ]
            )
            whole[stage.statistic.name] = moments
            stage.commit(moments, block.num_dst)
        written = []
        for owned, part in zip(rows, parts, strict=True):
            gathered = {name: whole[name][part.sources] for name in stage.gathers}
            written.append(stage.run(part.block, key, gathered, own(stage, owned, part)))
        for name in stage.frees:
            del whole[name]
        for name in stage.writes:
            of = program.rows[name].of
            whole[name] = torch.cat([part[name] for part in written])[order[of]]
    return whole[program.output]
