"""The options of ``train``, as the command line shows them.

None, or False of a plain flag, is "not given": the library's own default holds then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_MODEL = "Model (an option that a model does not have is refused)"
_OPTIMISE = "Optimisation"
_DATA = "Data"
_MACHINE = "Machine and files"
STRATEGIES = (
    "May be given several times: resident, grinnder, sliced, hongtu; "
    "of ranks halo, nfp, mgg, uva, leo."
)


def _option(*flags: str, help: str, panel: str, default: str | bool = False) -> Any:
    """A typer option; ``default`` is what the library does when it is not given."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, show_default=default)


def _model(*flags: str, help: str, default: str, min: int | None = None) -> Any:
    """``default``: a value, or model names with theirs and "others": tests hold it to the zoo."""
    return typer.Option(*flags, help=help, rich_help_panel=_MODEL, show_default=default, min=min)


def _optimise(*flags: str, help: str, default: str | bool = False) -> Any:
    return _option(*flags, help=help, panel=_OPTIMISE, default=default)


def _data(*flags: str, help: str, default: str | bool = False) -> Any:
    return _option(*flags, help=help, panel=_DATA, default=default)


def _machine(*flags: str, help: str, default: str | bool = False) -> Any:
    return _option(*flags, help=help, panel=_MACHINE, default=default)


Hidden = Annotated[
    int | None,
    _model(
        "--hidden",
        "--hidden-channels",
        help="Columns of hidden layers (gat, gatv2: of one head).",
        min=1,
        default="gcn 16, sage 256, gat 8, gatv2 8, others 64",
    ),
]
Layers = Annotated[
    int | None, _model("--layers", "--num-layers", help="Number of layers.", default="2", min=1)
]
Dropout = Annotated[
    float | None,
    _model(
        "--dropout",
        help="Fraction of elements dropped between layers.",
        default="gat 0.6, gatv2 0.6, sgc 0, others 0.5",
    ),
]
InputDropout = Annotated[
    float | None,
    _model(
        "--input-dropout",
        help="Fraction of features dropped.",
        default="sage 0, gin 0, others as --dropout",
    ),
]
AttentionDropout = Annotated[
    float | None,
    _model("--attention-dropout", help="Of attention (gat, gatv2).", default="as --dropout"),
]
EdgeDropout = Annotated[
    float | None, _model("--edge-dropout", help="Of edges at each hop (appnp).", default="0.5")
]
Heads = Annotated[
    int | None, _model("--heads", help="Attention heads (gat, gatv2).", default="8", min=1)
]
OutHeads = Annotated[
    int | None,
    _model(
        "--out-heads", help="Heads of the last layer, averaged (gat, gatv2).", default="1", min=1
    ),
]
Norm = Annotated[
    str | None,
    _model("--norm", help="none, batch or layer, after hidden layers.", default="none"),
]
Residual = Annotated[
    bool | None,
    _model("--residual/--no-residual", help="Add a layer's input to its output.", default="no"),
]
Jump = Annotated[
    str | None,
    _model("--jk", help="Jumping knowledge: none, cat, max, sum or last.", default="none"),
]
Act = Annotated[
    str | None,
    _model(
        "--act", help="relu, elu, leaky_relu or tanh.", default="gat elu, gatv2 elu, others relu"
    ),
]
Aggr = Annotated[
    str | None,
    _model("--aggr", help="mean, max or sum of neighbours (sage).", default="mean"),
]
Hops = Annotated[
    int | None,
    _model(
        "--hops", "--K", help="Propagation steps (sgc, appnp).", default="sgc 2, appnp 10", min=0
    ),
]
Alpha = Annotated[
    float | None,
    _model("--alpha", help="Share of the first rows at each hop (appnp).", default="0.1"),
]
Improved = Annotated[
    bool | None, _model("--improved/--no-improved", help="Self-loops weigh 2 (gcn).", default="no")
]
SelfLoops = Annotated[
    bool | None,
    _model(
        "--self-loops/--no-self-loops",
        help="Layers add self-loops (gcn, gat, gatv2).",
        default="yes",
    ),
]
TrainEps = Annotated[
    bool | None,
    _model("--train-eps/--no-train-eps", help="Learn how much own rows count (gin).", default="no"),
]
EdgeDim = Annotated[
    int | None,
    _model(
        "--edge-dim",
        help="Columns of edge features to attend to (gat, gatv2).",
        default="none",
        min=1,
    ),
]

Epochs = Annotated[int | None, _optimise("--epochs", help="Passes over the graph.", default="200")]
LearningRate = Annotated[
    float | None, _optimise("--lr", "--learning-rate", help="Step size.", default="0.01")
]
WeightDecay = Annotated[
    float | None,
    _optimise("--weight-decay", "--wd", help="L2 penalty; not of learned rows.", default="0"),
]
Optimizer = Annotated[
    str | None, _optimise("--optimizer", help="adam, adamw, sgd, ...", default="adam")
]
Scheduler = Annotated[
    str | None,
    _optimise("--scheduler", help="cosine, exponential, linear, onecycle, plateau or step."),
]
Criterion = Annotated[
    str | None, _optimise("--criterion", "--loss", help="The loss.", default="by the task")
]
ClassWeight = Annotated[
    str | None, _optimise("--class-weight", help="balanced, or a number for each: 1,2,0.5")
]
Clip = Annotated[float | None, _optimise("--clip", help="Largest norm of all gradients together.")]
Patience = Annotated[
    int | None,
    _optimise("--patience", help="Stop after so many epochs without a better validation."),
]
Metric = Annotated[
    str | None,
    _optimise(
        "--metric",
        help="What validation judges by.",
        default="accuracy; several labels roc_auc; real mse",
    ),
]
EvalEvery = Annotated[
    int | None, _optimise("--eval-every", help="Epochs between evaluations.", default="1")
]
Seed = Annotated[
    int | None, _optimise("--seed", help="Of weights, dropout and made splits.", default="0")
]

Split = Annotated[
    str | None,
    _data(
        "--split",
        help="K for the stored train.K, val.K, test.K; random:0.6/0.2/0.2; planetoid:20/500/1000.",
        default="the stored one",
    ),
]
Features = Annotated[
    str | None,
    _data(
        "--features",
        help="stored, degree, constant, onehot or embedding:WIDTH.",
        default="stored, else degree",
    ),
]
Prepare = Annotated[
    bool | None,
    _data(
        "--prepare/--no-prepare",
        help="Make what depends on the graph and its features alone once, not at every step.",
        default="where there is room",
    ),
]
Capture = Annotated[
    bool,
    _machine(
        "--capture/--no-capture",
        help="On a GPU that does everything, record a step once and replay it (a CUDA graph).",
        default="where it can be",
    ),
]
NormalizeFeatures = Annotated[
    bool,
    _data("--normalize-features", help="Divide a row by the sum of its absolute values."),
]

Device = Annotated[
    str | None, _machine("--device", help="auto, cpu, cuda or cuda:N.", default="auto")
]
DeviceMemory = Annotated[
    str | None,
    _machine(
        "--device-memory",
        help="The most to take on the device: 8GiB, 512MiB; without a unit it is bytes.",
        default="all",
    ),
]
HostMemory = Annotated[
    str | None,
    _machine(
        "--host-memory",
        help="The most to hold in host memory, when it does not fit: 32GiB, 512MiB; without a unit "
        "it is bytes.",
    ),
]
Disk = Annotated[
    Path | None,
    _machine("--disk", help="A folder whose disk may hold what memory cannot.", default="none"),
]
Strategy = Annotated[
    list[str] | None,
    _machine("--strategy", help=f"Plan by this. {STRATEGIES}", default="by memory"),
]
HotFrac = Annotated[
    float | None,
    _machine(
        "--hot-frac",
        help="Share of the rows, those that most parts read, that stays on the device (grinnder).",
        default="what pays",
    ),
]
Parts = Annotated[
    str | None,
    _machine(
        "--partition",
        help="A part for each rank: a saved one by name or path, block, metis, switching or auto.",
        default="a saved one, else auto",
    ),
]
Ranks = Annotated[
    int | None,
    _machine(
        "--ranks",
        help="Processes of this host that train together, on a GPU each or on the processors. "
        "Under torchrun as many as it started.",
        default="1",
    ),
]
Transport = Annotated[
    str | None,
    _machine(
        "--transport",
        help="How ranks reach each other: shared, gloo, nccl, ipc or symmetric.",
        default="the best that works",
    ),
]
Timeout = Annotated[
    float | None,
    _machine(
        "--timeout", help="Seconds in which a job with a rank that hangs ends.", default="120"
    ),
]
Dtype = Annotated[
    str | None, _machine("--dtype", help="float32, float64 or bfloat16.", default="float32")
]
CheckpointEvery = Annotated[
    int | None,
    _machine("--checkpoint-every", help="Epochs between checkpoints.", default="about 30 s"),
]
TensorBoard = Annotated[
    bool, _machine("--tensorboard", help="Write TensorBoard events in the run folder.")
]
Overwrite = Annotated[bool, _machine("--overwrite", help="Replace a run that is there.")]
Quiet = Annotated[bool, _machine("--quiet", "-q", help="Only the result.")]
