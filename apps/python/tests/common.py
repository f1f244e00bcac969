"""What the tests share."""

import copy
import importlib.util
import json
import os
import re
import signal
import unittest

SMALL = {
    "name": "small",
    "fabric": {"topology": "single-switch", "hosts": 4},
    "transport": {"name": "homa"},
    "workload": {"arrivals": "poisson", "sizes": "W1", "load": 0.5},
    "measure": {"messages": 300},
}
CLOCKS = ("wall_s", "peak_rss_bytes", "cpu_s")


def small(**keys):
    return {**copy.deepcopy(SMALL), **keys}


def needs(*modules):
    """Skips a test, by name, if a module is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}")


def has_only_loopback():
    with open("/proc/net/dev") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]] == ["lo"]


def die_once(marker, function, *arguments):
    """Kills the process that runs this; the next one calls the function."""
    if not os.path.exists(marker):
        with open(marker, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)


def without_clocks(value):
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCKS}
    if isinstance(value, list):
        return [without_clocks(item) for item in value]
    return value


def files(folder):
    """The result files of a folder, without what clocks have written into them."""
    contents = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path) or name == "sweep.json":
            continue
        with open(path, "rb") as file:
            data = file.read()
        if name == "summary.json":
            data = json.dumps(without_clocks(json.loads(data))).encode()
        elif name == "points.csv":
            lines = data.decode().splitlines()
            column = lines[0].split(",").index("cpu_s")
            # No field of this table has a comma before `cpu_s` but quoted labels, and none of the tests' labels is quoted.
            data = "\n".join(",".join(cells[:column] + cells[column + 1 :]) for cells in map(lambda line: line.split(","), lines)).encode()
        elif name == "report.html":
            data = re.sub(rb"[0-9.,]+ ?(ms|s|min) (of )?(CPU|processor)[^<]*", b"", data)
        contents[name] = data
    return contents
