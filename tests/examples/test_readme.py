"""What the README and the page on kernels show runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import torch
from torch_geometric.data import Data

from tiergnn.graph.formats.known import FORMATS
from tiergnn.models import zoo

ROOT = Path(__file__).parents[2]
README, KERNELS = ((ROOT / page).read_text() for page in ("README.md", "docs/kernels.md"))


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_python(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("python")
    script = script.replace("epochs=200", "epochs=3, progress=False")
    torch.manual_seed(0)
    ring = torch.arange(60)
    data = Data(
        x=torch.randn(60, 5),
        y=ring % 3,
        edge_index=torch.stack([ring, (ring + 3) % 60]),
        train_mask=ring < 30,
        val_mask=(ring >= 30) & (ring < 40),
        test_mask=ring >= 40,
    )
    names = {"data": data}
    exec(script, names)
    assert names["labels"].shape == (60,)
    assert (tmp_path / "runs" / "a" / "run.json").exists()


def test_kernels_as_a_library():
    """Both ways give the sums that plain torch gives of the edge_index."""
    (script,) = blocks("python", KERNELS)
    torch.manual_seed(0)
    edge_index, weight = torch.randint(60, (2, 300)), torch.rand(300)
    x = torch.randn(60, 5)
    names = {
        "data": Data(edge_index=edge_index, edge_weight=weight, num_nodes=60),
        "x": x,
        "edge_index": edge_index,
        "weight": weight,
        "num_nodes": 60,
    }
    outs = {}
    for line in re.split(r"\n(?=\S)", script):
        exec(line, names)
        if line.startswith("out ="):
            outs[line] = names["out"]
    (src, dst), sums = edge_index, torch.zeros(60, 5)
    sums.index_add_(0, dst, x[src] * weight[:, None])
    mean, total = outs.values()
    torch.testing.assert_close(total, sums)
    torch.testing.assert_close(mean, sums / dst.bincount(minlength=60).clamp(min=1)[:, None])


def test_commands_run_as_printed(cli, monkeypatch, tmp_path):
    """One after the other in an empty folder, as a newcomer copies them."""
    monkeypatch.chdir(tmp_path)
    ran = []
    for block in blocks("sh")[1:]:  # the first one makes the environment
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            if program != "tiergnn":
                subprocess.run(line, shell=True, check=True)
                continue
            done = cli(*words)
            assert done.code == 0, (line, done.err)
            ran.append(words[0])
    told = "ingest info train generate partition train resume evaluate predict report "
    told += "plan plan simulate plan"
    assert " ".join(ran) == told
    assert (tmp_path / "report.html").exists()


def test_every_format_is_listed():
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == sorted(
        FORMATS, key=lambda name: README.index(f"| `{name}` |")
    )


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_model_is_named():
    told = README.lower()
    assert [name for name in zoo.MODELS if name not in told] == []
