"""Running scenarios in this process: inputs, frames, files, progress, interruptions, notebooks."""

import ast
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import rackweave
from common import CLOCKS, SMALL, files, needs, small


class Inputs(unittest.TestCase):
    def test_a_dictionary_toml_and_a_path_are_one_scenario(self):
        toml = "\n".join(f"{key} = {_toml(value)}" for key, value in SMALL.items()) + "\n"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "small.toml"
            path.write_text(toml)
            tables = [rackweave.run(scenario)["latency_cdf"].to_dict() for scenario in (SMALL, toml, path, str(path))]
        self.assertGreater(len(tables[0]["latency_us"]), 10)
        for table in tables[1:]:
            self.assertEqual(table, tables[0])

    def test_a_name_is_a_built_in_scenario(self):
        result = rackweave.run("quickstart", set={"measure.messages": 100, "transport.name": "tcp"})
        self.assertEqual(result.points.to_dict()["transport"], ["tcp"])
        self.assertEqual(result.points.to_dict()["started"], [100])

    def test_settings_replace_and_sweep_keys(self):
        settings = {"sweep.transport.name": ["homa", "dctcp"], "fabric.host_link": "25 Gbps"}
        result = rackweave.run(SMALL, set=settings, seed=7)
        self.assertEqual(result.points.to_dict()["transport"], ["homa", "dctcp"])
        self.assertEqual(result.summary["seed"], 7)
        arguments = ['sweep.transport.name=["homa", "dctcp"]', "fabric.host_link=25 Gbps"]
        self.assertEqual(rackweave.run(SMALL, set=arguments, seed=7)["links"].to_dict(), result["links"].to_dict())

    def test_errors_name_the_place(self):
        with self.assertRaises(rackweave.ScenarioError) as caught:
            rackweave.run(small(worklaod={}))
        self.assertIn("worklaod", str(caught.exception))
        self.assertIn("workload", str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(rackweave.ScenarioError):
            rackweave.run("no-such-scenario")
        with self.assertRaises(rackweave.ScenarioError):
            rackweave.run(SMALL, set={"workload.load": None})
        with self.assertRaises(TypeError):
            rackweave.run(42)

    def test_doubtful_numbers_are_warned_of(self):
        with self.assertWarnsRegex(rackweave.RunWarning, "unfinished"):
            rackweave.run(small(measure={"messages": 100_000, "time_limit": "2 ms"}))

    def test_a_result_prints_the_table_of_the_command(self):
        text = str(rackweave.run(SMALL))
        self.assertIn("slowdown", text)
        self.assertIn("homa", text)

    def test_explain_runs_nothing(self):
        self.assertIn("small", rackweave.explain(SMALL))


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


class Tables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.result = rackweave.run(SMALL, set={"sweep.workload.load": [0.25, 0.5], "sweep.transport.name": ["homa", "tcp"]})

    def test_points_have_typed_columns(self):
        points = self.result.points.to_dict()
        self.assertEqual(points["point"], [0, 1, 2, 3])
        self.assertEqual(points["workload.load"], [0.25, 0.25, 0.5, 0.5])
        self.assertEqual(points["transport"], ["homa", "tcp"] * 2)
        self.assertEqual(points["completed"], [300] * 4)
        self.assertTrue(all(isinstance(value, float) for value in points["slowdown_p99"]))
        self.assertEqual(self.result.points.shape, (4, len(points)))
        for point, summary in enumerate(self.result.summary["points"]):
            self.assertEqual(points["slowdown_p99"][point], summary["slowdown"]["p99"])
            self.assertEqual(points["queue_max_bytes"][point], summary["queue_bytes"]["max"])

    def test_missing_values_are_none(self):
        edges = self.result["slowdown_by_size"].to_dict()["up_to_bytes"]
        self.assertIn(None, edges)
        with self.assertRaisesRegex(KeyError, "latency_cdf"):
            self.result["latency"]

    @needs("polars")
    def test_polars_reads_them_without_a_copy(self):
        import polars

        frame = self.result.to_polars()
        self.assertEqual(frame.schema["completed"], polars.Int64)
        self.assertEqual(frame.schema["slowdown_p99"], polars.Float64)
        self.assertEqual(frame["slowdown_p99"].to_list(), self.result.points.to_dict()["slowdown_p99"])
        cdf = self.result["latency_cdf"]
        first, second = cdf.to_polars()["latency_us"], cdf.to_polars()["latency_us"]
        # Two frames of one table have their numbers at one address.
        address = lambda series: series.to_numpy(allow_copy=False).__array_interface__["data"][0]
        self.assertEqual(address(first), address(second))

    @needs("pyarrow")
    def test_pyarrow_reads_them_without_a_copy(self):
        import pyarrow

        cdf = self.result["latency_cdf"]
        first, second = pyarrow.table(cdf), pyarrow.table(cdf)
        address = lambda table: table["latency_us"].chunk(0).buffers()[1].address
        self.assertEqual(address(first), address(second))
        self.assertEqual(first.schema, pyarrow.schema(cdf))
        del cdf
        self.assertEqual(first["fraction"][-1].as_py(), 1.0)

    @needs("pandas", "pyarrow")
    def test_pandas_reads_them(self):
        frame = self.result.to_pandas()
        self.assertEqual(list(frame["completed"]), [300] * 4)
        self.assertEqual(frame["slowdown_p99"].dtype.kind, "f")
        self.assertEqual(frame["completed"].dtype.kind, "i")
        cdf = self.result["latency_cdf"]
        first, second = cdf.to_pandas()["latency_us"], cdf.to_pandas()["latency_us"]
        address = lambda series: series.to_numpy(copy=False).__array_interface__["data"][0]
        self.assertEqual(address(first), address(second))

    @needs("pandas")
    def test_pandas_suffices(self):
        sys.modules["pyarrow"], pyarrow = None, sys.modules.get("pyarrow")
        try:
            frame = self.result.to_pandas("slowdown_by_size")
        finally:
            if pyarrow is None:
                del sys.modules["pyarrow"]
            else:
                sys.modules["pyarrow"] = pyarrow
        self.assertEqual(len(frame), len(self.result["slowdown_by_size"]))
        self.assertTrue(frame["up_to_bytes"].isna().any())


class Folders(unittest.TestCase):
    def test_frames_of_the_command(self):
        """What this package writes is what the command writes, and so is what it reads."""
        reference = os.environ.get("RACKWEAVE_REFERENCE")
        if not reference:
            self.skipTest("needs RACKWEAVE_REFERENCE, a folder of results")
        result = rackweave.run("quickstart", set={"measure.messages": 300, "sweep.seed": [1, 2]})
        loaded = rackweave.load(reference)
        self.assertIn("over_seeds", loaded.tables)
        self.assertEqual(set(loaded.tables), set(result.tables))
        for name, table in result.tables.items():
            self.assertEqual(loaded[name].columns, table.columns)
            self.assertEqual(_timeless(loaded[name]), _timeless(table), name)
        with tempfile.TemporaryDirectory() as folder:
            saved, copied = os.path.join(folder, "saved"), os.path.join(folder, "copied")
            result.save(saved)
            self.assertEqual(files(saved), {name: data for name, data in files(reference).items() if not name.endswith(".parquet")})
            loaded.save(copied)
            self.assertEqual(sorted(os.listdir(copied)), sorted(os.listdir(reference)))
            for name in os.listdir(reference):
                with open(os.path.join(reference, name), "rb") as one, open(os.path.join(copied, name), "rb") as other:
                    self.assertEqual(one.read(), other.read(), name)

    @needs("pyarrow")
    def test_parquet_reads_back_as_the_tables(self):
        import pyarrow
        import pyarrow.parquet

        result = rackweave.load(os.environ["RACKWEAVE_REFERENCE"])
        with tempfile.TemporaryDirectory() as folder:
            target = os.path.join(folder, "new")
            paths = result.to_parquet(target)
            self.assertEqual(sorted(os.path.basename(path) for path in paths), sorted(f"{name}.parquet" for name in result.tables))
            self.assertEqual(sorted(os.listdir(target)), sorted(os.path.basename(path) for path in paths))
            for name, table in result.tables.items():
                read = pyarrow.parquet.read_table(os.path.join(target, f"{name}.parquet"))
                self.assertTrue(read.equals(pyarrow.table(table)), name)
                self.assertEqual(read.to_pydict(), table.to_dict())
            self.assertEqual(result.to_parquet(target, ["points"]), [os.path.join(target, "points.parquet")])
            with self.assertRaisesRegex(KeyError, "no table 'pints'"):
                result.to_parquet(target, ["pints"])

    @needs("pyarrow")
    def test_parquet_of_the_command_has_the_schema_of_frames(self):
        import pyarrow
        import pyarrow.parquet

        reference = os.environ["RACKWEAVE_REFERENCE"]
        result = rackweave.load(reference)
        self.assertIn("over_seeds", result.tables)
        for name, table in result.tables.items():
            read = pyarrow.parquet.read_table(os.path.join(reference, f"{name}.parquet"))
            self.assertEqual(read.schema, pyarrow.table(table).schema, name)
            self.assertEqual(read.to_pydict(), table.to_dict(), name)

    @needs("polars")
    def test_parquet_without_pyarrow(self):
        script = (
            "import sys; sys.modules['pyarrow'] = None\n"
            "import os, polars, rackweave\n"
            "result = rackweave.load(os.environ['RACKWEAVE_REFERENCE'])\n"
            "[path] = result.to_parquet(sys.argv[1], ['links'])\n"
            "assert polars.read_parquet(path).to_dict(as_series=False) == result['links'].to_dict()\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", script, folder], check=True)

    def test_a_folder_without_results_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(rackweave.OutputError, "no results"):
                rackweave.load(folder)

    def test_a_damaged_table_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            rackweave.run(SMALL).save(folder)
            path = os.path.join(folder, "links.csv")
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(text.replace("\n0,", "\nzero,", 1))
            with self.assertRaisesRegex(rackweave.OutputError, "links.csv.*zero"):
                rackweave.load(folder).tables


def _timeless(table):
    return {name: values for name, values in table.to_dict().items() if name not in CLOCKS}


LONG = small(measure={"messages": 50_000_000, "time_limit": "1000 s"})


class Control(unittest.TestCase):
    def test_threads_change_nothing(self):
        fabric = {"topology": "leaf-spine", "leaves": 8, "hosts_per_leaf": 32, "spines": 2}
        self.assertIn("as many as --threads says", rackweave.explain(small(fabric=fabric)))
        one, two = (rackweave.run(small(fabric=fabric), threads=threads)["links"].to_dict() for threads in (1, 2))
        self.assertEqual(one, two)
        with self.assertRaises(ValueError):
            rackweave.run(SMALL, threads=0)

    def test_progress_is_reported_and_other_threads_run(self):
        seen, ticks, stop = [], [], threading.Event()

        def tick():
            while not stop.wait(0.01):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()

        def progress(*numbers):
            seen.append(numbers)
            if len(seen) == 3:
                raise StopIteration("enough")

        with self.assertRaisesRegex(StopIteration, "enough"):
            rackweave.run(LONG, progress=progress)
        stop.set()
        thread.join()
        self.assertEqual(len(seen), 3)
        self.assertEqual([numbers[:2] for numbers in seen], [(0, 1)] * 3)
        self.assertGreater(seen[2][3], 0, "events are counted")
        self.assertGreater(len(ticks), 3, "the GIL is free")

    def test_ctrl_c_keeps_what_is_finished(self):
        sweep = {"sweep.measure.messages": [100, 50_000_000]}

        def interrupt(done, *_):
            if done:
                signal.raise_signal(signal.SIGINT)

        # A shell starts its background jobs with SIGINT ignored, and Python leaves it so.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt) as caught:
            rackweave.run(LONG, set=sweep, jobs=1, progress=interrupt)
        self.assertIsInstance(caught.exception, rackweave.Interrupted)
        result = caught.exception.result
        self.assertTrue(result.interrupted)
        self.assertEqual(result.points.to_dict()["started"], [100])

    def test_a_terminal_shows_progress_and_a_pipe_does_not(self):
        program = "import rackweave, common; rackweave.run(common.small(), set={'measure.messages': 300_000}, progress=%s)"
        run = lambda shown: subprocess.run(
            [sys.executable, "-c", program % shown], cwd=os.path.dirname(__file__), capture_output=True, text=True, check=True
        )
        self.assertIn("0/1 points", run("True").stderr)
        self.assertEqual(run("None").stderr, "")


class Lines(unittest.TestCase):
    def test_long_runs_print_lines_off_a_terminal(self):
        from rackweave import _progress

        now = 100.0
        with mock.patch.object(_progress.time, "monotonic", lambda: now), mock.patch("sys.stderr", io.StringIO()) as stderr:
            shown = _progress.reporter(None)
            for now in range(101, 141):
                shown(1, 3, 0.5, 10, 7, 2000.0)
            shown.close()
        # After 10 seconds, and 20 later.
        self.assertEqual(stderr.getvalue().splitlines(), [" 50%  1/3 points, 7 messages, 2.0 ms simulated, 0 M events"] * 2)


class Stubs(unittest.TestCase):
    def test_stubs_have_what_the_module_has(self):
        path = pathlib.Path(__file__).parent.parent / "python" / "rackweave" / "_native.pyi"
        stubs = {}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                stubs[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                stubs[node.name] = None
        native = rackweave._native
        names = {name for name in dir(native) if not name.startswith("__")}
        self.assertEqual(set(stubs), names)
        for name, methods in stubs.items():
            if methods:
                own = {method for method in vars(getattr(native, name)) if not method.startswith("__") or method.startswith("__arrow")}
                self.assertEqual({method for method in methods if not method.startswith("__") or method.startswith("__arrow")}, own, name)


class Notebooks(unittest.TestCase):
    def test_a_result_draws_itself(self):
        result = rackweave.run(SMALL, set={"sweep.transport.name": ["homa", "tcp"]})
        shown = result._repr_html_()
        self.assertTrue(shown.startswith("<iframe"))
        self.assertIn("&lt;svg", shown)
        self.assertNotIn("<svg", shown)
        self.assertIn("2 points (homa, tcp)", repr(result))

    @needs("nbclient", "ipykernel", "pandas", "pyarrow")
    def test_the_example_runs(self):
        import nbclient
        import nbformat

        path = pathlib.Path(__file__).parent.parent / "examples" / "quickstart.ipynb"
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            # Before the first cell, the kernel finds the package where this process has found it.
            package = str(pathlib.Path(rackweave.__file__).parent.parent)
            os.environ["PYTHONPATH"] = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
            nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        kinds = {kind for output in outputs for kind in output.get("data", {})}
        self.assertIn("text/html", kinds)
        self.assertTrue(any("&lt;svg" in output.get("data", {}).get("text/html", "") for output in outputs))


if __name__ == "__main__":
    unittest.main()
