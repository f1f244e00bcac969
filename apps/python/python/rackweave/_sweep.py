"""Sweeps on executors: processes, Dask, Ray, MPI."""

from __future__ import annotations

import functools
import os
import queue
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from . import _native
from ._progress import Callback, reporter
from ._result import Folder, Interrupted, Result, warned
from ._scenario import Scenario, Settings, arguments, source


class SweepError(RuntimeError):
    """Points of a sweep could not be run. ``result`` has the others; with ``out``, the same call goes on where this one stopped."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


def sweep(
    scenario: Scenario,
    grid: "Optional[Mapping[str, Iterable[Any]]]" = None,
    *,
    set: Settings = None,
    seed: Optional[int] = None,
    executor: Any = None,
    out: Optional[Folder] = None,
    retries: int = 2,
    progress: Union[bool, Callback, None] = None,
) -> Result:
    """Runs every combination of the grid's values, on the workers of an executor.

    Parameters
    ----------
    scenario, set, seed, progress
        As for :func:`rackweave.run`. A ``[sweep]`` of the scenario is run too, beside the grid's keys.
    grid
        Keys and their values: ``{"workload.load": [0.2, 0.5, 0.8], "seed": range(1, 6)}``. The first key varies slowest.
    executor
        Anything with a method ``submit(function, *arguments)`` that returns futures: an executor of ``concurrent.futures``, a Dask
        ``Client``, mpi4py's ``MPIPoolExecutor``, :class:`rackweave.executors.RayExecutor`. Each task runs one point on one core. Without an
        executor the points run in this process, on all cores.
    out
        A folder for finished points and results. Points that are finished in it are not run again, so that a sweep which was interrupted goes
        on; a damaged file counts as missing. At the end the folder has the files that the command writes.
    retries
        How often a point is submitted again when its worker has died.

    Returns
    -------
    Result
        All points as one result. Its files are those of ``rackweave run`` with the same sweep, byte for byte, except for the fields
        ``wall_s`` (here the sum of the points' processor times), ``cpu_s`` and ``peak_rss_bytes``.

    Raises
    ------
    SweepError
        A point failed ``retries + 1`` times, or the executor is broken, such as a process pool of which a process was killed.
    Interrupted
        Ctrl-C. Tasks that have not started are cancelled.
    """
    settings = arguments(set) + arguments({f"sweep.{key}": list(values) for key, values in (grid or {}).items()})
    kind, text = source(scenario)
    read = _native.Scenario.read(kind, text, settings, seed)
    folder = None if out is None else os.fspath(out)
    shown = reporter(progress)
    try:
        if executor is None:
            results, stopped = _native.Batch(read).run(None, shown, folder)
            result = Result(results)
            if isinstance(stopped, KeyboardInterrupt):
                raise Interrupted(result) from stopped
            if stopped is not None:
                raise stopped
        else:
            result = _Run(_native.Sweep(read, folder), read.points, _submit(executor), retries).run(shown)
    finally:
        shown.close()
    if folder is not None:
        result.save(folder)
    return warned(result)


def _submit(executor: Any) -> "Callable[..., Any]":
    """Returns the function that submits a task to an executor."""
    if not hasattr(executor, "submit"):
        raise TypeError(
            f"{type(executor).__name__} has no method submit; rackweave.executors has adapters for Ray and for pools of multiprocessing"
        )
    if type(executor).__module__.partition(".")[0] == "distributed":
        # Otherwise Dask gives tasks with equal arguments one future, also the one of a task that failed.
        return functools.partial(executor.submit, pure=False)
    return executor.submit


class _Run:
    """A sweep in progress."""

    def __init__(self, native: Any, points: int, start: "Callable[..., Any]", retries: int) -> None:
        self.native, self.points, self.start, self.retries = native, points, start, retries
        self.spec = native.spec()
        self.done: "queue.SimpleQueue[tuple[int, Any]]" = queue.SimpleQueue()
        self.pending: "dict[int, Any]" = {}
        self.attempts: "dict[int, int]" = {}

    def run(self, shown: Any) -> Result:
        try:
            missing = self.native.missing()
            for index in missing:
                self.submit(index)
            left = len(missing)
            while left:
                try:
                    index, future = self.done.get(timeout=0.2)
                except queue.Empty:
                    pass
                else:
                    left -= self.finish(index, future)
                finished = self.points - left
                shown(finished, self.points, finished / self.points, 0, 0, 0.0)
        except KeyboardInterrupt as error:
            raise Interrupted(self.partial()) from error
        finally:
            for future in self.pending.values():
                future.cancel()
        return Result(self.native.results())

    def submit(self, index: int) -> None:
        try:
            future = self.start(_native.run_point, self.spec, index)
        except RuntimeError as error:  # a broken or closed executor
            raise self.failed(f"the executor takes no more tasks: {error}") from error
        self.pending[index] = future
        future.add_done_callback(lambda done: self.done.put((index, done)))

    def finish(self, index: int, future: Any) -> bool:
        """Takes the point of a future. Returns whether it has one; if not, the point is submitted again."""
        del self.pending[index]
        try:
            self.native.add(index, bytes(future.result()))
            return True
        except (_native.ScenarioError, _native.RunError, _native.OutputError, ValueError) as error:
            # The same again would fail again.
            raise self.failed(f"point {index} cannot be run: {error}") from error
        except Exception as error:
            self.attempts[index] = self.attempts.get(index, 0) + 1
            if self.attempts[index] > self.retries:
                raise self.failed(f"point {index} failed {self.attempts[index]} times, at last with {error!r}") from error
        self.submit(index)
        return False

    def partial(self) -> Result:
        return Result(self.native.results())

    def failed(self, message: str) -> SweepError:
        result = self.partial()
        finished = len(result.summary["points"])
        return SweepError(f"{message}; {finished} of {self.points} points are finished", result)
