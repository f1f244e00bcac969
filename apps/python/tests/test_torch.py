"""The backend of ``torch.distributed``, beside gloo."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from unittest import mock

from common import needs

# Forks of a process that has threads could wait for them for ever.
os.environ["OMP_NUM_THREADS"] = "1"
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_rank.py")


def forked(arguments, environment):
    """A rank as a fork of this process, which has imported torch, as that takes seconds."""
    import torch_rank

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(environment)
        torch_rank.main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def started(arguments, environment):
    return os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, RANK, *arguments], {**os.environ, **environment})


def run(what, backend="rackweave", size=2, dead=(), start=forked, **environment):
    """Runs ranks as processes, and returns what they have returned; ``dead`` ones end in another way."""
    with tempfile.TemporaryDirectory() as folder:
        store, out = os.path.join(folder, "store"), os.path.join(folder, "out")
        environment = {"RACKWEAVE_ADDRESS": "127.0.0.1", **environment}
        alive = {start([what, backend, str(rank), str(size), store, out], environment): rank for rank in range(size)}
        codes = {}
        try:
            until = time.monotonic() + 180
            while alive and time.monotonic() < until:
                for pid, rank in list(alive.items()):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        codes[rank] = os.waitstatus_to_exitcode(status)
                        del alive[pid]
                time.sleep(0.01)
            assert not alive, f"ranks {list(alive.values())} do not end"
        finally:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        assert all((codes[rank] != 0) == (rank in dead) for rank in codes), codes
        results = []
        for rank in sorted(set(codes) - set(dead)):
            with open(f"{out}.{rank}", "rb") as file:
                results.append(pickle.load(file))
        return results


class WithoutTorch(unittest.TestCase):
    def test_that_it_is_missing_is_said_in_a_sentence(self):
        script = "import sys; sys.modules['torch'] = None; import rackweave.torch"
        output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertIn("ImportError: rackweave.torch needs PyTorch", output.stderr)


@needs("torch")
class Torch(unittest.TestCase):
    def same_bits(self, one, other, where=""):
        import torch

        if isinstance(one, torch.Tensor):
            self.assertTrue(one.dtype == other.dtype and one.shape == other.shape, where)
            bits = lambda tensor: tensor.contiguous().reshape(-1).view(torch.uint8)
            self.assertTrue(torch.equal(bits(one), bits(other)), where)
        elif isinstance(one, (list, tuple)):
            self.assertEqual(len(one), len(other))
            for index, pair in enumerate(zip(one, other)):
                self.same_bits(*pair, f"{where}[{index}]")
        elif isinstance(one, dict):
            self.assertEqual(list(one), list(other))
            for key in one:
                self.same_bits(one[key], other[key], key)
        else:
            self.assertEqual(one, other, where)

    def near(self, one, other, where=""):
        import torch

        if isinstance(one, torch.Tensor):
            self.assertTrue(one.dtype == other.dtype and one.shape == other.shape, where)
            scale = one.double().abs().max().item() if one.numel() else 0
            halves = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
            within = halves.get(one.dtype, 1e-5 if one.dtype.is_floating_point else 0) * max(scale, 1e-30)
            difference = (one.double() - other.double()).abs().max().item() if one.numel() else 0
            self.assertLessEqual(difference, within, where)
        elif isinstance(one, (list, tuple)):
            for index, pair in enumerate(zip(one, other)):
                self.near(*pair, f"{where}[{index}]")
        elif isinstance(one, dict):
            self.assertEqual(list(one), list(other))
            for key in one:
                self.near(one[key], other[key], key)
        else:
            self.assertEqual(one, other, where)

    def test_unmodified_training_has_gloos_gradients_and_the_same_bits_at_all_ranks(self):
        for size in (2, 4):
            ours, theirs = run("ddp", size=size), run("ddp", "gloo", size=size)
            for rank in range(size):
                self.same_bits(ours[0], ours[rank], f"rank {rank}")
                self.near(ours[rank], theirs[rank], f"rank {rank}")
            self.same_bits(ours, run("ddp", size=size), "once more")

    def test_a_hook_averages_gradients_where_the_model_has_another_backend(self):
        ours, theirs = run("hook", "gloo"), run("ddp", "gloo")
        self.same_bits(ours[0], ours[1])
        self.near(ours, theirs)

    def test_operations_on_tensors_of_any_length_and_type_agree_with_gloo(self):
        ours, theirs = run("tensors", size=3), run("tensors", "gloo", size=3)
        for rank in range(3):
            self.near(ours[rank], theirs[rank])
            for key in ours[rank]:
                if key.startswith("all_reduce"):
                    self.same_bits(ours[0][key], ours[rank][key], key)

    def test_sums_do_not_depend_on_the_order_of_arrival(self):
        ranks = run("repeated", size=4)
        for rank in range(4):
            for turn in range(5):
                self.same_bits(ranks[0][0], ranks[rank][turn])

    def test_callbacks_wait_for_other_operations_and_small_sums_keep_their_digits(self):
        import torch

        for out in run("corners"):
            for tensor in out["callback"]:
                self.assertTrue((tensor == 2).all())
            self.same_bits(out["metrics"], torch.tensor([2.31, 1e9, 3e-4]) * 2)
            for dtype in (torch.float16, torch.bfloat16):
                self.same_bits(out[f"metrics {dtype}"], torch.tensor([1e-4, 1.0, 30000.0], dtype=dtype) * 2)
            self.assertTrue((out["inference"] == 3).all() and (out["leaf"] == 1.5).all())
            self.assertEqual(out["ended"], "the group has ended")

    def test_values_that_are_not_finite_and_means(self):
        import torch

        for out in run("special"):
            # The block of 350 floats is not a number, and the rest is a sum.
            self.assertTrue(out["infinite"][:350].isnan().all() and (out["infinite"][350:] == 2).all())
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                self.same_bits(out[f"mean {dtype}"], torch.full((10,), 1.5).to(dtype))
            self.assertIn("use gloo for other operations", out["send"])

    def test_a_rank_that_is_killed_is_named_within_the_patience(self):
        for size in (2, 3):
            for seconds, ranks, hosts, message in run("killed", size=size, dead=[size - 1], RACKWEAVE_PATIENCE="2"):
                self.assertEqual(ranks, [size - 1])
                self.assertRegex(message, f"^rank {size - 1} at .*, process [0-9]+: worker {size - 1} has been silent")
                self.assertTrue(hosts[0] in message and 1 < seconds < 6, seconds)

    def test_training_ends_with_the_name_of_the_rank_that_was_killed(self):
        for message in run("killed_in_training", size=3, dead=[2], RACKWEAVE_PATIENCE="2"):
            self.assertIn("rank 2 at ", message)

    def test_rank_0_which_adds_up_is_named_too(self):
        for seconds, ranks, _, message in run("killed_first", size=3, dead=[0], RACKWEAVE_PATIENCE="2"):
            self.assertEqual(ranks, [0])
            self.assertRegex(message, "^rank 0 at .*: the master at .* has been silent")
            self.assertLess(seconds, 6)

    def test_ranks_that_call_other_operations_are_named_to_all(self):
        said = {
            "length": ("all_reduce SUM of float32 (2000 x f32)", "all_reduce SUM of float32 (1000 x f32)"),
            "reduction": ("all_reduce AVG of float32 (1000 x f32)", "all_reduce SUM of float32 (1000 x f32)"),
            "type": ("all_reduce SUM of int64 (1000 x i64)", "all_reduce SUM of int32 (1000 x i64)"),
            "root": ("broadcast of float32 with root 2 (500 x i64)", "broadcast of float32 with root 1 (500 x i64)"),
            "operation": ("barrier (1 x i64)", "all_reduce SUM of int64 (1 x i64)"),
        }
        for out in run("differ", size=3):
            for mistake, (found, expected) in said.items():
                ranks, message, seconds = out[mistake]
                self.assertEqual(ranks, [0])
                self.assertRegex(message, "^rank 0 at .*, process [0-9]+: ")
                self.assertIn(f": {found}, and the other ranks {expected}: all ranks must call the same", message)
                self.assertLess(seconds, 5)

    def test_lengths_that_take_as_many_words_differ_and_empty_tensors_are_operations(self):
        for out in run("lengths", size=3):
            said = {
                "gathered": ("all_reduce SUM of float32 (6 x i64, 4 bytes in the last)", "all_reduce SUM of float32 (6 x i64)"),
                "broadcast": ("broadcast of uint8 with root 1 (1 x i64, 7 bytes in the last)", "broadcast of uint8 with root 1 (1 x i64)"),
                "empty": ("all_reduce SUM of int64 (empty)", "all_reduce SUM of int64 (1 x i64)"),
            }
            for mistake, (found, expected) in said.items():
                ranks, message = out[mistake]
                self.assertEqual(ranks, [0])
                self.assertIn(f": {found}, and the other ranks {expected}: ", message)
            self.assertIsNone(out["both empty"])

    def test_of_two_ranks_that_differ_both_are_named(self):
        for ranks, message in (out["empty"] for out in run("lengths")):
            self.assertEqual(ranks, [0, 1])
            self.assertIn(": all_reduce SUM of int64 (1 x i64), or all_reduce SUM of int64 (empty): ", message)

    def test_an_error_of_one_rank_is_heard_of_at_once(self):
        first, second, last = run("local_error", size=3, RACKWEAVE_PATIENCE="60")
        self.assertIn("has been resized", last[2])
        for seconds, ranks, message in (first, second):
            self.assertEqual(ranks, [2])
            self.assertIn("worker 2 has left", message)
            self.assertLess(seconds, 6)

    def test_who_gives_up_is_named_with_whom_it_waited_for(self):
        first, second, _ = run("gives_up", size=3)
        self.assertEqual((first[0], second[0]), ([2], [0, 2]))
        self.assertIn("worker 0 has left while it waited for the vectors of: 2", second[1])

    def test_a_rank_that_leaves_while_others_join_is_named_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second, _ = run("leaves_early", size=3, STORE=os.path.join(folder, "store"), RACKWEAVE_PATIENCE="5")
        self.assertIsNone(second)
        self.assertEqual(first[0], [1])
        self.assertLess(first[2], 20)

    def test_a_forked_process_has_no_group(self):
        self.assertEqual(run("in_a_fork"), ["the group has ended"] * 2)

    def test_a_rank_that_has_no_further_operation_is_named(self):
        out = run("skipped", size=3)
        self.assertIsNone(out[1])
        for ranks, message, seconds in (out[0], out[2]):
            self.assertEqual(ranks, [1])
            self.assertIn("no further operation, and the other ranks all_reduce SUM", message)
            self.assertLess(seconds, 5)

    def test_an_exception_in_one_rank_is_heard_of_at_once(self):
        for seconds, ranks, message in run("leaves", size=3, dead=[2], start=started, RACKWEAVE_PATIENCE="60"):
            self.assertEqual(ranks, [2])
            self.assertIn("has left", message)
            self.assertLess(seconds, 20)

    def test_ctrl_c_ends_a_wait(self):
        waited, _ = run("interrupted", RACKWEAVE_PATIENCE="1")
        self.assertLess(waited, 2.5)

    def test_a_store_may_be_used_again(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run("again", size=3, STORE=os.path.join(folder, "store")), [[3, 6, 9]] * 3)

    def test_a_rank_that_does_not_join_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for out in run("unjoined", size=3, STORE=os.path.join(folder, "store"))[:2]:
                for (ranks, hosts, message, seconds), host in zip(out, ("a host that is not known", "a host of the test, process 1")):
                    self.assertEqual((ranks, hosts), ([2], [host]))
                    self.assertEqual(message, f"rank 2 at {host}: workers have not joined: 2")
                    self.assertLess(seconds, 6)

    def test_memory_that_is_gone_is_not_used(self):
        first, second = run("resized")
        gone = "the storage of a tensor has been resized while an operation on it was under way"
        self.assertEqual((first, second), ([gone, gone], [True, True]))

    def test_an_address_of_one_host_only_is_an_error_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            (_, missing), (ranks, message) = run("elsewhere", STORE=os.path.join(folder, "store"))
        self.assertIn("workers have not joined: 1", missing)
        self.assertEqual(ranks, [0])
        self.assertRegex(message, "^rank 0 at .* listens at 127.0.0.1:.*set RACKWEAVE_ADDRESS")

    def test_rank_0_listens_where_other_hosts_reach_it(self):
        import rackweave.torch as backend

        sources = {"localhost": "127.0.0.1", "here": "127.0.1.1", "192.0.2.1": "198.51.100.7", "node0": "198.51.100.8"}
        cases = [
            ({"MASTER_ADDR": "node0"}, "198.51.100.8"),
            ({"MASTER_ADDR": "localhost"}, "198.51.100.7"),
            ({"MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, "127.0.0.1"),
            ({}, "198.51.100.7"),
            ({"RACKWEAVE_ADDRESS": "198.51.100.9"}, "198.51.100.9"),
        ]
        for environment, expected in cases:
            with mock.patch.dict(os.environ, environment, clear=True), mock.patch.object(backend, "_source", sources.get):
                with mock.patch.object(backend.socket, "gethostname", lambda: "here"):
                    self.assertEqual(backend._listen(), expected)
        with mock.patch.dict(os.environ, {}, clear=True), mock.patch.object(backend, "_source", lambda name: None):
            self.assertEqual(backend._listen(), "127.0.0.1")

    def test_torchrun_forms_another_group_after_a_death(self):
        import torch

        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}", "--local-addr=127.0.0.1"]
            command += [RANK, "restarted", "rackweave", "-", "-", "env", out]
            env = {**os.environ, "RACKWEAVE_PATIENCE": "2"}
            process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
            self.assertEqual(process.returncode, 0, process.stderr[-3000:])
            for rank in range(2):
                with open(f"{out}.{rank}", "rb") as file:
                    restarts, tensor = pickle.load(file)
                self.assertEqual(restarts, "1")
                self.same_bits(tensor, torch.full((10,), 3.0))


if __name__ == "__main__":
    unittest.main()
