"""Results: tables, reports and folders."""

from __future__ import annotations

import html
import json
import os
import warnings
from typing import Any, Callable, Iterable, Optional, Union

from . import _native

Folder = Union[str, "os.PathLike[str]"]


class Result:
    """The results of a scenario's points, of :func:`rackweave.run`, :func:`rackweave.sweep` or :func:`rackweave.load`.

    In a notebook it shows the report with its charts.
    """

    def __init__(self, native: "Union[_native.Results, _native.Saved]") -> None:
        self._native = native
        self._tables: Optional[dict[str, _native.Table]] = None
        self._summary: Optional[dict[str, Any]] = None

    @property
    def summary(self) -> "dict[str, Any]":
        """The contents of ``summary.json``: ``summary["points"][i]["slowdown"]["p99"]`` and so on."""
        if self._summary is None:
            self._summary = json.loads(self._native.json())
        return self._summary

    @property
    def tables(self) -> "dict[str, _native.Table]":
        """All tables by name; each is one of the CSV files of the command. Every table begins with ``point`` (the index of the point in the
        sweep), ``transport`` and ``label``, and a column for each swept key.

        ============================ ==========================================================================
        ``points``                   one row for each point
        ``over_seeds``               one row for all seeds of a point, if seeds are swept: means and intervals
        ``slowdown_by_size``         a row for each bucket of message sizes of each point
        ``slowdown_curve``           about 100 rows for each point, by percentile of the message size
        ``latency_cdf``              at most 195 rows for each point
        ``queues``                   a row for each sample of the queues' lengths
        ``links``                    a row for each link
        ``messages``                 a row for each measured message, with ``measure.messages_csv = true``
        ============================ ==========================================================================

        Others depend on the workload (``streams``, ``cast_files``, ``reduce_jobs``, ...); docs/reference/scenario.md lists them.
        """
        if self._tables is None:
            self._tables = {table.name: table for table in self._native.tables()}
        return self._tables

    def __getitem__(self, name: str) -> "_native.Table":
        """The table of this name."""
        try:
            return self.tables[name]
        except KeyError:
            known = ", ".join(self.tables)
            raise KeyError(f"no table {name!r}; there are {known}") from None

    @property
    def points(self) -> "_native.Table":
        """One row for each point of the sweep: messages, slowdown and latency (50th, 99th, 99.9th percentile and mean), goodput, drops, queues."""
        return self["points"]

    def to_pandas(self, table: str = "points") -> Any:
        """A table as a pandas frame. Columns of numbers are not copied if pyarrow is installed and no value is missing."""
        return self[table].to_pandas()

    def to_polars(self, table: str = "points") -> Any:
        """A table as a polars frame. Columns of numbers are not copied."""
        return self[table].to_polars()

    def to_parquet(self, folder: Folder, tables: "Optional[Iterable[str]]" = None) -> "list[str]":
        """Writes tables as Parquet files, ``NAME.parquet``, with pyarrow or, if that is not installed, polars: all tables, or those that are named.

        The folder is made if it does not exist. A file gets its name when it is complete. Returns the paths.
        """
        write = _parquet_writer()
        chosen = {name: self[name] for name in (self.tables if tables is None else tables)}
        directory = os.fspath(folder)
        os.makedirs(directory, exist_ok=True)
        paths = []
        for name, table in chosen.items():
            path = os.path.join(directory, f"{name}.parquet")
            part = f"{path}.{os.getpid()}.part"
            try:
                write(table, part)
                os.replace(part, path)
            finally:
                if os.path.exists(part):
                    os.remove(part)
            paths.append(path)
        return paths

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped, so that points are missing."""
        return bool(self.summary["interrupted"])

    @property
    def missing(self) -> "list[dict[str, Any]]":
        """The points of the sweep that have no results: the run was stopped before, or the simulator failed in them. Each has ``set`` and
        ``seed``."""
        return self.summary.get("missing", []) + self.summary.get("failures", [])

    def html(self) -> str:
        """The page ``report.html``."""
        return self._native.html()

    def save(self, folder: Folder) -> None:
        """Writes the files that the command writes to its ``--out``: ``summary.json``, ``scenario.resolved.toml``, CSV files, ``report.html``,
        pictures, and captures if the scenario asks for some. Files appear when all of them are complete.
        """
        self._native.save(os.fspath(folder))

    def __str__(self) -> str:
        """The tables that the command prints, for results of a run; folders that were loaded have no such text."""
        if isinstance(self._native, _native.Results):
            return self._native.text(120, True)
        return repr(self)

    def __repr__(self) -> str:
        points = self.summary["points"]
        labels = ", ".join(dict.fromkeys(point["label"] for point in points))
        noun = "point" if len(points) == 1 else "points"
        lacking = len(self.missing)
        partial = f", {lacking} without results" if lacking else ", interrupted" if self.interrupted else ""
        return f"<rackweave.Result {self.summary['scenario']}: {len(points)} {noun} ({labels}){partial}>"

    def _repr_html_(self) -> str:
        # The page has styles for `body` and follows the browser's theme, so it gets a document of its own.
        page = html.escape(self.html(), quote=True)
        style = "width: 100%; height: 40em; border: 0; resize: vertical; overflow: auto"
        return f'<iframe title="rackweave report" sandbox srcdoc="{page}" style="{style}"></iframe>'


def _parquet_writer() -> "Callable[[_native.Table, str], Any]":
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        pass
    else:
        return lambda table, path: pyarrow.parquet.write_table(pyarrow.table(table), path, compression="zstd")
    try:
        import polars
    except ImportError:
        raise ImportError("Parquet needs pyarrow or polars: pip install pyarrow") from None
    return lambda table, path: polars.DataFrame(table).write_parquet(path)


class RunWarning(UserWarning):
    """Numbers of a point are doubtful: messages failed or were unfinished, or the simulator failed in it."""


def warned(result: Result) -> Result:
    """Returns a result of a run after a warning for each doubtful point, as the command prints them."""
    assert isinstance(result._native, _native.Results)
    for line in result._native.warnings():
        warnings.warn(line, RunWarning, stacklevel=3)
    return result


class Interrupted(KeyboardInterrupt):
    """A run that Ctrl-C has stopped. ``result`` has the points that were finished before."""

    def __init__(self, result: Result) -> None:
        super().__init__("the run was interrupted; `result` of this exception has the finished points")
        self.result = result


def load(folder: Folder) -> Result:
    """Returns the results in a folder that ``rackweave run`` or :meth:`Result.save` has written.

    ``load(folder).save(other)`` copies the result files byte for byte.
    """
    return Result(_native.Saved(os.fspath(folder)))
