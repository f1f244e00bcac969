"""What one rank of the tests with PyTorch runs: ``torch_rank.py WHAT BACKEND RANK SIZE STORE OUT``."""

import datetime
import os
import pickle
import signal
import sys
import time

import torch
import torch.distributed as dist

import rackweave.torch


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 17), torch.nn.Tanh(), torch.nn.Linear(17, 1)
    return torch.nn.Sequential(*layers)


def train(rank, steps=4, hook=None):
    """Unmodified DDP; returns the gradients of each step and the parameters after the last one."""
    net = model()
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.03)
    if hook is not None:
        ddp.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    data = torch.Generator().manual_seed(rank)
    gradients = []
    for _ in range(steps):
        inputs = torch.randn(32, 64, generator=data)
        optimizer.zero_grad()
        ddp(inputs).pow(2).mean().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        optimizer.step()
    return gradients, [parameter.detach().clone() for parameter in net.parameters()]


def ddp(rank, size):
    return train(rank)


def hook(rank, size):
    """The world's backend is gloo, and gradients take another group."""
    return train(rank, hook=(dist.new_group(backend="rackweave"), rackweave.torch.allreduce_hook))


def tensors(rank, size):
    """Every operation on tensors of many lengths and types."""
    out = {}
    draws = torch.Generator().manual_seed(100 + rank)
    for length in (1, 2, 351, 100_000, 7):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8):
            values = torch.randn(length, generator=draws).mul(20)
            mine = (values.abs().clamp(0, 50) if dtype == torch.uint8 else values).to(dtype)
            for op in ("SUM", "MAX", "MIN"):
                tensor = mine.clone()
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                out[f"all_reduce {op} {length} {dtype}"] = tensor
            tensor = mine.clone()
            dist.broadcast(tensor, size - 1)
            out[f"broadcast {length} {dtype}"] = tensor
            found = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(found, mine)
            out[f"all_gather {length} {dtype}"] = torch.stack(found)
            single = torch.empty((size * length,), dtype=dtype)
            dist.all_gather_into_tensor(single, mine)
            out[f"all_gather_into_tensor {length} {dtype}"] = single
            many = mine.repeat(size) if length < 1000 else mine[: length // size * size]
            part = torch.empty(many.numel() // size, dtype=dtype)
            dist.reduce_scatter_tensor(part, many)
            out[f"reduce_scatter {length} {dtype}"] = part
            tensor = mine.clone()
            dist.reduce(tensor, 0)
            if rank == 0:
                out[f"reduce {length} {dtype}"] = tensor
    grid = torch.arange(12.0).reshape(3, 4).t() * (rank + 1)
    assert not grid.is_contiguous()
    dist.all_reduce(grid)
    out["all_reduce, not contiguous"] = grid
    works = [dist.all_reduce(torch.full((50,), float(rank + index)), async_op=True) for index in range(20)]
    out["asynchronous"] = torch.stack([work.get_future().wait()[0] for work in works])
    # gloo says so only a moment later.
    assert dist.get_backend() == "gloo" or all(work.is_completed() and work.is_success() for work in works)
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.tensor([rank + 1])
        dist.all_reduce(tensor, group=pair)
        out["a smaller group"] = tensor
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    out["objects"] = objects
    dist.barrier()
    return out


def special(rank, size):
    """Values that are not finite, halves, means, and what the backend does not have."""
    out = {}
    tensor = torch.ones(1000)
    if rank == 1:
        tensor[3] = float("inf")
    dist.all_reduce(tensor)
    out["infinite"] = tensor
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.full((10,), 1.0 + rank).to(dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        out[f"mean {dtype}"] = tensor
    try:
        dist.send(tensor, 1 - rank)
    except NotImplementedError as error:
        out["send"] = str(error)
    return out


def repeated(rank, size):
    """Sums whose rounding would show the order of arrival."""
    out = []
    for turn in range(5):
        tensor = torch.randn(20_000, generator=torch.Generator().manual_seed(rank)).mul(10.0 ** (rank - 2))
        time.sleep(0.01 * ((rank + turn) % size))
        dist.all_reduce(tensor)
        out.append(tensor)
    return out


def killed(rank, size, number=None):
    """The last rank, or this one, is killed in the middle; returns what the others are told."""
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == (size - 1 if number is None else number):
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except rackweave.torch.RankError as error:
        return time.monotonic() - began, error.ranks, error.hosts, str(error)
    return None


def killed_first(rank, size):
    return killed(rank, size, 0)


def killed_in_training(rank, size):
    """As `killed`, in DDP, where C++ waits."""
    train(rank)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(rank)
    except RuntimeError as error:
        return str(error)
    return None


def leaves(rank, size):
    """The last rank raises an exception; the others hear of it at once."""
    dist.all_reduce(torch.ones(10))
    if rank == size - 1:
        raise SystemError("this rank has a fault")
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10))
    except rackweave.torch.RankError as error:
        return time.monotonic() - began, error.ranks, str(error)
    return None


def differ(rank, size):
    """Ranks that do not call the same operations; each is told which one does not."""
    mistakes = {
        "length": lambda group: dist.all_reduce(torch.ones(1000 if rank else 2000), group=group),
        "reduction": lambda group: dist.all_reduce(torch.ones(1000), dist.ReduceOp.SUM if rank else dist.ReduceOp.AVG, group),
        "type": lambda group: dist.all_reduce(torch.ones(1000, dtype=torch.int32 if rank else torch.int64), group=group),
        "root": lambda group: dist.broadcast(torch.ones(1000), 1 if rank else 2, group),
        "operation": lambda group: dist.all_reduce(torch.ones(1).long(), group=group) if rank else dist.barrier(group),
    }
    out = {}
    for mistake, call in mistakes.items():
        group = dist.new_group(backend="rackweave")
        dist.all_reduce(torch.ones(1000), group=group)
        began = time.monotonic()
        try:
            call(group)
        except rackweave.torch.RankError as error:
            out[mistake] = error.ranks, str(error), time.monotonic() - began
    return out


def lengths(rank, size):
    """Tensors of other lengths that take as many words, or none."""
    mistakes = {
        "gathered": lambda group: dist.all_reduce(torch.ones(4 if rank else 3), group=group),
        "broadcast": lambda group: dist.broadcast(torch.ones(8 if rank else 7, dtype=torch.uint8), 1, group),
        "empty": lambda group: dist.all_reduce(torch.ones(1 if rank else 0).long(), group=group),
        "both empty": lambda group: [dist.all_reduce(torch.ones(0), op, group) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)],
    }
    out = {}
    for mistake, call in mistakes.items():
        group = dist.new_group(backend="rackweave")
        try:
            call(group)
            out[mistake] = None
        except rackweave.torch.RankError as error:
            out[mistake] = error.ranks, str(error)
    return out


def local_error(rank, size):
    """The last rank has an error of its own, and takes its time; the others hear of it at once."""
    dist.all_reduce(torch.ones(10))
    began = time.monotonic()
    tensor = torch.ones(10)
    if rank == size - 1:
        tensor.untyped_storage().resize_(0)
    try:
        dist.all_reduce(tensor)
    except rackweave.torch.RankError as error:
        seconds = time.monotonic() - began
        time.sleep(8 if rank == size - 1 else 0)
        return seconds, error.ranks, str(error)
    return None


def gives_up(rank, size):
    """Ranks wait for the last one for no longer than the group's timeout."""
    group = dist.new_group(backend="rackweave", timeout=datetime.timedelta(seconds=2 if rank == 0 else 60))
    dist.all_reduce(torch.ones(10), group=group)
    try:
        if rank == size - 1:
            time.sleep(4)
        else:
            dist.all_reduce(torch.ones(10), group=group)
    except rackweave.torch.RankError as error:
        return error.ranks, str(error)
    return None


def leaves_early(rank, size):
    """Rank 1 leaves while the others wait for the last one, which does not come."""
    store = dist.FileStore(os.environ["STORE"], size)
    began = time.monotonic()
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        if rank < size - 1:
            rackweave.torch.ProcessGroup(store, rank, size, datetime.timedelta(seconds=60))
    except KeyboardInterrupt:
        pass
    except rackweave.torch.RankError as error:
        return error.ranks, str(error), time.monotonic() - began
    return None


def in_a_fork(rank, size):
    """A forked process has no group."""
    dist.all_reduce(torch.ones(10))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(10))
        except BaseException as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as pipe:
        return pipe.read().decode()


def skipped(rank, size):
    """One rank has an operation less than the others."""
    began = time.monotonic()
    try:
        for _ in range(3 if rank == 1 else 4):
            dist.all_reduce(torch.ones(1000))
        return None
    except rackweave.torch.RankError as error:
        return error.ranks, str(error), time.monotonic() - began


def interrupted(rank, size):
    """Ctrl-C while rank 0 waits for rank 1, which takes its time."""
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        time.sleep(3)
        return None
    began = time.monotonic()
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        dist.all_reduce(torch.ones(10))
    except KeyboardInterrupt:
        return time.monotonic() - began
    return None


def again(rank, size):
    """A second group in the same store."""
    store = dist.FileStore(os.environ["STORE"], size)
    sums = []
    for turn in range(3):
        group = rackweave.torch.ProcessGroup(store, rank, size, datetime.timedelta(seconds=60))
        tensor = torch.tensor([rank + turn])
        group.allreduce([tensor]).wait()
        sums.append(tensor.item())
        group.shutdown()
    return sums


def resized(rank, size):
    """Storages that are freed while sums are under way, as sharded training does."""
    out = []
    for dtype in (torch.float32, torch.float64):
        group = dist.new_group(backend="rackweave")
        tensor = torch.ones(300_000, dtype=dtype)
        if rank == 1:
            time.sleep(0.5)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        if rank == 0:
            time.sleep(0.2)
            tensor.untyped_storage().resize_(0)
        try:
            work.wait()
            out.append(bool((tensor == 2).all()))
        except rackweave.torch.RankError as error:
            out.append(str(error))
    return out


def elsewhere(rank, size):
    """Rank 0 listens where only its host reaches it, and the others seem to be on another host."""
    if rank:
        rackweave.torch.socket.gethostname = lambda: "another-host"
    store = dist.FileStore(os.environ["STORE"], size)
    try:
        rackweave.torch.ProcessGroup(store, rank, size, datetime.timedelta(seconds=2))
    except rackweave.torch.RankError as error:
        return error.ranks, str(error)
    return None


def unjoined(rank, size):
    """The last rank does not come to another group; or it dies after it has said where it is."""
    out = []
    for comes in (False, True):
        store = dist.FileStore(f"{os.environ['STORE']}.{comes}", size)
        if rank == size - 1:
            if comes:
                store.set(f"rank/{rank}", "life a host of the test, process 1")
            continue
        began = time.monotonic()
        try:
            rackweave.torch.ProcessGroup(store, rank, size, datetime.timedelta(seconds=2))
        except rackweave.torch.RankError as error:
            out.append((error.ranks, error.hosts, str(error), time.monotonic() - began))
    return out


def corners(rank, size):
    """What hooks, evaluations and metrics do."""
    out = {}
    # A callback waits for another operation, as that of PowerSGD does.
    first, second = torch.ones(400), torch.ones(400)

    def then(_):
        dist.all_reduce(second, async_op=True).get_future().wait()
        return second

    dist.all_reduce(first, async_op=True).get_future().then(then).wait()
    out["callback"] = (first, second)
    metrics = torch.tensor([2.31, 1e9, 3e-4])
    dist.all_reduce(metrics)
    out["metrics"] = metrics
    with torch.inference_mode():
        halves = torch.full((5,), 1.5, dtype=torch.bfloat16)
        dist.all_reduce(halves)
        out["inference"] = halves.clone()
    for dtype in (torch.float16, torch.bfloat16):
        halves = torch.tensor([1e-4, 1.0, 30000.0], dtype=dtype)
        dist.all_reduce(halves)
        out[f"metrics {dtype}"] = halves
    leaf = torch.nn.Parameter(torch.full((400,), float(rank + 1)))
    dist.all_reduce(leaf.data, dist.ReduceOp.AVG)
    dist.all_reduce(leaf, dist.ReduceOp.MAX)
    out["leaf"] = leaf.detach().clone()
    dist.barrier()
    group = dist.new_group(backend="rackweave")
    group.shutdown()
    try:
        group.allreduce([torch.ones(1)]).wait()
    except rackweave.torch.RankError as error:
        out["ended"] = str(error)
    return out


def restarted(rank, size):
    """Under torchrun: the first life of rank 1 dies after a step."""
    dist.all_reduce(torch.ones(10))
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.full((10,), float(rank + 1))
    dist.all_reduce(tensor)
    return os.environ["TORCHELASTIC_RESTART_COUNT"], tensor


def main(what, backend, rank, size, store, out):
    if store == "env":
        dist.init_process_group(backend)
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = int(rank), int(size)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    result = globals()[what](rank, size)
    with open(f"{out}.{rank}", "wb") as file:
        pickle.dump(result, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
