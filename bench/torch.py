#!/usr/bin/env python3
"""All-reduce and training in PyTorch between hosts with shaped links: the backend of `rackweave.torch` beside gloo.

Each rank is a process in a network namespace. Backends take turns; the table has medians of the slowest rank's times, and says whether all
ranks had the same bits, and every run.

  cargo build --release -p rackweave-python
  bench/torch.py --library target/release/librackweave_python.so --python python3 --ranks 2,4 --rate 200mbit,1gbit

Needs root, iproute2, and torch in the Python that --python names.
"""
import argparse, hashlib, json, os, statistics, sys, tempfile, time

sys.dont_write_bytecode = True  # No __pycache__ beside the script.
PORT = 29500


def rank():
    """One rank: writes its times and a digest of the results."""
    sys.path.pop(0)  # This script has the name of the package.
    import torch
    import torch.distributed as dist

    if sys.argv[2] == "rackweave":
        import rackweave.torch  # noqa: F401, which registers the backend
    backend, number, size, address, lengths, repeats = sys.argv[2:8]
    number, size, repeats = int(number), int(size), int(repeats)
    dist.init_process_group(backend, init_method=f"tcp://{address}:{PORT}", rank=number, world_size=size)
    digest, times = hashlib.sha256(), {}
    draws = torch.Generator().manual_seed(number)
    for length in map(int, lengths.split(",")):
        taken = []
        for repeat in range(repeats + 1):
            tensor = torch.randn(length, generator=draws)
            dist.barrier()
            began = time.monotonic()
            dist.all_reduce(tensor)
            if repeat:
                taken.append(time.monotonic() - began)
            digest.update(tensor.view(torch.uint8).numpy().tobytes())
        times[f"all-reduce of {length * 4:,} bytes"] = statistics.median(taken)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer, taken = torch.optim.SGD(model.parameters(), 0.1), []
    for repeat in range(repeats + 1):
        inputs = torch.randn(64, 256, generator=draws)
        dist.barrier()
        began = time.monotonic()
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        if repeat:
            taken.append(time.monotonic() - began)
    times[f"DDP step with {sum(p.numel() for p in model.parameters()) * 4:,} bytes"] = statistics.median(taken)
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    with open(sys.argv[8], "w") as out:
        json.dump({"times": times, "digest": digest.hexdigest()}, out)
    dist.destroy_process_group()


def measure(options, testbed, backend, size, folder):
    from namespaces import Failed, address, wait

    outs = [os.path.join(folder, f"{backend}-{number}.json") for number in range(size)]
    children = []
    for number, out in enumerate(outs):
        if os.path.exists(out):
            os.remove(out)
        environment = [f"PYTHONPATH={folder}", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=e0", f"RACKWEAVE_ADDRESS={address(0)}"]
        words = ["env", *environment, options.python, os.path.abspath(__file__), "--rank", backend, number, size]
        words += [address(0), options.lengths, options.repeats, out]
        children.append(testbed.start(number, words, os.path.join(folder, f"{backend}-{number}.log")))
    wait(lambda: all([child.ended() for child in children]), time.monotonic() + 600, f"{backend}: no end")
    results = []
    for number, (child, out) in enumerate(zip(children, outs)):
        if child.code:
            with open(os.path.join(folder, f"{backend}-{number}.log")) as log:
                raise Failed(f"{backend}, rank {number}: {log.read()[-2000:]}")
        with open(out) as file:
            results.append(json.load(file))
    times = {name: max(result["times"][name] for result in results) for name in results[0]["times"]}
    return times, {result["digest"] for result in results}, sum(child.user_s + child.system_s for child in children)


def main():
    from namespaces import Failed, Testbed, remove_leftovers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rate", default="200mbit,1gbit")
    parser.add_argument("--lengths", default="1000,262144,2500000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../apps/python/python/rackweave")
        os.mkdir(os.path.join(folder, "rackweave"))
        for name in os.listdir(package):
            os.symlink(os.path.join(package, name), os.path.join(folder, "rackweave", name))
        os.symlink(os.path.abspath(options.library), os.path.join(folder, "rackweave", "_native.abi3.so"))
        remove_leftovers(tempfile.gettempdir())
        print(f"load {os.getloadavg()[0]:.1f}, medians of {options.runs} runs\n")
        print("| ranks | link | what | rackweave | gloo |\n|---|---|---|---|---|")
        for size in map(int, options.ranks.split(",")):
            for rate in options.rate.split(","):
                testbed = Testbed(size - 1, rate, "cubic")
                found = {"rackweave": [], "gloo": []}
                try:
                    for turn in range(options.runs):
                        for backend in list(found)[:: 1 if turn % 2 == 0 else -1]:
                            found[backend].append(measure(options, testbed, backend, size, folder))
                except Failed as error:
                    sys.exit(str(error))
                finally:
                    testbed.remove()
                row = lambda what, cells: print(f"| {size} | {rate} | {what} | {' | '.join(cells)} |", flush=True)
                for what in found["gloo"][0][0]:
                    median = lambda runs: statistics.median(times[what] for times, _, _ in runs)
                    row(what, [f"{median(runs) * 1e3:.1f} ms" for runs in found.values()])
                row("processor time of all ranks", [f"{statistics.median(cpu for _, _, cpu in runs):.1f} s" for runs in found.values()])
                same = lambda runs: "yes" if all(len(digests) == 1 for _, digests, _ in runs) else "no"
                row("the same bits at all ranks", [same(runs) for runs in found.values()])
                again = lambda runs: "yes" if len(set().union(*(digests for _, digests, _ in runs))) == 1 else "no"
                row("the same bits in all runs", [again(runs) for runs in found.values()])


if __name__ == "__main__":
    rank() if sys.argv[1:2] == ["--rank"] else main()
