"""PyG's tensors in a `.pt` file: a dict such as ``data.to_dict()``, loaded as weights only."""

from __future__ import annotations

import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.formats.arrays import HeldArray
from tiergnn.graph.formats.bundle import open_bundle
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.rowfiles import Array
from tiergnn.graph.formats.source import Source
from tiergnn.graph.staging import store_errors


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in (".pt", ".pth"):
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def open_pt(path: Path, options: Options, scratch: Path) -> Source:
    """Tensors stay in the file, memory-mapped. Nothing but tensors and plain values is loaded."""
    held, is_mapped = _load(path)
    if isinstance(held, list | tuple):
        held = _one_graph(list(held), path)
    if not isinstance(held, dict):
        raise GraphError(
            f"wanted a dict of tensors, had {type(held).__name__}",
            culprit=str(path),
            hint="torch.save(data.to_dict(), path)",
        )
    arrays: dict[str, Array] = {}
    for key, value in held.items():
        arrays |= _arrays(str(key), value, path, is_mapped)
    return open_bundle("pyg", path.name, arrays, options)


def _one_graph(parts: list[Any], path: Path) -> Any:
    """What PyG's InMemoryDataset saves: the data, then where each of many graphs begins in it."""
    slices = parts[1] if len(parts) > 1 and isinstance(parts[1], dict) else {}
    num_graphs = max((len(ends) - 1 for ends in slices.values()), default=1)
    if num_graphs > 1:
        raise GraphError(f"the file holds {num_graphs} graphs, wanted one", culprit=str(path))
    return parts[0] if parts else parts


def _load(path: Path) -> tuple[Any, bool]:
    """What the file holds, and whether its tensors are mapped."""
    import torch

    with store_errors("read", path):
        for mapped in (True, False):
            try:
                held = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
                return held, mapped
            except RuntimeError as error:
                # Files of torch before 1.6 cannot be mapped; others are damaged.
                if not mapped:
                    raise _damaged(path, error) from error
            # What the unpickler makes of other bytes than a pickle's.
            except (EOFError, ValueError, LookupError, AttributeError, TypeError) as error:
                raise _damaged(path, error) from error
            except UnpicklingError as error:
                raise GraphError(
                    "the file holds more than tensors and plain values, "
                    "and loading such things can run any code",
                    culprit=str(path),
                    hint="torch.save(data.to_dict(), path), where data is the PyG Data",
                ) from error
    raise AssertionError("unreachable")


def _damaged(path: Path, error: Exception) -> GraphError:
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return GraphError(f"not a whole PyTorch file: {reason}", culprit=str(path))


def _arrays(key: str, value: Any, path: Path, is_mapped: bool) -> dict[str, Array]:
    """A tensor as the arrays that it is made of; {} for what is no array."""
    import torch

    name = f"{path.name}: {key}"
    if isinstance(value, int) and not isinstance(value, bool):
        return {key: HeldArray(name=name, data=np.array(value), logical="int64")}
    if not isinstance(value, torch.Tensor):
        return {}
    if key == "adj_t" and value.layout == torch.sparse_csr:
        # Row i of the transposed adjacency holds the sources of node i.
        parts = {
            "data": value.values(),
            "indices": value.col_indices(),
            "indptr": value.crow_indices(),
        }
        arrays: dict[str, Array] = {}
        for part, tensor in parts.items():
            arrays |= {f"adj_{part}": _array(f"{name} {part}", tensor, is_mapped)}
        arrays["adj_shape"] = HeldArray(name=name, data=np.array(value.shape), logical="int64")
        arrays["adj_format"] = HeldArray(name=name, data=np.array("csc"), logical="str")
        return arrays
    if value.layout != torch.strided:
        raise GraphError(
            f"a tensor of layout {value.layout} is not read", culprit=name, hint="dense tensors"
        )
    return {key: _array(name, value, is_mapped)}


def _array(name: str, tensor: Any, is_mapped: bool) -> HeldArray:
    import torch

    is_mapped = is_mapped and tensor.is_contiguous()  # else it is copied here and now
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        data, logical = tensor.view(torch.int16).numpy().view(np.uint16), "bfloat16"
    else:
        data = tensor.numpy()
        logical = data.dtype.name
    return HeldArray(name=name, data=data, logical=logical, is_mapped=is_mapped)
