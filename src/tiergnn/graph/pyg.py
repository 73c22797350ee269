"""PyG Data and OGB objects to a Graph, and back. Only this module of the floor knows torch's types.

Legend: V nodes, E edges, D columns, S splits of one kind.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph, check_ids, from_edges
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.labels import read_masks
from tiergnn.graph.table import Table

# OGB's names of what is asked of a node, as ours.
_OGB_TASKS = {
    "multiclass classification": "class",
    "binary classification": "multilabel",
    "regression": "real",
}


class _Edges(NamedTuple):
    ends: np.ndarray  # [2, E]: sources, destinations
    name: str  # of the attribute
    values: Any  # of a sparse adjacency: [E] or [E, D] or None
    num_nodes: int | None  # where the attribute says so itself


def from_pyg(
    data: Any,
    *,
    num_nodes: int | None = None,
    splits: Mapping[str, Any] | None = None,
    task: str | None = None,
    num_classes: int | None = None,
    undirected: bool = False,
    duplicates: str = "keep",
    self_loops: str = "keep",
) -> Graph:
    """A PyG or OGB object as a Graph.

    data: a PyG ``Data`` with ``edge_index`` (a tensor of any whole-number type or an EdgeIndex) or
    ``adj_t`` (torch sparse, or with ``coo()`` and ``sparse_sizes()``); an OGB pair
    ``(graph, labels)`` whose graph is a dict; or a data set of one such graph, whose
    ``get_idx_split()``, ``task_type`` and ``num_classes`` are used too where it has them.
    num_nodes: needed only when nothing else tells (num_nodes, x, masks, y, a sparse size): it is
    never guessed from the edges.
    splits: name -> boolean mask [V], [V, S] or node ids, such as get_idx_split() gives. Attributes
    ``NAME_mask`` are splits too. "valid" becomes "val"; S columns become ``train.0``, ``train.1``.
    task: "class", "multilabel" or "real". Without it, whole-number y are classes ([V], [V, 1]) or
    multilabel (0/1 [V, C]), and float y are real targets: classes stored as floats need
    task="class". -1 and NaN are unlabelled.
    undirected, duplicates, self_loops: as in ``from_edges``; by default edges stay as they are.

    x and edge_attr keep their dtype and share the tensors' memory where they lie on the CPU.
    Attributes with no place in a Graph are named in one warning. Raises GraphError on data that
    contradict themselves, naming the attribute.
    """
    data, told = _unwrap(data)
    fields = _fields(data)
    edges = _edges(fields)
    num_nodes = _num_nodes(num_nodes, fields, edges)
    check_ids(edges.ends, num_nodes, name=edges.name)
    chosen = {}
    for name in [name for name in fields if name.endswith("_mask")]:
        chosen[_split_name(name.removesuffix("_mask"))] = _mask(name, fields.pop(name))
    for name, ids in {**told.get("splits", {}), **(splits or {})}.items():
        chosen[_split_name(name)] = _array(f"split {name!r}", ids)
    for name in ("task", "num_classes"):
        told[name] = fields.pop(name, told.get(name))
    x, edge_attr = _table("x", fields), _table("edge_attr", fields)
    weight, y = fields.pop("edge_weight", None), fields.pop("y", None)
    node_ids = fields.pop("node_ids", None)
    if edges.values is not None:
        values = _array(edges.name, edges.values)
        if values.ndim == 1 and weight is None:
            weight = None if (values == 1).all() else values
        elif values.ndim == 2 and edge_attr is None:
            edge_attr = Table.from_array(values, name=edges.name)
        else:
            raise GraphError(f"the values of {edges.name} and other edge values are both given")
    if fields:
        way = "; edge_attr=edge_type[:, None].to(torch.uint8) takes types of edges"
        left_out = f"{', '.join(fields)}: left out{way if 'edge_type' in fields else ''}"
        warnings.warn(f"a Graph has no place for {left_out}", UserWarning, stacklevel=3)
    return from_edges(
        edges.ends[0],
        edges.ends[1],
        num_nodes,
        edge_weight=None if weight is None else _weight(weight),
        edge_attr=edge_attr,
        undirected=undirected,
        duplicates=duplicates,
        self_loops=self_loops,
        x=x,
        y=None if y is None else _array("y", y),
        task=task or told["task"],
        num_classes=num_classes or told["num_classes"],
        splits=read_masks(chosen, num_nodes),
        node_ids=None if node_ids is None else NodeIds.from_names(_listed(node_ids)),
    )


def to_pyg(graph: Graph) -> Any:
    """A PyG Data of the same graph, nodes and edges in the graph's order. Copies everything.

    edge_index int64 [2, E]; x and edge_attr in their stored dtype (with ``x_scale`` where they
    have one); edge_weight; y int64 [V], float32 [V, C] of 0, 1 and -1 (multilabel) or float
    [V, T], with ``task`` and ``num_classes`` beside it; splits as ``NAME_mask``, those named
    NAME.0, NAME.1, ... as one mask [V, S]; ``node_ids``. ``from_pyg`` gives the same graph back.
    """
    import torch
    from torch_geometric.data import Data

    def tensor(array: np.ndarray, dtype: Any = None) -> torch.Tensor:
        return torch.from_numpy(np.array(array, order="C")).to(dtype)

    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    data = Data(
        edge_index=torch.stack([tensor(graph.col, torch.int64), torch.from_numpy(dst)]),
        num_nodes=graph.num_nodes,
    )
    for name, table in (("x", graph.x), ("edge_attr", graph.edge_attr)):
        if table is not None:
            rows = tensor(table.data)
            data[name] = rows.view(torch.bfloat16) if table.dtype == "bfloat16" else rows
            if table.scale is not None:
                data[f"{name}_scale"] = tensor(table.scale)
    if graph.edge_weight is not None:
        data.edge_weight = tensor(graph.edge_weight)
    if graph.y is not None:
        data.y = tensor(graph.y, torch.float32 if graph.task == "multilabel" else None)
        data.task = graph.task
        if graph.num_classes is not None:
            data.num_classes = graph.num_classes
    for name, mask in _stacked(graph).items():
        data[f"{name}_mask"] = torch.from_numpy(mask)
    if graph.node_ids is not None:
        names = graph.node_ids.names()
        data.node_ids = tensor(names) if graph.node_ids.are_numbers else names.tolist()
    return data


def _unwrap(data: Any) -> tuple[Any, dict[str, Any]]:
    """The graph inside a data set, and what the data set told about it."""
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        raise GraphError(
            "a heterogeneous graph has several kinds of nodes or edges, a Graph has one of each",
            hint="data.to_homogeneous()",
        )
    if isinstance(data, tuple | list | Mapping) or hasattr(data, "to_dict"):
        return data, {}
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise GraphError(
            f"cannot read a graph from {type(data).__name__}",
            hint="a PyG Data, an OGB (graph, labels) pair, or a data set of one graph",
        )
    if len(data) != 1:
        raise GraphError(
            f"the data set holds {len(data)} graphs, a Graph is one", hint="dataset[0]"
        )
    told: dict[str, Any] = {}
    if hasattr(data, "get_idx_split"):
        told["splits"] = data.get_idx_split()
        told["task"] = _OGB_TASKS.get(getattr(data, "task_type", ""))
        if told["task"] == "class":
            told["num_classes"] = int(data.num_classes)
    return data[0], told


def _fields(data: Any) -> dict[str, Any]:
    """Attribute name -> value in PyG's names, without those that are None."""
    if isinstance(data, tuple | list):
        if len(data) != 2 or not isinstance(data[0], Mapping):
            raise GraphError(
                f"cannot read a graph from a {type(data).__name__} of {len(data)}",
                hint="an OGB pair (graph, labels) whose graph is a dict with edge_index",
            )
        fields = {**data[0], "y": data[1]}
    else:
        fields = dict(data if isinstance(data, Mapping) else data.to_dict())
    for theirs, ours in (("node_feat", "x"), ("edge_feat", "edge_attr")):
        if theirs in fields and fields.get(ours) is None:
            fields[ours] = fields.pop(theirs)
    return {name: value for name, value in fields.items() if value is not None}


def _edges(fields: dict[str, Any]) -> _Edges:
    """Takes edge_index, or else adj_t, out of ``fields``."""
    if "edge_index" in fields:
        index = fields.pop("edge_index")
        sizes: tuple[int | None, ...] = (None, None)
        if hasattr(index, "as_tensor") and hasattr(index, "sparse_size"):  # an EdgeIndex
            sizes, index = tuple(index.sparse_size()), index.as_tensor()
        ends = _array("edge_index", index)
        if ends.ndim != 2 or ends.shape[0] != 2:
            rows = ends.ndim == 2 and ends.shape[1] == 2
            raise GraphError(
                f"edge_index needs shape [2, num_edges], has {list(ends.shape)}",
                hint="transpose it: edge_index.t()" if rows else "sources first, then destinations",
            )
        return _Edges(ends, "edge_index", None, _square(sizes))
    if "adj_t" not in fields:
        raise GraphError("there is neither edge_index nor adj_t", hint="edge_index [2, num_edges]")
    adj = fields.pop("adj_t")
    if hasattr(adj, "coo") and hasattr(adj, "sparse_sizes"):
        dst, src, values = adj.coo()
        sizes = tuple(adj.sparse_sizes())
    elif hasattr(adj, "to_sparse_coo") and str(adj.layout) != "torch.strided":
        coo = adj.detach().cpu().to_sparse_coo()
        # Not coalesced: duplicate edges are data.
        (dst, src), values, sizes = coo._indices(), coo._values(), tuple(coo.shape[:2])
    else:
        raise GraphError(
            f"adj_t must be sparse, has {type(adj).__name__}", hint="edge_index [2, num_edges]"
        )
    ends = np.stack([_array("adj_t", src), _array("adj_t", dst)])
    return _Edges(ends, "adj_t", values, _square(sizes))


def _square(sizes: tuple[int | None, ...]) -> int | None:
    if sizes[0] != sizes[1] and None not in sizes:
        raise GraphError(f"the adjacency must be square, is {sizes[0]} x {sizes[1]}")
    return sizes[0] if sizes[0] is not None else sizes[1]


def _num_nodes(given: int | None, fields: dict[str, Any], edges: _Edges) -> int:
    """The number of nodes, from whatever tells it; all that do must agree."""
    told = {"num_nodes=": given, "num_nodes": fields.pop("num_nodes", None)}
    told[f"the sparse size of {edges.name}"] = edges.num_nodes
    masks = [name for name in fields if name.endswith("_mask")]
    told |= {name: len(fields[name]) for name in ("x", *masks, "y") if name in fields}
    told = {name: int(count) for name, count in told.items() if count is not None}
    if not told:
        raise GraphError(
            "nothing tells the number of nodes: there is no num_nodes, x, mask or y",
            hint="num_nodes=...: isolated nodes cannot be seen in the edges",
        )
    (first, num_nodes), *others = told.items()
    for name, count in others:
        if count != num_nodes:
            raise GraphError(f"{first} says {num_nodes} nodes, {name} says {count}")
    return num_nodes


def _array(name: str, value: Any) -> np.ndarray:
    """A tensor (any device, strides, requires_grad), array or list as an array; no copy on CPU.

    bfloat16 becomes float32, which holds it exactly.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.layout) != "torch.strided":
            raise GraphError(f"{name} is a sparse tensor", hint=f"{name}.to_dense()")
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype == object:
        raise GraphError(f"{name} needs numbers, has {type(value).__name__}")
    return array


def _table(name: str, fields: dict[str, Any]) -> Table | None:
    """Takes x or edge_attr, and its scale, out of ``fields``; the dtype stays."""
    rows, scale = fields.pop(name, None), fields.pop(f"{name}_scale", None)
    if rows is None:
        return None
    if scale is not None:
        scale = _array(f"{name}_scale", scale).astype(np.float32)
    if str(getattr(rows, "dtype", "")) == "torch.bfloat16":
        import torch

        bits = rows.detach().cpu().contiguous().view(torch.uint16).numpy()
        return Table(data=bits.reshape(len(bits), -1), dtype="bfloat16", scale=scale)
    array = np.ascontiguousarray(_array(name, rows))
    return Table.from_array(array, scale=scale, name=name)


def _weight(weight: Any) -> np.ndarray:
    array = _array("edge_weight", weight)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _mask(name: str, mask: Any) -> np.ndarray:
    """A boolean mask; 0/1 bytes, as older files hold them, count as one."""
    array = _array(name, mask)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iu" or ((array != 0) & (array != 1)).any():
        raise GraphError(f"{name} must be boolean, is {array.dtype}", hint="splits={name: ids}")
    return array.astype(np.bool_)


def _split_name(name: str) -> str:
    """OGB says "valid" where everybody else says "val"."""
    return "val" + name[5:] if name.partition(".")[0] == "valid" else name


def _listed(names: Any) -> Any:
    return _array("node_ids", names) if hasattr(names, "detach") else names


def _stacked(graph: Graph) -> dict[str, np.ndarray]:
    """Masks [V] by split; splits NAME.0 to NAME.S-1 as the columns of one mask [V, S]."""
    masks = {}
    for name, ids in graph.splits.items():
        mask = np.zeros(graph.num_nodes, np.bool_)
        mask[ids] = True
        masks[name] = mask
    for kind in {match[1] for name in masks if (match := re.fullmatch(r"(.+)\.0", name))}:
        numbered = [name for name in masks if re.fullmatch(re.escape(kind) + r"\.\d+", name)]
        columns = [f"{kind}.{s}" for s in range(len(numbered))]
        if set(columns) == set(numbered) and kind not in masks:
            masks[kind] = np.stack([masks.pop(name) for name in columns], axis=1)
    return masks
