"""`.npy` files of edges, and `.npz` files of a whole graph or of an adjacency matrix."""

from __future__ import annotations

from pathlib import Path

from tiergnn.graph.formats.arrays import is_npy, npz_names, open_npy, open_npz
from tiergnn.graph.formats.bundle import open_bundle
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Source


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    return is_npy(path) or path.suffix == ".npz" or bool(npz_names(path))


def open_numpy(path: Path, options: Options, scratch: Path) -> Source:
    """Ids [2, E] or [E, 2] in a `.npy`; arrays by name, or SciPy's save_npz, in a `.npz`."""
    arrays = {"edge_index": open_npy(path)} if is_npy(path) else open_npz(path, scratch)
    return open_bundle("numpy", path.name, arrays, options)
