"""From what a user passes as a scenario to what the native module reads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

from . import _native

Scenario = Union[str, "os.PathLike[str]", Mapping]
Settings = Union[Mapping, "list[str]", None]


def _plain(value: Any) -> Any:
    """Returns a number of numpy, a path or another sequence as what JSON has."""
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"a scenario has numbers, texts, lists and dictionaries, not {type(value).__name__}")


def _not_finite(value: Any, key: str = "") -> Optional[str]:
    """Returns the key of a number that TOML has and JSON has not, such as a hole in a data frame."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return key if not math.isfinite(value) else None
    if isinstance(value, Mapping):
        parts = ((f"{key}.{name}" if key else str(name), part) for name, part in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"{key}[{number}]", part) for number, part in enumerate(value))
    else:
        return None
    found = (_not_finite(part, name) for name, part in parts)
    return next((name for name in found if name is not None), None)


def to_json(value: Any, key: str = "") -> str:
    wrong = _not_finite(value, key)
    if wrong is not None:
        raise _native.ScenarioError(f"{wrong or 'a scenario'}: a number is missing (NaN) or infinite")
    return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)


def source(scenario: Scenario) -> "tuple[str, str]":
    """Returns the kind of a scenario, and its text or name."""
    if isinstance(scenario, Mapping):
        return "json", to_json(dict(scenario))
    if isinstance(scenario, os.PathLike):
        return "name", os.fspath(scenario)
    if not isinstance(scenario, str):
        raise TypeError(f"a scenario is a path, a name, TOML or a dictionary, not {type(scenario).__name__}")
    return ("toml" if "\n" in scenario else "name"), scenario


def arguments(settings: Settings) -> "list[str]":
    """Returns the arguments of ``--set`` for keys and values."""
    if settings is None:
        return []
    if isinstance(settings, Mapping):
        return [_native.set_argument(key, to_json(value, key)) for key, value in settings.items()]
    return list(settings)


def read(scenario: Scenario, settings: Settings, seed: Optional[int]) -> _native.Scenario:
    kind, text = source(scenario)
    return _native.Scenario.read(kind, text, arguments(settings), seed)
