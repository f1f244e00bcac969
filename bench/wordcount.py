#!/usr/bin/env python3
"""Counting the words of a text: Rackweave with and without an aggregating switch beside GNU tools, and between hosts with shaped links.

On one machine, the text is counted by `tr | sort | uniq -c`, by awk, and by `rackweave reduce wordcount`. Between network namespaces
(--links), each worker has a part of the text; the master adds up by itself, or the switch in the kernel does. Every result is compared with
that of `sort | uniq -c`. Methods take turns; the table has medians, and the load of the machine at the start.

  zcat /usr/share/dictd/gcide.dict.dz > gcide.txt       # Debian: dict-gcide
  bench/wordcount.py gcide.txt --rackweave target/release/rackweave --runs 3 --workers 3,7 --links 200mbit,1gbit

The links need root, Python 3.11, iproute2 and clang, and are skipped without root.
"""
import argparse, hashlib, json, os, signal, statistics, subprocess, sys, tempfile, time

sys.dont_write_bytecode = True  # No __pycache__ beside the script.
from namespaces import Failed, Testbed, address, end, remove_leftovers, run, wait

SPLIT = "tr -s ' \\t\\n\\r\\f' '\\n' < text | grep -av '^$'"
TO_LINES = "sed -E 's/^ *([0-9]+) (.*)$/\\2\\t\\1/'"
LOCAL = {
    "tr, sort, uniq -c": f"{SPLIT} | sort | uniq -c > out",
    "tr, awk": f"{SPLIT} | awk '{{ n[$0]++ }} END {{ for (w in n) print n[w] \" \" w }}' > out",
}


def usage():
    used = __import__("resource").getrusage(__import__("resource").RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(words, folder, shell=False):
    before, start = usage(), time.monotonic()
    environment = dict(os.environ, LC_ALL="C")
    done = subprocess.run(words, shell=shell, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{words}: {done.stderr.strip()}")
    return time.monotonic() - start, usage() - before


def digest(folder, command):
    """The digest of a result: lines of word and count, sorted by bytes. Backslashes in words are written as the result of Rackweave has them."""
    environment = dict(os.environ, LC_ALL="C")
    text = subprocess.run(f"{command} | sort", shell=True, cwd=folder, env=environment, capture_output=True, check=True).stdout
    return hashlib.sha256(text).hexdigest()


def local(options, folder, workers, rows):
    expected = None
    for _ in range(options.runs):
        for name, command in LOCAL.items():
            wall, processor = timed(command, folder, shell=True)
            # A backslash is written as two; uniq pads counts with spaces.
            got = digest(folder, f"sed 's/\\\\/\\\\\\\\/g' out | {TO_LINES}")
            expected = expected or got
            if got != expected:
                raise Failed(f"{name}: another result")
            rows.setdefault((name, ""), []).append({"wall_s": wall, "cpu_s": processor})
        for count in workers:
            for name, more in (("master adds up", ["--no-switch"]), ("user-space switch adds up", [])):
                words = [options.rackweave, "reduce", "wordcount", "text", "--workers", str(count), "--quiet", "--out", "out"]
                wall, processor = timed(words + more, folder)
                if digest(folder, "cat out") != expected:
                    raise Failed(f"{name}: another result")
                rows.setdefault((f"rackweave, {count} workers in one process, {name}", ""), []).append({"wall_s": wall, "cpu_s": processor})
                os.remove(os.path.join(folder, "out"))
    return expected


def linked(options, folder, workers, rate, expected, rows):
    for count in workers:
        run("split", "-n", f"l/{count}", "-d", "-a", 2, os.path.join(folder, "text"), os.path.join(folder, "part"))
        testbed = Testbed(count, rate, "cubic")
        try:
            run("ip", "-n", testbed.space(None), "addr", "add", "10.99.0.1/24", "dev", "br0")
            for host in range(count + 1):
                run("ip", "-n", testbed.space(host), "link", "set", "e0", "gso_max_segs", 1)
            for _ in range(options.runs):
                for name, has_switch in (("master adds up", False), ("switch in the kernel adds up", True)):
                    sample = one(options, testbed, folder, count, has_switch)
                    if digest(folder, "cat out") != expected:
                        raise Failed(f"{name}: another result")
                    rows.setdefault((f"rackweave, {count} workers, {name}", rate), []).append(sample)
        finally:
            testbed.remove()


def one(options, testbed, folder, count, has_switch):
    log, until = os.path.join(folder, "log"), time.monotonic() + options.timeout
    out, text = os.path.join(folder, "out"), open(os.path.join(folder, "master"), "w+b")
    open(log, "wb").close()
    has_said = lambda what: what in open(log, errors="replace").read()
    children = []
    try:
        if has_switch:
            ports = ",".join(f"p{host}" for host in range(count + 1))
            children.append(testbed.start(None, [options.rackweave, "switch", "--program", "reduce", "--bpf", "--ports", ports,
                                                 "--address", "10.99.0.1", "--slots", options.slots], log, out=os.devnull))
            wait(lambda: has_said("ready\n"), until, "the switch did not start")
        more = ["--switch", "10.99.0.1", "--slots", options.slots, "--require-switch"] if has_switch else []
        master = testbed.start(0, [options.rackweave, "reduce", "master", "--workers", count, "--json", "--out", out] + more, log, out=text.name)
        children.append(master)
        wait(lambda: has_said("ready at"), until, "the master did not start")
        start = time.monotonic()
        for worker in range(count):
            words = [options.rackweave, "reduce", "worker", "--master", address(0), "--worker", worker, "--quiet"]
            children.append(testbed.start(worker + 1, words + [os.path.join(folder, f"part{worker:02}")], log, out=os.devnull))
        wait(lambda: all([child.ended() for child in children[1 if has_switch else 0:]]), until, f"no end: {open(log).read()}")
        wall = time.monotonic() - start
        if any(child.code for child in children[1 if has_switch else 0:]):
            raise Failed(open(log, errors="replace").read())
        stats = json.load(open(text.name))
        cpu = sum(child.user_s + child.system_s for child in children)
        return {"wall_s": wall, "cpu_s": cpu, "upload_s": stats["upload_s"], "bytes": stats["master_bytes"], "share": stats["reached_percent"]}
    finally:
        if has_switch and children:
            children[0].signal(signal.SIGINT)
        end(children)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--rackweave", default="rackweave")
    parser.add_argument("--workers", default="3,7")
    parser.add_argument("--links", default="")
    parser.add_argument("--slots", type=int, default=16384)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.rackweave = os.path.abspath(options.rackweave) if os.path.sep in options.rackweave else options.rackweave
    workers, rows = [int(count) for count in options.workers.split(",")], {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    remove_leftovers(tempfile.gettempdir())
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix=f"rwim-{os.getpid()}-") as folder:
        os.symlink(os.path.abspath(options.text), os.path.join(folder, "text"))
        expected = local(options, folder, workers, rows)
        for rate in filter(None, options.links.split(",")):
            if os.geteuid():
                print("skipped: links need root", file=sys.stderr)
                break
            linked(options, folder, workers, rate, expected, rows)
    print(f"{os.path.getsize(options.text) / 1e6:.1f} MB, medians of {options.runs} runs in turns, load {load:.1f} at the start\n")
    print("| method | links | s | CPU s | upload s | MB at the master | pairs at the master |\n|---|---|---|---|---|---|---|")
    for (name, rate), samples in rows.items():
        middle = lambda key, form: form.format(statistics.median(sample[key] for sample in samples)) if key in samples[0] else ""
        cells = [middle("wall_s", "{:.2f}"), middle("cpu_s", "{:.2f}"), middle("upload_s", "{:.3f}")]
        megabytes = f"{statistics.median(sample['bytes'] for sample in samples) / 1e6:.2f}" if "bytes" in samples[0] else ""
        print(f"| {name} | {rate} | " + " | ".join(cells + [megabytes, middle("share", "{:.1f} %")]) + " |")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([{"method": name, "links": rate, "samples": samples} for (name, rate), samples in rows.items()], file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
