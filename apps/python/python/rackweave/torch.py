"""A backend of ``torch.distributed`` whose sums have the same bits at all ranks, in any order of arrival.

>>> import torch.distributed as dist
>>> import rackweave.torch
>>> dist.init_process_group("rackweave")

Tensors are on the CPU. Rank 0 of each group has the group's master, which adds up on a thread, at the address that the others find in
torch's store. A new group, such as that of processes that torchrun has started again, has nothing of a former one.

Environment variables, all optional:

- ``RACKWEAVE_ADDRESS``: the address of rank 0 at which the master listens, when the one towards ``MASTER_ADDR`` is not it.
- ``RACKWEAVE_PATIENCE``: seconds after which a rank that is silent is given up, 10 by default.
- ``RACKWEAVE_POOL``: chunks that each rank has in flight, 64 by default.
"""

import atexit
import datetime
import functools
import ipaddress
import os
import queue
import secrets
import socket
import sys
import threading
import time
import uuid
import warnings
import weakref

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise ImportError("rackweave.torch needs PyTorch, which is not installed: pip install torch") from error

from . import _native

__all__ = ["ProcessGroup", "RankError", "allreduce_hook"]

MOST_RANKS = 64
# The values that share an exponent.
BLOCK = 350
# The key of a rank in the store.
_RANK = "rank/{}"

if not hasattr(_native, "Group"):
    raise ImportError("rackweave.torch runs on Linux only")


class RankError(RuntimeError):
    """Ranks are gone, have not sent their tensor in time, or call another operation than others.

    ``ranks`` are their numbers in the group, ``hosts`` the names of their hosts. Both are empty if nobody is to blame. The group has
    ended: it is destroyed, and another one formed.
    """

    def __init__(self, message, ranks=(), hosts=()):
        super().__init__(message)
        self.ranks = list(ranks)
        self.hosts = list(hosts)


class Work(dist.Work):
    """An operation under way."""

    def __init__(self):
        super().__init__()
        self._done = threading.Event()
        self._error = None
        self._result = []
        self._begun = torch.futures.Future()
        # A future whose callback raises carries the error into C++ too, where an exception that is set would be a value.
        self._future = self._begun.then(self._outcome)

    def _outcome(self, _):
        if self._error is not None:
            raise self._error
        return self._result

    def _finish(self, result, error):
        self._result, self._error = result, error
        self._done.set()
        # Callbacks run on a thread of their own: they may wait for another operation, which needs the group's.
        try:
            threading.Thread(target=self._begun.set_result, args=(None,), name="rackweave", daemon=True).start()
        except RuntimeError:
            # The interpreter ends.
            self._begun.set_result(None)

    def is_completed(self):
        return self._done.is_set()

    def is_success(self):
        return self._done.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._result

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise RankError(f"the operation has not ended within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self):
        return self._future


class _Worker:
    """The thread on which a group's operations run, one after the other."""

    def __init__(self, abort):
        self.abort = abort
        self.jobs = queue.SimpleQueue()
        self.error = None
        self.has_ended = False
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="rackweave", daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            work, function, result = job
            error, is_first = self.error, False
            if error is None:
                try:
                    # A thread has its own mode, and leaves of autograd are changed in place too.
                    with torch.inference_mode():
                        function()
                except BaseException as raised:
                    # The other ranks may have had this operation: the next one would meet their wrong one.
                    error = self.error = raised
                    is_first = True
            work._finish(result, error)
            if is_first:
                # They need not wait for this rank.
                self.abort()
            del job, work, function, result

    def submit(self, function, result):
        work = Work()
        with self.lock:
            if self.has_ended:
                raise RankError("the group has ended")
            self.jobs.put((work, function, result))
        return work

    def end(self):
        with self.lock:
            self.has_ended = True
            self.jobs.put(None)


_groups = weakref.WeakSet()


@atexit.register
def _end_all():
    # After an exception the other ranks are to hear at once that this one is gone.
    is_well = getattr(sys, "last_type", None) is None
    for group in list(_groups):
        group._end(is_well)


def _forget_all():
    # A forked process has copies of its parent's groups, with their sockets.
    for group in list(_groups):
        group._ended = group._worker.has_ended = True
        # The parent's thread may have had it.
        group._worker.lock = threading.Lock()
    _groups.clear()


os.register_at_fork(after_in_child=_forget_all)


def _patience():
    return float(os.environ.get("RACKWEAVE_PATIENCE", "10"))


def _listen():
    """The address at which rank 0 can be reached by the others."""
    chosen = os.environ.get("RACKWEAVE_ADDRESS")
    if chosen:
        return chosen
    master = _source(os.environ.get("MASTER_ADDR"))
    # Without a launcher that says so nobody knows whether all ranks are on this host. The last two are addresses of nobody.
    is_local = os.environ.get("LOCAL_WORLD_SIZE", "no") == os.environ.get("WORLD_SIZE")
    candidates = [master, *map(_source, (socket.gethostname(), "192.0.2.1", "2001:db8::1"))]
    found = [address for address in candidates if address and (is_local or not _is_loopback(address))]
    return found[0] if found else "127.0.0.1"


def _source(name):
    """The address of this host from which packets to another one come; nothing is sent."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM) if name else ():
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return probe.getsockname()[0]
    except OSError:
        pass
    return None


def _is_loopback(address):
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def _with_port(address, port):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _words(tensor):
    return -(-tensor.numel() * tensor.element_size() // 8)


def _rest(tensor):
    """The part of a label that tells tensors with as many words but other lengths apart."""
    return tensor.numel() * tensor.element_size() % 8 << 27


def _bytes(tensor):
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def _check(tensor):
    """Fails if the storage of a tensor has become too small for it, so that its memory is gone.

    Contiguous tensors of float32 and int64 stay checked while they are copied. Others are copied by torch without the GIL.
    """
    if tensor.numel():
        last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
        if (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise RankError("the storage of a tensor has been resized while an operation on it was under way")


def _memory(tensor):
    _check(tensor)
    return tensor.data_ptr(), tensor.numel()


def _store(tensor, value):
    _check(tensor)
    tensor.copy_(value)


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_HALVES = (torch.float16, torch.bfloat16)


# In a label: the tensor has no elements.
_EMPTY = 1 << 30
_OPERATIONS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
_REDUCTIONS = tuple(
    (name, getattr(dist.ReduceOp, name)) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
)
_TYPES = sorted(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))


def _label(operation, tensors, op, root):
    """What ranks must agree about beside the length, in 27 bits. What `_rest` returns and `_EMPTY` follow."""
    reduction = next((number for number, (_, known) in enumerate(_REDUCTIONS, 1) if op is not None and op == known), 0)
    dtype = _TYPES.index(str(tensors[0].dtype).removeprefix("torch.")) + 1 if tensors else 0
    return _OPERATIONS.index(operation) + 1 << 24 | reduction << 16 | (dtype & 0xFF) << 8 | (0 if root is None else root + 1)


def _described(vector):
    """What a vector is, for people to read."""
    if vector is None:
        return "no further operation"
    length, wire, label = vector
    operation, reduction, dtype, root = label >> 24 & 7, label >> 16 & 0xFF, label >> 8 & 0xFF, label & 0xFF
    text = _OPERATIONS[operation - 1] if 0 < operation <= len(_OPERATIONS) else "an operation"
    if 0 < reduction <= len(_REDUCTIONS):
        text += f" {_REDUCTIONS[reduction - 1][0]}"
    if 0 < dtype <= len(_TYPES):
        text += f" of {_TYPES[dtype - 1]}"
    if root:
        text += f" with root {root - 1}"
    rest = label >> 27 & 7
    if label & _EMPTY:
        return f"{text} (empty)"
    return f"{text} ({length} x {wire}, {rest} bytes in the last)" if rest else f"{text} ({length} x {wire})"


def _fold(op, tensors):
    """Combines the tensors of all ranks in the order of their numbers."""
    operators = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.AVG: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    for known, operator in operators.items():
        if op == known:
            result = functools.reduce(operator, tensors)
            return result / len(tensors) if op == dist.ReduceOp.AVG else result
    raise NotImplementedError(f"the backend rackweave has no operation {op}")


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks that add up over UDP."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        if size > MOST_RANKS:
            raise ValueError(f"a group of the backend rackweave has at most {MOST_RANKS} ranks, not {size}")
        self._rank, self._size = rank, size
        self._timeout = timeout.total_seconds()
        self._master = None
        self._group = _native.Group()
        self._ended = False
        self._store, self._hosts = store, {}
        # What the operation under way is.
        self._label = 0
        self._worker = _Worker(self._group.abort)
        _groups.add(self)
        try:
            self._join(store)
        except BaseException:
            self._end(False)
            raise

    def _join(self, store):
        # A store may be that of a former group. What a rank reads there is an answer to a name that only its present life has.
        key, name = _RANK, uuid.uuid4().hex
        store.set(key.format(self._rank), f"{name} {socket.gethostname()}, process {os.getpid()}")
        if self._rank == 0:
            answered = set()

            def answer(address):
                for rank in range(1, self._size):
                    if store.check([key.format(rank)]):
                        asking = store.get(key.format(rank)).decode().split()[0]
                        if asking not in answered:
                            answered.add(asking)
                            store.set(f"master/{asking}", address)

            try:
                pool = int(os.environ.get("RACKWEAVE_POOL", "64"))
                listen = _with_port(_listen(), 0)
                # Nobody takes a place in the group who does not read the store.
                secret = secrets.randbits(63) + 1
                self._master = _native.Master.start(listen, self._size, _patience(), self._timeout, pool, secret)
            except Exception as error:
                answer(f"!{error}")
                raise
            work = self._enter(self._master.address, secret)
            while not work.is_completed():
                answer(f"{self._master.address} {secret}")
                time.sleep(0.02)
        else:
            address = store.get(f"master/{name}").decode()
            if address.startswith("!"):
                raise RankError(f"the master of the group cannot start at rank 0: {address[1:]}", [0])
            address, secret = address.split()
            there = self._host(0)
            if _is_loopback(address.rpartition(":")[0].strip("[]")) and there.split(",")[0] != socket.gethostname():
                text = f"rank 0 at {there} listens at {address}, which only its own host reaches: set RACKWEAVE_ADDRESS there"
                raise RankError(text, [0], [there])
            work = self._enter(address, int(secret))
        work.wait()
        for rank in range(self._size):
            self._host(rank)
        self._store = None

    def _host(self, rank):
        """The host of a rank; before all have joined, as far as it has said so."""
        if rank not in self._hosts and self._store is not None and self._store.check([_RANK.format(rank)]):
            self._hosts[rank] = self._store.get(_RANK.format(rank)).decode().split(" ", 1)[1]
        return self._hosts.get(rank, "a host that is not known")

    def _enter(self, address, secret):
        """Joins on the group's thread, so that Ctrl-C ends the wait."""
        join = functools.partial(self._group.join, address, self._rank, _patience(), self._timeout, secret)
        return self._worker.submit(lambda: self._call(join), [])

    def _call(self, function, *arguments):
        """Calls the library, whose errors become those of ranks."""
        try:
            return function(*arguments)
        except _native.GroupError as error:
            raise self._explained(error) from None

    def _explained(self, error):
        message, ranks, difference = error.args
        hosts = [self._host(rank) for rank in ranks]
        named = "; ".join(f"rank {rank} at {host}" for rank, host in zip(ranks, hosts))
        if difference is not None:
            found, expected = map(_described, difference[:2])
            others = ", and the other ranks" if difference[2] else ", or"
            message = f"{found}{others} {expected}: all ranks must call the same operations in the same order"
        elif not ranks and self._master is not None:
            # Only the master knows, and says so when it has informed the others.
            until = time.monotonic() + 2
            while not self._master.has_ended and time.monotonic() < until:
                time.sleep(0.002)
            message = self._master.error or message
        return RankError(f"{named}: {message}" if named else message, ranks, hosts)

    # What torch asks of a group.

    def getBackendName(self):
        return "rackweave"

    def getSize(self):
        return self._size

    def getRank(self):
        return self._rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank

    def name(self):
        return "rackweave"

    # Primitives, on the thread of the group.

    def _sum_in_place(self, tensor, rest=0):
        if tensor.numel() == 0:
            # It is a step, too: ranks without elements are to notice others that have some.
            tensor, rest = torch.zeros(1, dtype=torch.int64), _EMPTY
        if tensor.data_ptr() % tensor.element_size():
            whole = tensor.clone()
            self._sum_in_place(whole, rest)
            _store(tensor, whole)
            return
        function = self._group.allreduce_f32 if tensor.dtype == torch.float32 else self._group.allreduce_i64
        self._call(function, functools.partial(_memory, tensor), self._label | rest)

    def _gather(self, tensor):
        """The tensors of all ranks, bit for bit: each one is zero where the others have theirs."""
        _check(tensor)
        words = _words(tensor)
        all_words = torch.zeros((self._size, words), dtype=torch.int64)
        count = tensor.numel() * tensor.element_size()
        all_words[self._rank].view(torch.uint8)[:count] = _bytes(tensor.contiguous())
        self._sum_in_place(all_words.view(-1), _rest(tensor))
        return [row.view(torch.uint8)[:count].view(tensor.dtype).reshape(tensor.shape) for row in all_words]

    def _broadcast(self, tensor, root):
        _check(tensor)
        words = torch.zeros(_words(tensor), dtype=torch.int64)
        count = tensor.numel() * tensor.element_size()
        if self._rank == root:
            words.view(torch.uint8)[:count] = _bytes(tensor.contiguous())
        self._sum_in_place(words, _rest(tensor))
        if self._rank != root:
            _store(tensor, words.view(torch.uint8)[:count].view(tensor.dtype).reshape(tensor.shape))

    def _reduced(self, tensor, op):
        """The tensors of all ranks combined; `tensor` itself if that is possible."""
        _check(tensor)
        tensor = tensor.resolve_conj().resolve_neg()
        is_sum, is_mean = op == dist.ReduceOp.SUM, op == dist.ReduceOp.AVG
        if tensor.dtype.is_complex and (is_sum or is_mean):
            real = self._reduced(torch.view_as_real(tensor).contiguous(), op)
            return torch.view_as_complex(real)
        if (is_sum or is_mean) and (tensor.dtype == torch.float32 or tensor.dtype in _HALVES):
            # Halves are added up as floats, and rounded once.
            total = tensor.to(torch.float32).contiguous()
            if total.numel() <= BLOCK:
                # Values of one block share an exponent: a count next to a loss would take its digits.
                return _fold(op, self._gather(total))
            self._sum_in_place(total)
            return total.div_(self._size) if is_mean else total
        if is_sum and tensor.dtype in _INTEGERS:
            total = tensor.to(torch.int64).contiguous()
            self._sum_in_place(total)
            return total
        return _fold(op, self._gather(tensor))

    def _reduce_into(self, tensor, op):
        total = self._reduced(tensor, op)
        if total.data_ptr() != tensor.data_ptr():
            _store(tensor, total)

    # Collective operations.

    def _submit(self, operation, function, result, tensors, op=None, root=None):
        tensors = list(tensors)
        for tensor in tensors:
            if op is not None and op == dist.ReduceOp.AVG and not (
                tensor.dtype.is_floating_point or tensor.dtype.is_complex
            ):
                raise ValueError(f"the backend rackweave has no mean of {tensor.dtype}")
            if tensor.device.type != "cpu":
                raise ValueError(f"the backend rackweave has tensors on the CPU only, not on {tensor.device}")
            if tensor.is_sparse:
                raise ValueError("the backend rackweave has no sparse tensors")
        label = _label(operation, tensors, op, root)

        def run():
            self._label = label
            for tensor in tensors:
                _check(tensor)
            function()

        return self._worker.submit(run, result)

    def allreduce(self, tensors, opts=None):
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        # DDP calls with a tensor and an operation too.
        op = getattr(opts, "reduceOp", opts) if opts is not None else dist.ReduceOp.SUM

        def run():
            for tensor in tensors:
                self._reduce_into(tensor, op)

        return self._submit("all_reduce", run, tensors, tensors, op)

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts):
        # All ranks get the sum; only the root stores it.
        def run():
            for tensor in tensors:
                total = self._reduced(tensor.clone(), opts.reduceOp)
                if self._rank == opts.rootRank:
                    _store(tensor, total)

        return self._submit("reduce", run, list(tensors), tensors, opts.reduceOp, opts.rootRank)

    def broadcast(self, tensors, opts=None):
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        root = getattr(opts, "rootRank", opts) or 0

        def run():
            for tensor in tensors:
                self._broadcast(tensor, root)

        return self._submit("broadcast", run, tensors, tensors, root=root)

    def allgather(self, outputs, inputs, opts=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]

        def run():
            for output, tensor in zip(outputs, inputs):
                for place, found in zip(output, self._gather(tensor)):
                    _store(place, found)

        return self._submit("all_gather", run, outputs, inputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # The outputs of this one are in the order of ranks first.
        return self.allgather([list(row) for row in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        def run():
            for output, tensor in zip(outputs, inputs):
                found = torch.stack(self._gather(tensor))
                _store(output, found.reshape(output.shape))

        return self._submit("all_gather", run, list(outputs), inputs)

    def reduce_scatter(self, outputs, inputs, opts):
        # As many bytes as an all-reduce: each rank takes its part of the sum.
        def run():
            for output, parts in zip(outputs, inputs):
                flat = torch.cat([part.reshape(-1) for part in parts])
                total = self._reduced(flat, opts.reduceOp)
                start = sum(part.numel() for part in parts[: self._rank])
                _store(output, total[start : start + output.numel()].reshape(output.shape))

        return self._submit("reduce_scatter", run, list(outputs), [part for parts in inputs for part in parts], opts.reduceOp)

    def reduce_scatter_single(self, output, tensor, opts):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        def run():
            for output, tensor in zip(outputs, inputs):
                total = self._reduced(tensor.clone(), opts.reduceOp).reshape(-1)
                start = self._rank * output.numel()
                _store(output, total[start : start + output.numel()].reshape(output.shape))

        return self._submit("reduce_scatter", run, list(outputs), inputs, opts.reduceOp)

    def barrier(self, opts=None):
        return self._submit("barrier", lambda: self._sum_in_place(torch.zeros(1, dtype=torch.int64)), [], [])

    # Names of these operations in earlier versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _missing(self, *_arguments, **_keywords):
        raise NotImplementedError(
            "the backend rackweave has all-reduce, reduce, broadcast, all-gather, reduce-scatter and barrier: "
            "use gloo for other operations"
        )

    send = recv = recv_anysource = gather = gather_single = scatter = _missing
    alltoall = all_to_all_single = alltoall_base = _missing

    # The end.

    def shutdown(self):
        # In a `finally` after an exception the other ranks are to hear of it at once.
        self._end(sys.exc_info()[0] is None)

    def abort(self):
        self._end(False)

    def _end(self, is_well):
        if self._ended:
            return
        self._ended = True
        _groups.discard(self)
        self._worker.end()
        if is_well:
            # Others may still need the sums that the master has here.
            self._worker.thread.join(_patience())
            if self._worker.error is None and not self._worker.thread.is_alive():
                try:
                    self._group.finish(_patience())
                except _native.GroupError as error:
                    if error.args[2] is not None:
                        # Nobody asks this rank for more, and it is this rank that is wrong.
                        warnings.warn(str(self._explained(error)), RuntimeWarning, stacklevel=3)
                else:
                    if self._master is not None:
                        # The other ranks are to hear of the end.
                        until = time.monotonic() + _patience()
                        while not self._master.has_ended and time.monotonic() < until:
                            time.sleep(0.002)
        self._group.abort()
        self._worker.thread.join(1)
        if self._master is not None:
            self._master.stop()


def allreduce_hook(group, bucket):
    """A communication hook of DDP that averages gradients in a group of this backend, whatever backend the model's own group has.

    >>> model.register_comm_hook(dist.new_group(backend="rackweave"), rackweave.torch.allreduce_hook)
    """
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    future = group.allreduce([bucket.buffer()], options).get_future()
    return future.then(lambda done: done.value()[0])


def _create(store, rank, size, timeout):
    return ProcessGroup(store, rank, size, timeout)


if "rackweave" not in dist.Backend.backend_list:
    dist.Backend.register_backend("rackweave", _create, devices=["cpu"])
