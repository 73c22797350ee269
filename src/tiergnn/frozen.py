"""Frozen dataclasses as JSON, both ways: checked by their type hints, wrong places named."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from tiergnn.errors import ConfigError, PlanError, StoreError
from tiergnn.files import from_json, write_whole

T = TypeVar("T")
_MOST = 1e60  # of a number: products of some are finite, too
_MOST_WHOLE = 2**63 - 1
_WAYS = {  # to a file of a kind that can be read
    "tiergnn-plan": "a plan made by this version: tiergnn plan --out",
    "tiergnn-workload": "a workload made by this version: tiergnn plan --save-workload",
    "tiergnn-machine": "a machine measured by this version: tiergnn machine --out",
}


def check_counts(value: Any, *names: str) -> None:
    """Raises ConfigError for fields of a dataclass, numbers or tuples of them, that are below 0."""
    for name in names:
        found = getattr(value, name)
        if min(found, default=0) < 0 if isinstance(found, tuple) else found < 0:
            raise ConfigError(f"{name} is 0 or more, had {found}")


def encode(value: Any) -> Any:
    """A frozen dataclass (of dataclasses, tuples, mappings, plain values) as what JSON holds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def encode_as(value: Any, data: Any) -> Any:
    """``encode`` of what ``decode`` made of ``data``, without the fields that were not in that."""
    return _only(encode(value), data)


def _only(encoded: Any, data: Any) -> Any:
    if isinstance(encoded, dict):
        return {key: _only(item, data[key]) for key, item in encoded.items() if key in data}
    if isinstance(encoded, list):
        return [_only(*pair) for pair in zip(encoded, data, strict=True)]
    return encoded


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """The dataclass that ``encode`` wrote. Raises ConfigError naming the place that is wrong."""
    where = where or cls.__name__
    made = _decode(cls, data, where)
    _check_finite(data, where)  # last: a class that checks its numbers tells more of them
    return made


def dumps(value: Any) -> bytes:
    """A dataclass as JSON on one line."""
    return json.dumps(encode(value)).encode()


def loads(cls: type[T], text: bytes) -> T:
    """What ``dumps`` wrote. Raises ConfigError naming the place that is wrong."""
    return decode(cls, from_json(text))


def save(path: str | Path, kind: str, version: int, value: Any) -> None:
    """Write a dataclass as a JSON file of its kind, whole or not at all. Raises StoreError."""
    text = json.dumps({"format": kind, "version": version} | encode(value), indent=1)
    write_whole(Path(path), f"{text}\n".encode())


def load(cls: type[T], path: str | Path, kind: str, version: int) -> T:
    """Read what ``save`` wrote.

    Raises StoreError for a file that cannot be read, ConfigError for one that is something else.
    """
    try:
        data = from_json(Path(path).read_bytes())
    except OSError as error:
        raise StoreError(f"{kind} cannot be read: {error}", culprit=str(path)) from error
    except ValueError as error:
        raise ConfigError(
            f"wanted {kind}, had no JSON: {error}",
            culprit=str(path),
            hint=_WAYS.get(kind, "the file as it was written"),
        ) from error
    found = (data.pop("format", None), data.pop("version", None)) if isinstance(data, dict) else ()
    if found != (kind, version):
        had = "another file" if not found or found[0] is None else f"{found[0]} version {found[1]}"
        raise ConfigError(
            f"wanted {kind} version {version}, had {had}",
            culprit=str(path),
            hint=_WAYS.get(kind, "a file of that kind, written by this version of tiergnn"),
        )
    return decode(cls, data, str(path))


def _decode(hint: Any, data: Any, where: str) -> Any:
    if hint is Any:
        return data
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        (inner,) = (arg for arg in args if arg is not type(None))
        return _decode(inner, data, where)
    if is_dataclass(hint):
        return _decode_class(hint, data, where)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise _wrong("a list", data, where)
        kinds = [args[0]] * len(data) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(kinds) != len(data):
            raise _wrong(f"{len(kinds)} values", data, where)
        pairs = zip(kinds, data, strict=True)
        return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise _wrong("an object", data, where)
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(data, int) and abs(data) > _MOST_WHOLE:
        raise _wrong("a whole number of 64 bits", data, where)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, hint) or (isinstance(data, bool) and hint is not bool):
        raise _wrong(f"a value of type {hint.__name__}", data, where)
    return data


def _decode_class(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong("an object", data, where)
    hints = typing.get_type_hints(cls)
    strangers = [name for name in data if name not in hints]
    if strangers:
        raise ConfigError(f"unknown field {strangers[0]!r}", culprit=where, hint=", ".join(hints))
    values = {
        name: _decode(hint, data[name], f"{where}.{name}")
        for name, hint in hints.items()
        if name in data
    }
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"a field is missing: {error}", culprit=where) from error
    except (ConfigError, PlanError) as error:  # of what it holds: where that stands
        named = error.culprit
        if named and named.startswith(where):
            raise
        culprit = f"{where} ({named})" if named else where
        raise type(error)(error.problem, culprit=culprit, hint=error.hint) from error


def _check_finite(data: Any, where: str) -> None:
    """Raises ConfigError for a number that is none, or so large that products overflow."""
    if isinstance(data, Mapping):
        for key, item in data.items():
            _check_finite(item, f"{where}.{key}")
    elif isinstance(data, list | tuple):
        for i, item in enumerate(data):
            _check_finite(item, f"{where}[{i}]")
    elif isinstance(data, float) and not -_MOST <= data <= _MOST:
        raise _wrong(f"a number of at most {_MOST:g}", data, where)


def _shown(data: Any) -> str:
    """Whole numbers of thousands of digits have no text."""
    long = isinstance(data, int) and abs(data) > _MOST_WHOLE
    return f"one of {data.bit_length()} bits" if long else repr(str(data)[:60])


def _wrong(wanted: str, data: Any, where: str) -> ConfigError:
    return ConfigError(f"wanted {wanted}, had {_shown(data)}", culprit=where)
