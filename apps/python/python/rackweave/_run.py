"""Running scenarios in this process."""

from __future__ import annotations

from typing import Optional, Union

from . import _native
from ._progress import Callback, reporter
from ._result import Interrupted, Result, warned
from ._scenario import Scenario, Settings, read


def run(
    scenario: Scenario,
    *,
    set: Settings = None,
    seed: Optional[int] = None,
    jobs: Optional[int] = None,
    threads: int = 1,
    progress: Union[bool, Callback, None] = None,
) -> Result:
    """Runs all points of a scenario in the simulator, on all cores of this machine.

    Parameters
    ----------
    scenario
        The path of a TOML file; the name of a built-in scenario, such as ``"quickstart"``; TOML (a text with more than one line); or a
        dictionary with the keys of a scenario file.
    set
        Keys and the values that replace those of the scenario: ``{"workload.load": 0.5, "sweep.transport.name": ["homa", "tcp"]}``. A list
        of arguments as for the command's ``--set`` is accepted too.
    seed
        The seed of all random streams; by default the scenario's.
    jobs
        The number of points to run at one time; by default one per core, or one for each ``threads`` cores.
    threads
        The number of threads for each point of 256 hosts or more, at least 1. The results are the same. ``explain`` says which points can use
        several.
    progress
        Whether to show progress; by default in notebooks and on a terminal, and in a line now and then elsewhere. A function is called a few times per second with
        ``(points_done, points, fraction, events, messages, simulated_us)``.

    Returns
    -------
    Result
        The finished points, in the order of the sweep.

    Warns
    -----
    RunWarning
        Messages of a point failed or were unfinished at its end.

    Raises
    ------
    ScenarioError
        The scenario or a setting is invalid.
    RunError
        The network of a point cannot be built.
    Interrupted
        Ctrl-C, or "interrupt" in a notebook. It is a ``KeyboardInterrupt`` whose ``result`` has the points that were finished.

    Other threads of Python run meanwhile: the simulation does not hold the GIL.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    batch = _native.Batch(read(scenario, set, seed), threads)
    shown = reporter(progress)
    try:
        results, stopped = batch.run(jobs, shown)
    finally:
        shown.close()
    result = Result(results)
    if isinstance(stopped, KeyboardInterrupt):
        raise Interrupted(result) from stopped
    if stopped is not None:
        raise stopped
    return warned(result)


def explain(scenario: Scenario, *, set: Settings = None, seed: Optional[int] = None) -> str:
    """Says what a scenario means and what it will cost, without running it, as ``rackweave run --explain``."""
    return read(scenario, set, seed).explain()
