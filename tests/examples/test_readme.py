"""What the README shows runs."""

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
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


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
