"""plan and simulate: answers before anything is trained, on machines that are not here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import tiergnn as tg
from tiergnn.graph.generate import sbm
from tiergnn.graph.shape import shape_of
from tiergnn.hardware.presets import resolve
from tiergnn.planner.plan import Plan
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

SAGE = ("--model", "sage", "--hidden", 64, "--layers", 3)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs") / "sbm"
    sbm(2_000, 4, degree=12, num_features=32, seed=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def workload(graph, tmp_path_factory):
    """What a traced model takes, written once."""
    from typer.testing import CliRunner

    from tiergnn.cli.main import app

    path = tmp_path_factory.mktemp("workloads") / "sage.json"
    arguments = ["plan", graph, *SAGE, "--machine", "h200", "--strategy", "resident"]
    arguments += ["--save-workload", path]
    assert CliRunner().invoke(app, [str(a) for a in arguments]).exit_code == 0
    return path


def test_what_fits_is_resident_and_said_in_bytes_and_seconds(cli, graph, workload):
    done = cli("plan", graph, "--model", workload, "--machine", "h200")
    assert done.code == 0, done.err
    assert done.out.startswith("resident")
    for words in ("predicted", "topology", "saved", "optimizer", "busiest lane"):
        assert words in done.out


def test_a_budget_is_held_and_the_plan_is_proven(cli, graph, workload, tmp_path):
    full = cli("plan", graph, "--model", workload, "--machine", "h200", "--json").json
    budget = full["peak_bytes"]["device"] // 2
    found = cli(
        "plan", graph, "--model", workload, "--machine", "h200", "--device-memory", budget,
        "--out", tmp_path / "plan.json", "--schedule", tmp_path / "schedule.txt", "--json",
    ).json  # fmt: skip
    assert found["peak_bytes"]["device"] <= budget
    assert found["strategy"] != "resident"
    assert any("refused" in trial for trial in found["trials"])
    plan = Plan.load(tmp_path / "plan.json")
    schedule = Schedule.parse((tmp_path / "schedule.txt").read_text())
    assert schedule == plan.schedule
    check(schedule, plan.machine)


def test_an_impossible_budget_is_refused_with_what_would_do(cli, graph, workload):
    done = cli("plan", graph, "--model", workload, "--machine", "h200",
               "--device-memory", "1KiB", "--host-memory", "1KiB")  # fmt: skip
    assert done.code == 2
    for words in ("no plan fits", "needs", "has 1.0 KiB", "largest", "device_memory of"):
        assert words in done.err


def test_the_frontier_is_printed_and_drawn(cli, graph, workload, tmp_path):
    done = cli("plan", graph, "--model", workload, "--machine", "h200", "--frontier",
               "--strategy", "resident", "--strategy", "hongtu",
               "--html", tmp_path / "plan.html")  # fmt: skip
    assert done.code == 0, done.err
    assert "that no other beats" in done.out
    page = (tmp_path / "plan.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    assert "Plans that no other beats" in page
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_a_plan_is_simulated_here_and_elsewhere(cli, graph, workload, tmp_path):
    plan = tmp_path / "plan.json"
    cli("plan", graph, "--model", workload, "--machine", "h200", "--out", plan)
    here = cli("simulate", plan, "--json").json
    out = tmp_path / "timeline.json"
    there = cli("simulate", plan, "--machine", "t4x8", "--out", out, "--json").json
    assert there["machine"] == "t4x8"
    assert there["predicted_s"] > here["predicted_s"]
    assert Timeline.load(out).seconds == pytest.approx(there["predicted_s"])
    told = cli("simulate", plan).out
    assert "compute" in told
    assert "the step is as long as it is because of compute" in told


def test_shapes_stand_for_graphs_that_are_not_here(cli, graph, tmp_path):
    arguments = ("--model", "gcn", "--hidden", 16, "--machine", "h200", "--json")
    published = cli("plan", "products", *arguments).json
    assert published["strategy"] == "resident"
    shape_of(tg.Graph.open(graph)).save(tmp_path / "shape.json")
    own = cli("plan", tmp_path / "shape.json", *arguments).json
    assert own["peak_bytes"]["device"] < published["peak_bytes"]["device"]
    wrong = cli("plan", "products", "--model", "appnp", "--machine", "h200")
    assert wrong.code == 2
    assert "--save-workload" in wrong.err
    nowhere = cli("plan", "nowhere", "--model", "gcn", "--machine", "h200")
    assert nowhere.code == 3


def test_ranks_need_devices(cli, graph, workload):
    few = cli("plan", graph, "--model", workload, "--machine", "h200", "--ranks", 4)
    assert few.code == 2
    assert "4 ranks need as many devices" in few.err
    found = cli("plan", graph, "--model", workload, "--machine", "a100x8-pcie", "--ranks", 4,
                "--json").json  # fmt: skip
    assert found["strategy"] in ("halo", "leo", "nfp", "mgg", "uva")


def test_a_frontier_of_ranks_has_fewer_of_them_as_well(cli, graph, workload):
    found = cli("plan", graph, "--model", workload, "--machine", "a100x8-pcie", "--ranks", 4,
                "--frontier", "--strategy", "resident", "--strategy", "halo",
                "--json").json  # fmt: skip
    tried = {trial["ranks"] for trial in found["trials"]}
    assert tried == {1, 2, 4}
    assert {trial["strategy"] for trial in found["trials"] if trial["ranks"] == 1} == {"resident"}


def test_strangers_are_named(cli, graph, workload):
    machine = cli("plan", graph, "--model", workload, "--machine", "h2000")
    assert machine.code in (2, 3)
    assert "h200" in machine.err
    strategy = cli("plan", graph, "--model", workload, "--machine", "h200", "--strategy", "grinder")
    assert strategy.code == 2
    assert "grinnder" in strategy.err


_NO_TORCH = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_geometric", "triton"):
            raise ModuleNotFoundError("there is no " + name, name=name)


sys.meta_path.insert(0, Refuse())
from tiergnn.cli.main import main

main()
"""


def test_planning_a_folder_and_a_workload_needs_no_torch(graph, workload, tmp_path):
    """As where torch is not installed: importing it fails. With all strategies, and simulated."""
    plan = tmp_path / "plan.json"

    def without_torch(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _NO_TORCH, *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    asked = ("plan", graph, "--model", workload, "--machine", "h200")
    told = without_torch(*asked, "--out", plan)
    assert told.startswith("resident")
    found = json.loads(without_torch(*asked, "--device-memory", "2MiB", "--json"))
    assert found["strategy"] != "resident"
    assert {trial["strategy"] for trial in found["trials"]} >= {"resident", "sliced", "grinnder"}
    ranks = ("--machine", "a100x8-pcie", "--ranks", 4, "--json")
    assert json.loads(without_torch(*asked[:4], *ranks))["peak_bytes"]["device"] > 0
    there = json.loads(without_torch("simulate", plan, "--machine", "t4x8", "--json"))
    assert there["machine"] == "t4x8"


@pytest.mark.parametrize("arguments", [("plan", "GRAPH", *SAGE), ("doctor",), ("machine",)])
def test_what_needs_torch_says_so(graph, arguments):
    asked = [str(graph) if word == "GRAPH" else str(word) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", _NO_TORCH, *asked],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"tiergnn {arguments[0]} needs torch here" in done.stderr
    assert "pip install torch" in done.stderr
    assert "unexpected" not in done.stderr


def test_the_python_form_is_the_same_plan(graph, workload, cli):
    found = cli("plan", graph, "--model", workload, "--machine", "h200", "--json").json
    plan = tg.plan(graph, workload, machine="h200")
    assert plan.seconds == found["predicted_s"]
    assert plan.peak_bytes == found["peak_bytes"]


def test_a_run_by_a_plan_shows_predicted_beside_measured(cli, graph, tmp_path):
    options = ("--hidden", 16, "--dropout", 0.5)
    plan = tmp_path / "plan.json"
    made = cli("plan", graph, "--model", "gcn", *options, "--machine", "cpu2", "--strategy",
               "resident", "--out", plan)  # fmt: skip
    assert made.code == 0, made.err
    run = tmp_path / "run"
    done = cli("train", graph, "--model", "gcn", *options, "--epochs", 3, "--plan", plan,
               "--out", run, "--quiet")  # fmt: skip
    assert done.code == 0, done.err
    assert "predicted:" in done.out
    assert "its code included" in done.out
    plain = cli("train", graph, "--model", "gcn", *options, "--epochs", 3, "--out",
                tmp_path / "plain", "--quiet", "--json").json  # fmt: skip
    planned = json.loads((run / "result.json").read_text())
    assert planned["losses"] == plain["losses"]
    assert planned["predicted"]["strategy"] == "resident"
    assert cli("resume", run, "--epochs", 5, "--quiet", "--json").json["predicted"] is not None
    cli("report", run, "--html", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "compute, predicted" in page
    assert "compute, measured" in page
    told = cli("report", run, "--json").json
    assert told["peak_of"] == {"host": "process"}
    ratio = told["seconds_per_epoch"] / told["predicted"]["seconds_per_epoch"]
    assert told["measured_over_predicted"] == pytest.approx(ratio)
    text = cli("report", run).out
    for words in ("peak, host: the process, its code included", "predicted peak, device: tensors"):
        assert words in text
        assert words in page
    assert re.search(rf"measured over predicted +{ratio:.2f}", text)
    bare = cli("report", tmp_path / "plain", "--json").json
    assert (bare["predicted"], bare["measured_over_predicted"]) == (None, None)


def test_a_plan_of_something_else_is_refused(cli, graph, tmp_path):
    plan = tmp_path / "plan.json"
    cli("plan", graph, "--model", "gcn", "--hidden", 16, "--machine", "cpu2", "--strategy",
        "resident", "--out", plan)  # fmt: skip
    other = cli("train", graph, "--model", "gat", "--epochs", 1, "--plan", plan, "--out",
                tmp_path / "run", "--quiet")  # fmt: skip
    assert other.code == 2
    assert "of another model" in other.err
    wide = cli("train", graph, "--model", "gcn", "--hidden", 17, "--epochs", 1, "--plan", plan,
               "--out", tmp_path / "run", "--quiet")  # fmt: skip
    assert wide.code == 2
    assert not (tmp_path / "run").exists()
    sbm(300, 3, degree=5, num_features=32, seed=1).save(tmp_path / "small")
    small = cli("train", tmp_path / "small", "--model", "gcn", "--hidden", 16, "--plan", plan,
                "--out", tmp_path / "run2", "--quiet")  # fmt: skip
    assert small.code == 2
    assert "2,000 nodes" in small.err


def test_budgets_of_a_run_make_its_plan(cli, graph, tmp_path, monkeypatch):
    """What does not fit on the device waits in host memory, then on the disk; the same losses."""
    short = ("--epochs", 3, "--device", "cpu", *SAGE, "--quiet", "--json")
    want = cli("train", graph, *short, "--out", tmp_path / "resident").json["losses"]
    machine = resolve("cpu2")  # measuring this one takes 20 s
    monkeypatch.setattr("tiergnn.hardware.measure.measure", lambda *_, **__: machine)
    scratch, run = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    budgets = ("--device-memory", "3MiB", "--host-memory", "16MiB", "--disk", scratch)
    done = cli("train", graph, *short, *budgets, "--out", run)
    assert done.code == 0, done.err
    assert done.json["losses"] == pytest.approx(want, rel=1e-5)
    assert done.json["predicted"]["strategy"] in ("grinnder", "hongtu")
    counted = cli("report", run, "--json").json["peak_of"]
    assert counted == dict.fromkeys(done.json["peak_bytes"], "tensors")
    assert "peak, host: tensors" in cli("report", run).out
    assert done.json["peak_bytes"]["device"] <= 3 * 2**20
    told = cli("resume", run, "--epochs", 4, "--quiet").out
    assert "predicted:" in told
    assert "its code included" not in told  # what is held is counted
    assert not list(scratch.iterdir())
    hot = cli("train", graph, *short, *budgets[:2], "--hot-frac", 0.1, "--out", tmp_path / "hot")
    assert hot.code == 0, hot.err
    assert hot.json["losses"] == pytest.approx(want, rel=1e-5)
    assert Plan.load(tmp_path / "hot" / "plan.json").knobs.hot_frac == 0.1
    refused = cli("train", graph, *short, "--plan", run / "plan.json", "--disk", scratch, "--out",
                  tmp_path / "other")  # fmt: skip
    assert refused.code == 2
    assert "a plan has its budgets and ranks already" in refused.err


def test_a_device_budget_alone_makes_a_plan(cli, graph, tmp_path, monkeypatch):
    """What the plan finds fits is trained: not refused after an epoch for what the process takes
    besides, nor begun where it does not fit."""
    monkeypatch.setattr("tiergnn.hardware.measure.measure", lambda *_, **__: resolve("cpu2"))
    short = ("--epochs", 2, "--device", "cpu", *SAGE, "--quiet", "--json")
    asked = ("plan", graph, *SAGE, "--machine", "cpu2", "--device", "cpu", "--json")
    whole = cli(*asked).json["peak_bytes"]["device"]
    want = cli("train", graph, *short, "--out", tmp_path / "want").json["losses"]
    for budget, names in ((whole, {"resident"}), (whole // 2, {"grinnder", "hongtu", "sliced"})):
        budgets = ("--device-memory", budget)
        done = cli("train", graph, *short, *budgets, "--out", tmp_path / f"{budget}").json
        assert done["predicted"]["strategy"] in names
        assert done["predicted"]["peak_bytes"]["device"] <= budget
        assert done["losses"] == pytest.approx(want, rel=1e-5)
    refused = cli("train", graph, *short, "--device-memory", "1KiB", "--out", tmp_path / "no")
    assert refused.code == 2
    for words in ("no plan fits", "has 1.0 KiB", "device_memory of"):
        assert words in refused.err
    assert not (tmp_path / "no").exists()


def test_folders_of_files_are_made(cli, graph, workload, tmp_path):
    made = [tmp_path / kind / "new" / f"p.{kind}" for kind in ("json", "txt", "html", "work")]
    plan, schedule, html, work = made
    done = cli("plan", graph, "--model", workload, "--machine", "h200", "--strategy", "resident",
               "--out", plan, "--schedule", schedule, "--html", html,
               "--save-workload", work)  # fmt: skip
    assert done.code == 0, done.err
    there = tmp_path / "timeline" / "t.json"
    assert cli("simulate", plan, "--out", there).code == 0
    assert all(path.is_file() for path in (*made, there))


def test_a_saved_plan_knows_the_folder_of_its_disk(cli, graph, tmp_path):
    plan = tmp_path / "plan.json"
    asked = ("plan", graph, *SAGE, "--machine", "h200", "--strategy", "grinnder")
    assert cli(*asked, "--disk", tmp_path, "--out", plan).code == 0
    assert Plan.load(plan).scratch == str(tmp_path)


def test_what_is_prepared_is_said_and_may_be_refused(cli, graph, tmp_path):
    """GCN aggregates its features once where they are not dropped out."""
    model = ("--model", "gcn", "--input-dropout", 0)
    plan = tmp_path / "plan.json"
    asked = ("plan", graph, *model, "--machine", "h200", "--strategy", "resident")
    done = cli(*asked, "--out", plan)
    assert "prepared once" in done.out
    assert "defaults prepared" in done.out
    bare = cli(*asked, "--no-prepare", "--json").json
    assert "prepared" not in bare["knobs"]
    run = ("train", graph, *model, "--plan", plan, "--epochs", 1, "--device", "cpu")
    done = cli(*run, "--no-prepare", "--out", tmp_path / "refused")
    assert done.code == 2
    assert "the plan prepares rows" in done.err
    assert cli(*run, "--out", tmp_path / "run", "--quiet").code == 0


def test_options_of_models_are_those_of_train(cli, graph):
    options = ("--model", "sgc", "--hops", 3, "--strategy", "resident", "--machine", "h200")
    assert cli("plan", graph, *options).code == 0


def test_a_disk_that_is_not_there_is_refused_and_one_that_would_do_is_named(cli, graph, tmp_path):
    asked = ("plan", graph, *SAGE, "--machine", "h200", "--device-memory", "2MiB")
    asked = (*asked, "--host-memory", "200KiB", "--strategy", "grinnder")
    done = cli(*asked, "--disk", tmp_path / "nowhere")
    assert done.code == 2
    assert f"mkdir -p {tmp_path / 'nowhere'}" in done.err


@pytest.mark.parametrize(
    ("named", "options", "told"),
    [
        ("products", ("--hidden", 10**12), "a row has at most"),
        ("products", ("--hidden", 10**24), "a row has at most"),
        ("products", ("--layers", 10**9), "layers are 1 to 512"),
        ("products", ("--heads", 4), "does not know heads"),
        ("papers100m", (), "'papers100M', or one of"),
        (None, ("--hidden", 10**8), "cpu needs at least"),
        (None, ("--hidden", 10**20), "wider than 64 bits can count"),
        (None, ("--disk", "/dev/null"), "a folder, not a file"),
        (None, ("--ranks", 10**6), "1000000 ranks need as many devices"),
    ],
    ids=str,
)
def test_what_no_plan_can_be_made_of_is_refused_at_once(
    cli, monkeypatch, graph, named, options, told
):
    """Before a model of that size is made: a system ends who takes more memory than there is."""
    monkeypatch.setattr("tiergnn.runtime.memory.available_bytes", lambda device: 2**33)
    done = cli("plan", named or graph, "--model", "gcn", "--machine", "h200", *options)
    assert done.code in (2, 3)
    assert told in done.err
    assert "unexpected" not in done.err


def test_what_a_workload_has_already_is_not_asked_again(cli, graph, workload):
    asked = ("plan", graph, "--model", workload, "--machine", "h200")
    for option in (("--hidden", 5), ("--optimizer", "sgd"), ("--dtype", "float64")):
        done = cli(*asked, *option)
        assert done.code == 2
        assert "a workload has its" in done.err
    narrow = cli("plan", "products", *asked[2:])
    assert narrow.code == 2
    assert "features of 32 columns, products has 100" in narrow.err
