"""Rackweave: data center transports in a deterministic packet simulator.

>>> import rackweave
>>> result = rackweave.run("quickstart", set={"measure.messages": 2000, "sweep.transport.name": ["homa", "dctcp"]})
>>> result.points.to_pandas()[["label", "slowdown_p99"]]

The same scenario, settings and seed give the same results, here and with the command ``rackweave run``: ``result.save(folder)`` writes
the command's files byte for byte, except for the fields ``wall_s``, ``cpu_s`` and ``peak_rss_bytes``.

Units are in the names of columns: ``_us`` microseconds, ``_gbps`` 10^9 bits per second, ``_bytes`` bytes. Slowdown is latency divided
by the latency on an idle network.
"""

from ._native import OutputError, RunError, ScenarioError, Table, __version__
from ._result import Interrupted, Result, RunWarning, load
from ._run import explain, run
from ._sweep import SweepError, sweep

__all__ = [
    "Interrupted",
    "OutputError",
    "Result",
    "RunError",
    "RunWarning",
    "ScenarioError",
    "SweepError",
    "Table",
    "__version__",
    "explain",
    "load",
    "run",
    "sweep",
]
