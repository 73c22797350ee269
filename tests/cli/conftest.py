from tests.cli.runs import graph, train
from tests.command import cli

__all__ = ["cli", "graph", "train"]
