"""Checkpoints: what a run needs to go on as if it had never stopped. safetensors and JSON.

A checkpoint of epoch N is three files in the folder ``checkpoints``:

    epoch-N.weights.safetensors   the model's state_dict under its own names
    epoch-N.state.safetensors     tensors of the optimizer, the scheduler, the random state
    epoch-N.json                  everything else, and the size and checksum of the other two

and the weights of the best epoch, which are files of the first kind and may be shared. The JSON is
written last and is the commit: a checkpoint without it, or with one that does not fit its files,
is none. Every file is written beside its place and renamed into it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from tiergnn.errors import ConfigError, StoreError
from tiergnn.files import from_json, is_partial, unwritable, write_whole
from tiergnn.training.tree import decode, encode

FORMAT = "tiergnn-checkpoint"
VERSION = 1
KEEP = 2  # the newest, and one to fall back on
_NAME = re.compile(r"epoch-(\d+)\.(json|weights\.safetensors|state\.safetensors)")
_log = logging.getLogger("tiergnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A run after ``epoch`` epochs; ``state`` is a tree of tensors and plain values."""

    epoch: int
    weights: dict[str, Tensor]
    best_epoch: int
    best: dict[str, Tensor]  # the weights after best_epoch
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in ``folder``: the newest ``KEEP`` and the best weights."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._bodies: dict[int, dict[str, Any]] = {}  # epoch -> JSON body, of those known sound

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove those it makes needless.

        Raises StoreError (the earlier ones stay as they are) or ConfigError (state that no file
        can keep).
        """
        epoch, tensors = checkpoint.epoch, {}
        state = encode(checkpoint.state, tensors)
        files = {
            "weights": self._put(f"epoch-{epoch}.weights.safetensors", checkpoint.weights),
            "state": self._put(f"epoch-{epoch}.state.safetensors", tensors),
        }
        files["best"] = files["weights"]
        if checkpoint.best_epoch != epoch:
            files["best"] = self._known(checkpoint.best_epoch) or self._put(
                f"epoch-{checkpoint.best_epoch}.weights.safetensors", checkpoint.best
            )
        body = {
            "epoch": epoch,
            "best_epoch": checkpoint.best_epoch,
            "files": files,
            "state": state,
        }
        self._write(f"epoch-{epoch}.json", _sealed(body))
        kept = sorted(e for e in self._bodies if e < epoch)[-(KEEP - 1) :]
        self._bodies = {e: self._bodies[e] for e in kept} | {epoch: body}
        self._prune()

    def load(self) -> Checkpoint:
        """The newest sound checkpoint; one warning names each that is passed over.

        Raises StoreError when there is none, or when one was written by a newer version or cannot
        be read at all (permissions).
        """
        body, tensors = self._newest(("weights", "best", "state"))
        return Checkpoint(
            epoch=body["epoch"],
            weights=tensors["weights"],
            best_epoch=body["best_epoch"],
            best=tensors["best"],
            state=decode(body["state"], tensors["state"]),
        )

    def load_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights of the newest sound checkpoint, and its state where that is plain.

        Reads no tensor of the optimizer. Raises as load does.
        """
        body, tensors = self._newest(("best",))
        plain = {key: value for key, value in body["state"].items() if key == "progress"}
        return tensors["best"], decode(plain, {})

    def _newest(self, kinds: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, dict]]:
        passed_over = []
        for epoch in sorted(self._epochs(), reverse=True):
            try:
                body = self._read(epoch)
                entries = {kind: body["files"][kind] for kind in kinds}
                # Weights that are the best are one file, read once.
                files = {entry["file"]: self._tensors(entry) for entry in entries.values()}
            except _FlawError as flaw:
                passed_over.append(str(flaw))
                _log.warning("checkpoint passed over: %s", flaw)
                continue
            self._bodies[epoch] = body
            return body, {kind: files[entry["file"]] for kind, entry in entries.items()}
        raise StoreError(
            "no sound checkpoint to go on from" + "".join(f"\n  found: {f}" for f in passed_over),
            culprit=str(self.folder),
            hint="train again into another run folder, or with overwrite=True (--overwrite)",
        )

    def _epochs(self) -> list[int]:
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.folder, error) from error
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        return [int(match[1]) for match in found if match[2] == "json"]

    def _read(self, epoch: int) -> dict[str, Any]:
        path = self.folder / f"epoch-{epoch}.json"
        try:
            record = from_json(_read_bytes(path))
        except ValueError as error:
            raise _FlawError(f"{path} is cut short or changed") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise _FlawError(f"{path} is not a checkpoint")
        if record.pop("crc32", None) != _crc(record):
            raise _FlawError(f"{path} does not fit its checksum")
        if record["version"] != VERSION:
            raise StoreError(
                f"a checkpoint of version {record['version']}, this tiergnn reads {VERSION}",
                culprit=str(path),
                hint="the tiergnn that wrote it (run.json names its version)",
            )
        return record["body"]

    def _tensors(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        path = self.folder / entry["file"]
        data = _read_bytes(path)
        if len(data) != entry["bytes"]:
            raise _FlawError(f"{path} has {len(data)} bytes, was written with {entry['bytes']}")
        if zlib.crc32(data) != entry["crc32"]:
            raise _FlawError(f"{path} does not fit its checksum")
        # Copies: in the file they lie at odd places, where sums and products have other last bits.
        return {name: tensor.clone() for name, tensor in load_tensors(data).items()}

    def _known(self, epoch: int) -> dict[str, Any] | None:
        """The entry of weights of ``epoch`` that an earlier checkpoint wrote and still holds."""
        name = f"epoch-{epoch}.weights.safetensors"
        for body in self._bodies.values():
            for entry in body["files"].values():
                if entry["file"] == name:
                    return entry
        return None

    def _put(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        # Copies: the tensors of a state may share memory, which the format does not allow.
        data = tensors_to_bytes(
            {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        )
        self._write(name, data)
        return {"file": name, "bytes": len(data), "crc32": zlib.crc32(data)}

    def _write(self, name: str, data: bytes) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        write_whole(self.folder / name, data)

    def _prune(self) -> None:
        keep = {f"epoch-{epoch}.json" for epoch in self._bodies}
        for body in self._bodies.values():
            keep |= {entry["file"] for entry in body["files"].values()}
        for path in list(self.folder.iterdir()):
            if path.name not in keep and (_NAME.fullmatch(path.name) or is_partial(path)):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def check_fits(weights: dict[str, Tensor], model: dict[str, Tensor], source: str) -> None:
    """Raise ConfigError unless the saved weights are the model's in names, shapes and dtypes."""
    wrong = [f"the model has no {name}" for name in weights if name not in model]
    wrong += [f"the checkpoint has no {name}" for name in model if name not in weights]
    wrong += [
        f"{name} is {list(tensor.shape)}, in the checkpoint {list(weights[name].shape)}"
        for name, tensor in model.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    wrong += [
        f"{name} is {_dtype(tensor)}, in the checkpoint {_dtype(weights[name])}"
        for name, tensor in model.items()
        if name in weights and weights[name].dtype != tensor.dtype
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ConfigError(
            "the model is not the one that was trained: " + "; ".join(wrong[:3]) + more,
            culprit=source,
            hint="build it with the arguments it was trained with",
        )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _FlawError(Exception):
    """A checkpoint that is not whole; told in a warning, and passed over."""


def _sealed(body: dict[str, Any]) -> bytes:
    record = {"format": FORMAT, "version": VERSION, "body": body}
    return json.dumps({**record, "crc32": _crc(record)}, allow_nan=False).encode()


def _crc(record: dict[str, Any]) -> int:
    """Of a record without its crc32: the same text before writing and after reading."""
    return zlib.crc32(json.dumps(record, allow_nan=False).encode())


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _FlawError(f"{path} is missing") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot read {path.name}: {error.strerror or error}",
        culprit=str(path),
        hint="see that you may read it and that the disk is sound",
    )
