"""What the README shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
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


COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks("sh")
    for line in block.splitlines()
    if line.startswith("tiergnn")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_exist(cli, monkeypatch, tmp_path, command):
    """Without their files they end with "no such file", 3, and not with "no such option", 2."""
    monkeypatch.chdir(tmp_path)
    done = cli(*command.split()[1:])
    assert done.code == 3, done.err


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
