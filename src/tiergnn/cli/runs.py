"""``train`` and ``resume``.

Everything that train offers is handed to ``api.train`` and the ready models under its own name;
what was not given is left to them, so that defaults live in one place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergnn.cli.output import JSON, Output
from tiergnn.errors import ConfigError
from tiergnn.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tiergnn.train.run import Run

_MODEL = "Model (what a model does not have is refused)"
_OPTIMISE = "Optimisation"
_DATA = "Data"
_MACHINE = "Machine and files"


def _option(*names: str, help: str, panel: str, default: str | None = None) -> Any:
    """A typer option; ``default`` is what the library does when it is not given."""
    shown = default if default is not None else False
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=shown)


def train(
    graph: Annotated[Path, typer.Argument(help="A graph folder, made by `tiergnn ingest`.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="gcn, sage, gin, gat, gatv2, sgc or appnp.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    hidden: Annotated[
        int | None,
        _option("--hidden", "--hidden-channels", help="Columns of hidden layers.", panel=_MODEL),
    ] = None,
    layers: Annotated[
        int | None, _option("--layers", "--num-layers", help="Graph layers.", panel=_MODEL)
    ] = None,
    dropout: Annotated[
        float | None, _option("--dropout", help="Fraction of elements dropped.", panel=_MODEL)
    ] = None,
    heads: Annotated[
        int | None, _option("--heads", help="Attention heads of gat, gatv2.", panel=_MODEL)
    ] = None,
    norm: Annotated[
        str | None, _option("--norm", help="batch or layer, after each layer.", panel=_MODEL)
    ] = None,
    residual: Annotated[
        bool | None, _option("--residual/--no-residual", help="Skip connections.", panel=_MODEL)
    ] = None,
    jk: Annotated[
        str | None, _option("--jk", help="Jumping knowledge: last, cat or max.", panel=_MODEL)
    ] = None,
    act: Annotated[
        str | None, _option("--act", help="Activation: relu, elu, ...", panel=_MODEL)
    ] = None,
    aggr: Annotated[
        str | None, _option("--aggr", help="Reduction of sage: mean, sum or max.", panel=_MODEL)
    ] = None,
    hops: Annotated[
        int | None, _option("--hops", "--K", help="Propagation steps of sgc, appnp.", panel=_MODEL)
    ] = None,
    alpha: Annotated[
        float | None, _option("--alpha", help="Teleport fraction of appnp.", panel=_MODEL)
    ] = None,
    epochs: Annotated[
        int | None,
        _option("--epochs", help="Passes over the graph.", panel=_OPTIMISE, default="200"),
    ] = None,
    lr: Annotated[
        float | None,
        _option("--lr", "--learning-rate", help="Step size.", panel=_OPTIMISE, default="0.01"),
    ] = None,
    weight_decay: Annotated[
        float | None,
        _option("--weight-decay", "--wd", help="L2 penalty.", panel=_OPTIMISE, default="0"),
    ] = None,
    optimizer: Annotated[
        str | None,
        _option("--optimizer", help="adam, adamw, sgd, ...", panel=_OPTIMISE, default="adam"),
    ] = None,
    scheduler: Annotated[
        str | None,
        _option("--scheduler", help="cosine, plateau, ...", panel=_OPTIMISE, default="none"),
    ] = None,
    criterion: Annotated[
        str | None,
        _option("--criterion", "--loss", help="Loss.", panel=_OPTIMISE, default="by the task"),
    ] = None,
    class_weight: Annotated[
        str | None,
        _option(
            "--class-weight", help="balanced, or a number for each class: 1,2,0.5", panel=_OPTIMISE
        ),
    ] = None,
    clip: Annotated[
        float | None, _option("--clip", help="Largest norm of the gradients.", panel=_OPTIMISE)
    ] = None,
    patience: Annotated[
        int | None,
        _option("--patience", help="Epochs without a better validation.", panel=_OPTIMISE),
    ] = None,
    metric: Annotated[
        str | None,
        _option(
            "--metric", help="What validation judges by.", panel=_OPTIMISE, default="by the task"
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        _option("--eval-every", help="Epochs between evaluations.", panel=_OPTIMISE, default="1"),
    ] = None,
    seed: Annotated[
        int | None,
        _option("--seed", help="Weights, dropout, splits.", panel=_OPTIMISE, default="0"),
    ] = None,
    split: Annotated[
        str | None,
        _option(
            "--split",
            help="K for the K-th stored split, random:0.6/0.2/0.2, planetoid:20/500/1000.",
            panel=_DATA,
            default="the stored one",
        ),
    ] = None,
    features: Annotated[
        str | None,
        _option(
            "--features",
            help="stored, degree, constant, onehot or embedding:WIDTH.",
            panel=_DATA,
            default="stored, else degree",
        ),
    ] = None,
    normalize_features: Annotated[
        bool,
        _option("--normalize-features", help="Make each row of features sum to 1.", panel=_DATA),
    ] = False,
    device: Annotated[
        str | None,
        _option("--device", help="auto, cpu, cuda or cuda:N.", panel=_MACHINE, default="auto"),
    ] = None,
    device_memory: Annotated[
        str | None,
        _option(
            "--device-memory",
            help="The most it may take on the device: 8GiB.",
            panel=_MACHINE,
            default="all",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        _option("--dtype", help="float32, float64 or bfloat16.", panel=_MACHINE, default="float32"),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        _option(
            "--checkpoint-every",
            help="Epochs between checkpoints.",
            panel=_MACHINE,
            default="about 30 s",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, _option("--tensorboard", help="Write TensorBoard events too.", panel=_MACHINE)
    ] = False,
    overwrite: Annotated[
        bool, _option("--overwrite", help="Replace a run that is there.", panel=_MACHINE)
    ] = False,
    quiet: Annotated[
        bool, _option("--quiet", "-q", help="Only the result.", panel=_MACHINE)
    ] = False,
    json: JSON = False,
) -> None:
    """Train a ready model on a graph folder, all of the graph at every step.

    Ctrl-C writes a checkpoint; `tiergnn resume RUN` goes on from there, bit for bit.

    Example: tiergnn train data/cora --model gcn --hidden 16 --dropout 0.5 --wd 5e-4 --out runs/a
    """
    from tiergnn import api

    architecture = _given(
        hidden_channels=hidden,
        num_layers=layers,
        dropout=dropout,
        heads=heads,
        norm=norm,
        residual=residual,
        jk=jk,
        act=act,
        aggr=aggr,
        K=hops,
        alpha=alpha,
    )
    options = _given(
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        optimizer=optimizer,
        scheduler=scheduler,
        criterion=criterion,
        class_weight=_weights(class_weight),
        clip=clip,
        patience=patience,
        metric=metric,
        eval_every=eval_every,
        seed=seed,
        split=split,
        features=features,
        normalize_features="row" if normalize_features else None,
        device=device,
        device_memory=device_memory,
        dtype=dtype,
        checkpoint_every=checkpoint_every,
    )
    run = api.train(
        graph,
        {"name": model, **architecture},
        out=out,
        tensorboard=tensorboard,
        overwrite=overwrite,
        progress=not quiet,
        **options,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json: JSON = False,
) -> None:
    """Continue a run from its newest sound checkpoint, as if it had never stopped.

    Example: tiergnn resume runs/a --epochs 400
    """
    from tiergnn import api

    show_run(
        api.resume(run, graph, epochs=epochs, device=device, progress=not quiet), Output(json=json)
    )


def show_run(run: Run, output: Output) -> None:
    """The end of a run: one JSON object, or its metrics and what to do next."""
    from tiergnn.report.text import metric_table

    best, done = run.best_epoch, len(run.history)
    peak = ", ".join(f"{tier} {format_bytes(n)}" for tier, n in run.peak_bytes.items())
    seconds = "" if run.seconds_per_epoch is None else format_seconds(run.seconds_per_epoch)
    told = [
        f"{done} epochs of {seconds} each; peak bytes: {peak}",
        f"metrics of epoch {best}, whose weights were kept:",
        metric_table(run.metrics),
        f"run folder: {run.path}",
        f"  next: tiergnn predict {run.path} --out preds.npy, or tiergnn report {run.path}",
    ]
    output.result(run.as_dict(), "\n".join(told))


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _weights(text: str | None) -> str | list[float] | None:
    if text is None or "," not in text:
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--class-weight {text!r} is not a list of numbers", hint="balanced, or 1,2,0.5"
        ) from None
