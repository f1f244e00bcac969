"""Sweeps on executors: processes, Dask, Ray; a worker that is killed; resuming; the command's bytes."""

import concurrent.futures
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import rackweave
from common import die_once, files, has_only_loopback, needs, small

# 64 points.
GRID = {
    "workload.load": [0.1, 0.2, 0.3, 0.4],
    "transport.name": ["homa", "dctcp", "tcp", "polo"],
    "seed": [1, 2, 3, 4],
}
LITTLE = {"workload.load": [0.2, 0.4], "transport.name": ["homa", "tcp"]}


def spawned(workers):
    """A process pool whose processes do not begin as copies of this one, which has threads."""
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def points(folder):
    return sorted(name for name in os.listdir(os.path.join(folder, "points")) if name.endswith(".point"))


class Sweeps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def expect(self, grid, scenario=None):
        """Returns the files of one run of all points in this process."""
        out = self.path("expected")
        settings = {f"sweep.{key}": values for key, values in grid.items()}
        rackweave.run(scenario or small(), set=settings).save(out)
        return files(out)

    def test_processes_give_the_files_of_one_run(self):
        seen = []
        with spawned(2) as pool:
            result = rackweave.sweep(small(), LITTLE, executor=pool, out=self.path("a"), progress=lambda *n: seen.append(n[:3]))
        self.assertEqual(files(self.path("a")), self.expect(LITTLE))
        self.assertEqual(result.points.to_dict()["workload.load"], [0.2, 0.2, 0.4, 0.4])
        self.assertFalse(result.interrupted)
        self.assertEqual(seen[-1], (4, 4, 1.0))
        self.assertEqual(len(points(self.path("a"))), 4)

    def test_without_an_executor_all_cores_are_used_and_points_are_kept(self):
        rackweave.sweep(small(), LITTLE, out=self.path("a"))
        self.assertEqual(files(self.path("a")), self.expect(LITTLE))
        self.assertEqual(len(points(self.path("a"))), 4)

    def test_finished_points_are_not_run_again_and_damaged_ones_are(self):
        class Counting(concurrent.futures.ThreadPoolExecutor):
            tasks = 0

            def submit(self, *args):
                Counting.tasks += 1
                return super().submit(*args)

        out = self.path("a")

        def run(grid):
            Counting.tasks = 0
            with Counting(2) as pool:
                rackweave.sweep(small(), grid, executor=pool, out=out)
            return Counting.tasks

        self.assertEqual(run(LITTLE), 4)
        self.assertEqual(run(LITTLE), 0)
        with open(os.path.join(out, "points", points(out)[1]), "r+b") as file:
            file.truncate(100)
        self.assertEqual(run(LITTLE), 1)
        self.assertEqual(run({**LITTLE, "workload.load": [0.2, 0.4, 0.6]}), 2)
        self.assertEqual(run({**LITTLE, "seed": [2]}), 4)
        self.assertEqual(run(LITTLE), 0)
        self.assertEqual(files(out), self.expect(LITTLE))

    def test_a_killed_process_breaks_a_pool_and_the_sweep_goes_on_with_another(self):
        out = self.path("a")

        killed = []

        def kill(done, *_):
            # Once: a broken pool has no processes any more.
            if done >= 2 and not killed:
                killed.append(next(iter(pool._processes)))
                os.kill(killed[0], signal.SIGKILL)

        with self.assertRaises(rackweave.SweepError) as caught, spawned(2) as pool:
            rackweave.sweep(small(), GRID, executor=pool, out=out, progress=kill)
        kept = len(points(out))
        self.assertGreaterEqual(kept, 2)
        self.assertLess(kept, 64)
        self.assertEqual(len(caught.exception.result.points), kept)
        self.assertTrue(caught.exception.result.interrupted)
        with spawned(2) as pool:
            rackweave.sweep(small(), GRID, executor=pool, out=out)
        self.assertEqual(files(out), self.expect(GRID))

    def test_a_task_that_fails_is_submitted_again_and_not_for_ever(self):
        class Failing(concurrent.futures.ThreadPoolExecutor):
            failures = 0

            def submit(self, function, spec, index):
                def task():
                    if index == 1 and Failing.failures > 0:
                        Failing.failures -= 1
                        raise ConnectionError("the worker is gone")
                    return function(spec, index)

                return super().submit(task)

        with Failing(2) as pool:
            Failing.failures = 2
            self.assertEqual(len(rackweave.sweep(small(), LITTLE, executor=pool).points), 4)
            Failing.failures = 3
            with self.assertRaisesRegex(rackweave.SweepError, "point 1 failed 3 times.*the worker is gone"):
                rackweave.sweep(small(), LITTLE, executor=pool)

    def test_a_point_of_another_sweep_is_refused(self):
        class Wrong(concurrent.futures.ThreadPoolExecutor):
            def submit(self, function, spec, index):
                return super().submit(function, spec, 0)

        with Wrong(1) as pool, self.assertRaisesRegex(rackweave.SweepError, "another configuration than point 1") as caught:
            rackweave.sweep(small(), LITTLE, executor=pool)
        # The points that were finished are not lost.
        self.assertEqual(len(caught.exception.result.points), 1)

    def test_ctrl_c_keeps_what_is_finished(self):
        def interrupt(done, *_):
            if done == 1:
                signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(rackweave.Interrupted) as caught, concurrent.futures.ThreadPoolExecutor(1) as pool:
            rackweave.sweep(small(), LITTLE, executor=pool, out=self.path("a"), progress=interrupt)
        self.assertGreaterEqual(len(caught.exception.result.points), 1)
        self.assertGreaterEqual(len(points(self.path("a"))), 1)

    def test_a_second_ctrl_c_does_not_wait(self):
        out = self.path("a")
        rackweave.sweep(small(), LITTLE, out=out)
        # Whoever reads this waits for a writer: a point that does not stop.
        blocked = os.path.join(out, "points", points(out)[0])
        os.remove(blocked)
        os.mkfifo(blocked)
        interrupts = []

        def handler(*_):
            interrupts.append(1)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        second = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))

        def interrupt(*_):
            second.start()
            signal.raise_signal(signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt) as caught:
            rackweave.sweep(small(), LITTLE, out=out, progress=interrupt)
        self.assertNotIsInstance(caught.exception, rackweave.Interrupted)
        self.assertEqual(len(interrupts), 2)
        # The thread that reads ends too.
        with open(blocked, "wb"):
            pass

    def test_what_is_no_executor_is_refused(self):
        with self.assertRaisesRegex(TypeError, "no method submit"):
            rackweave.sweep(small(), LITTLE, executor=object())

    def test_a_pool_of_multiprocessing(self):
        from rackweave.executors import PoolExecutor

        with multiprocessing.get_context("spawn").Pool(2) as pool:
            rackweave.sweep(small(), LITTLE, executor=PoolExecutor(pool), out=self.path("a"))
        self.assertEqual(files(self.path("a")), self.expect(LITTLE))

    def test_the_command_gives_the_same_bytes(self):
        """The command's run of the sweep, and its merging and resuming of a folder that Python has written."""
        command = os.environ.get("RACKWEAVE_COMMAND")
        if not command:
            self.skipTest("needs RACKWEAVE_COMMAND, the path of the command")
        sets = ["measure.messages=200", 'sweep.workload.load=[0.2, 0.4]', 'sweep.transport.name=["homa", "tcp"]']
        arguments = [part for set in sets for part in ("--set", set)]
        run = lambda *args: subprocess.run([command, *args], check=True, cwd=self.folder)
        run("run", "quickstart", *arguments, "--out", "command", "--quiet")
        with spawned(2) as pool:
            rackweave.sweep("quickstart", LITTLE, set={"measure.messages": 200}, executor=pool, out=self.path("a"))
        self.assertEqual(files(self.path("a")), files(self.path("command")))
        run("merge", "a", "--out", "merged", "--quiet")
        self.assertEqual(files(self.path("merged")), files(self.path("command")))
        before = {name: os.stat(os.path.join(self.folder, "a", "points", name)).st_mtime_ns for name in points(self.path("a"))}
        run("run", "quickstart", *arguments, "--out", "a", "--quiet", "--resume")
        after = {name: os.stat(os.path.join(self.folder, "a", "points", name)).st_mtime_ns for name in points(self.path("a"))}
        self.assertEqual(after, before)
        self.assertEqual(files(self.path("a")), files(self.path("command")))

    @needs("distributed")
    def test_dask_survives_a_killed_worker(self):
        import distributed

        killed = []
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            with distributed.Client(cluster) as client:

                def kill(done, *_):
                    if done >= 8 and not killed:
                        killed.append(next(iter(client.run(os.getpid).values())))
                        os.kill(killed[0], signal.SIGKILL)

                rackweave.sweep(small(), GRID, executor=client, out=self.path("a"), progress=kill)
        self.assertEqual(len(killed), 1, "no worker was killed")
        self.assertEqual(files(self.path("a")), self.expect(GRID))

    @needs("ray")
    @unittest.skipUnless(has_only_loopback(), "needs a network namespace (unshare --net): Ray's workers listen at the machine's address")
    def test_ray_survives_a_killed_worker(self):
        import ray
        from rackweave.executors import RayExecutor

        marker = self.path("killed")

        class Dying(RayExecutor):
            def submit(self, function, spec, index):
                arguments = (function, spec, index)
                return super().submit(*((die_once, marker) if index == 20 else ()), *arguments)

        paths = [os.path.dirname(os.path.dirname(rackweave.__file__)), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
        # Without a token of its own, Ray would write one to the home directory.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment, _node_ip_address="127.0.0.1")
        self.addCleanup(ray.shutdown)
        rackweave.sweep(small(), GRID, executor=Dying(), out=self.path("a"))
        self.assertTrue(os.path.exists(marker), "no worker was killed")
        self.assertEqual(files(self.path("a")), self.expect(GRID))

    @needs("mpi4py")
    @unittest.skipUnless(shutil.which("mpiexec"), "needs mpiexec")
    def test_mpi(self):
        program = self.path("program.py")
        with open(program, "w") as file:
            file.write(MPI)
        # Of two processes one runs the points. Open MPI runs as root, as tests in containers do, only if it is allowed to.
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        paths = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **allowed, "PYTHONPATH": os.pathsep.join(paths)}
        arguments = ["mpiexec", "-n", "2", sys.executable, "-m", "mpi4py.futures", program, self.path("a")]
        subprocess.run(arguments, check=True, env=environment, cwd=self.folder)
        self.assertEqual(files(self.path("a")), self.expect(GRID))


MPI = """
import sys

import rackweave
from common import small
from mpi4py.futures import MPIPoolExecutor
from test_sweep import GRID

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        rackweave.sweep(small(), GRID, executor=pool, out=sys.argv[1])
"""


if __name__ == "__main__":
    unittest.main()
