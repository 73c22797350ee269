"""``train`` and ``resume``.

Everything that train offers is handed to ``api.train`` and the ready models under its own name;
what was not given is left to them, so that defaults live in one place.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergnn.cli import options as opt
from tiergnn.cli.output import JSON, Output
from tiergnn.errors import ConfigError, shell_word
from tiergnn.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.partition import Partition
    from tiergnn.planner.plan import Plan
    from tiergnn.training.run import Run


def train(
    graph: Annotated[Path, typer.Argument(help="A graph folder, made by `tiergnn ingest`.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="gcn, sage, gin, gat, gatv2, sgc or appnp.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="A plan for this graph and model, of `tiergnn plan --out`."),
    ] = None,
    hidden: opt.Hidden = None,
    layers: opt.Layers = None,
    dropout: opt.Dropout = None,
    input_dropout: opt.InputDropout = None,
    attention_dropout: opt.AttentionDropout = None,
    edge_dropout: opt.EdgeDropout = None,
    heads: opt.Heads = None,
    out_heads: opt.OutHeads = None,
    norm: opt.Norm = None,
    residual: opt.Residual = None,
    jk: opt.Jump = None,
    act: opt.Act = None,
    aggr: opt.Aggr = None,
    hops: opt.Hops = None,
    alpha: opt.Alpha = None,
    improved: opt.Improved = None,
    self_loops: opt.SelfLoops = None,
    train_eps: opt.TrainEps = None,
    edge_dim: opt.EdgeDim = None,
    epochs: opt.Epochs = None,
    lr: opt.LearningRate = None,
    weight_decay: opt.WeightDecay = None,
    optimizer: opt.Optimizer = None,
    scheduler: opt.Scheduler = None,
    criterion: opt.Criterion = None,
    class_weight: opt.ClassWeight = None,
    clip: opt.Clip = None,
    patience: opt.Patience = None,
    metric: opt.Metric = None,
    eval_every: opt.EvalEvery = None,
    seed: opt.Seed = None,
    split: opt.Split = None,
    features: opt.Features = None,
    prepare: opt.Prepare = None,
    capture: opt.Capture = True,
    normalize_features: opt.NormalizeFeatures = False,
    device: opt.Device = None,
    device_memory: opt.DeviceMemory = None,
    host_memory: opt.HostMemory = None,
    disk: opt.Disk = None,
    strategy: opt.Strategy = None,
    hot_frac: opt.HotFrac = None,
    ranks: opt.Ranks = None,
    partition: opt.Parts = None,
    transport: opt.Transport = None,
    timeout: opt.Timeout = None,
    dtype: opt.Dtype = None,
    checkpoint_every: opt.CheckpointEvery = None,
    tensorboard: opt.TensorBoard = False,
    overwrite: opt.Overwrite = False,
    quiet: opt.Quiet = False,
    json: JSON = False,
) -> None:
    """Train a ready model on a graph folder, all of the graph at every step.

    The weights of the best-validation epoch are kept. Ctrl-C writes a checkpoint, and
    `tiergnn resume RUN` goes on from there, bit for bit.

    With --device-memory, --host-memory, --disk, --strategy or --hot-frac a plan is made first: what
    does not fit on the device waits in host memory or on the disk. With --ranks several processes
    train a part of the graph each, and get what one would; on several hosts torchrun starts them:
    `torchrun --nproc-per-node 8 -m tiergnn train ...`.

    Example: tiergnn train data/cora --model gcn --hidden 16 --dropout 0.5 --wd 5e-4 --out runs/a
    """
    from tiergnn import api
    from tiergnn.graph.csr import Graph
    from tiergnn.training.joined import ranks_here
    from tiergnn.training.parting import parts_of

    architecture = _given(
        hidden_channels=hidden,
        num_layers=layers,
        dropout=dropout,
        input_dropout=input_dropout,
        attention_dropout=attention_dropout,
        edge_dropout=edge_dropout,
        heads=heads,
        out_heads=out_heads,
        norm=norm,
        residual=residual,
        jk=jk,
        act=act,
        aggr=aggr,
        K=hops,
        alpha=alpha,
        improved=improved,
        add_self_loops=self_loops,
        train_eps=train_eps,
        edge_dim=edge_dim,
    )
    choices = _given(
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        optimizer=optimizer,
        scheduler=scheduler,
        criterion=criterion,
        class_weight=None if class_weight is None else _weights(class_weight),
        clip=clip,
        patience=patience,
        metric=metric,
        eval_every=eval_every,
        seed=seed,
        split=split,
        features=features,
        prepare=prepare,
        capture=capture,
        normalize_features="row" if normalize_features else None,
        device=device,
        device_memory=device_memory,
        dtype=dtype,
        checkpoint_every=checkpoint_every,
        transport=transport,
        timeout=timeout,
    )
    plan: Plan | Path | None = plan_file
    budgets = _given(
        host_memory=host_memory, disk=disk, strategies=strategy, hot_frac=hot_frac, ranks=ranks
    )
    if plan is None:
        ranks = ranks_here(ranks)
        budgets |= _given(ranks=ranks)
    elif budgets:
        raise ConfigError(
            "a plan has its budgets and ranks already", hint="--plan alone, or budgets alone"
        )
    source: Path | Graph = graph
    parts: Partition | str | None = partition
    if ranks is not None and ranks > 1 and plan is None:
        source = Graph.open(graph)
        parts = budgets["partition"] = parts_of(source, ranks, partition)
    if plan is None and (budgets or device_memory is not None):
        plan = _planned(source, {"name": model, **architecture}, choices, budgets)
        Output(json=json).say(str(plan))
    elif plan is None and not quiet:
        plan = _forecast(graph, {"name": model, **architecture}, choices)
    run = api.train(
        source,
        {"name": model, **architecture},
        plan,
        partition=parts,
        out=out,
        tensorboard=tensorboard,
        overwrite=overwrite,
        progress=not quiet,
        **choices,
    )
    show_run(run, Output(json=json))


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder, made by `tiergnn train`.")],
    epochs: Annotated[
        int | None, typer.Option(help="A new total of epochs.", show_default="as the run was begun")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Where the graph folder is now, if it has moved.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="as the run was begun"),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Go on over so many; 1 is one device.", show_default="as the run was begun", min=1
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="A part for each rank, as for train.", show_default="the run's own"),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(help="How ranks reach each other.", show_default="as the run was begun"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json: JSON = False,
) -> None:
    """Continue a run from its newest sound checkpoint, as if it had never stopped.

    Example: tiergnn resume runs/a --epochs 400
    """
    from tiergnn import api
    from tiergnn.training.joined import ranks_here

    found = api.resume(
        run,
        graph,
        epochs=epochs,
        ranks=ranks_here(ranks),
        partition=partition,
        transport=transport,
        device=device,
        progress=not quiet,
    )
    show_run(found, Output(json=json))


def show_run(run: Run, output: Output) -> None:
    """The end of a run: one JSON object, or its metrics and what to do next."""
    from tiergnn.report.text import metric_table

    best, done = run.best_epoch, len(run.history)
    peak = ", ".join(f"{tier} {format_bytes(n)}" for tier, n in run.peak_bytes.items())
    seconds = "" if run.seconds_per_epoch is None else format_seconds(run.seconds_per_epoch)
    told = [f"{done} epochs of {seconds} each; peak bytes: {peak}"]
    if run.transport:
        told[0] += f", of the fullest rank; {run.transport}"
    if run.plan is not None:
        planned = ", ".join(f"{tier} {format_bytes(n)}" for tier, n in run.plan.peak_bytes.items())
        process = set(run.peak_bytes) == {"host"}  # else counted, or of the device's allocator
        told.append(
            f"predicted: {format_seconds(run.plan.seconds)} each; at most {planned} of tensors"
            + ("; measured is the process, its code included" if process else "")
        )
    folder = shell_word(run.path)
    told += [
        f"metrics of epoch {best}, whose weights were kept:",
        metric_table(run.metrics),
        f"run folder: {run.path}",
        f"  next: tiergnn predict {folder} --out preds.npy, or tiergnn report {folder}",
    ]
    output.result(run.as_dict(), "\n".join(told))


def _planned(
    graph: Path | Graph, model: dict[str, Any], choices: dict[str, Any], budgets: dict[str, Any]
) -> Plan:
    """The fastest plan within budgets that training carries out."""
    from tiergnn import api
    from tiergnn.planner.strategies.known import EVALUATIONS
    from tiergnn.training.options import Options
    from tiergnn.training.planning import carried_out

    reads = ("optimizer", "criterion", "split", "features", "prepare", "device", "dtype", "seed")
    ranks = budgets.get("ranks", 1)
    known = ["resident", *EVALUATIONS] if ranks == 1 else carried_out(Options(**choices), ranks)
    chosen: dict[str, Any] = {"strategies": known} | budgets
    chosen |= {name: choices[name] for name in (*reads, "device_memory") if name in choices}
    return api.plan(graph, model, **chosen)


def _forecast(graph: Path, model: dict[str, Any], choices: dict[str, Any]) -> Plan | None:
    """A resident plan where this machine's rates are remembered; None, and a word, where not.

    Told beside the progress, on stderr: stdout is for results.
    """
    from tiergnn.training.planning import forecast

    found = forecast(graph, model, choices)
    if isinstance(found, str):
        print(f"no forecast: {found}", file=sys.stderr, flush=True)
        return None
    told = ", ".join(f"{tier} {format_bytes(n)}" for tier, n in found.peak_bytes.items())
    forecast_s = format_seconds(found.seconds)
    print(f"forecast: {forecast_s} an epoch; at most {told}", file=sys.stderr, flush=True)
    return found


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _weights(text: str) -> str | list[float]:
    if "," not in text:
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--class-weight {text!r} is not a list of numbers", hint="balanced, or 1,2,0.5"
        ) from None
