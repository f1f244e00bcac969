#!/usr/bin/env python3
"""SWP2P's point with real parties: Emulab's unmodified frisbeed and clients beside changed clients and a switch that redirects requests.

One network of namespaces around a bridge. Its ports have SWP2P's program in the kernel (`rackweave image switch --bpf`). Changed clients are
`rackweave image fetch --frisbee ... --switch`; they stay for --linger after they have the image, as those of the thesis do while they expand
and write it. Of --clients, one more at a time is changed. Clients start --starts seconds apart. What frisbeed says at its end is counted:
blocks that it has sent, 1024 to a chunk. Each client's disk is compared with the one that imagezip read.

  FRISBEE_DIR=build bench/frisbee.py --clients 8 --changed 0,4,8 --starts 0,1,4
  FRISBEE_DIR=build bench/frisbee.py --changed 4 --starts 1 --kill client,switch

Needs root, clang, Linux 6.6, Python 3.11, iproute2, and a build of Emulab's frisbee, frisbeed and imagezip in FRISBEE_DIR. Everything that is made
carries the name rwim-PID and is removed at the end, after an error and after Ctrl-C.
"""
import argparse, hashlib, json, os, re, shutil, signal, statistics, sys, tempfile, time

sys.dont_write_bytecode = True  # No __pycache__ beside the script.
from namespaces import NAME, Failed, Testbed, address, end, remove_leftovers, run, wait

GROUP, PORT = "239.255.96.30", 7001
CHUNK = 1 << 20


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def events(path):
    """The events of a process so far. The last line may be incomplete."""
    try:
        with open(path) as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.startswith("{")]


class Client:
    def __init__(self, one, index, is_changed):
        self.one, self.index, self.is_changed = one, index, is_changed
        self.took, self.start_at, self.tries = None, 0.0, 0

    def begin(self):
        one, self.tries = self.one, self.tries + 1
        self.log = one.path(f"c{self.index}.{self.tries}.log")
        self.started = time.monotonic()
        if self.is_changed:
            words = [one.options.rackweave, "image", "fetch", "--frisbee", f"{GROUP}:{PORT}", "--switch", "--json", "--overwrite",
                     "--linger", f"{one.options.linger} s", "--to", one.path(f"c{self.index}.ndz")]
        else:
            words = [one.program("frisbee"), "-i", address(self.index), "-m", GROUP, "-p", PORT, one.path(f"c{self.index}.disk")]
        self.child = one.testbed.start(self.index, words, self.log)

    def look(self):
        """Notes whether it has the image."""
        if self.took is not None:
            return
        if self.is_changed:
            for event in events(self.log):
                if event["event"] == "written":
                    self.took, self.written = time.monotonic() - self.started, event
        elif self.child.ended():
            if self.child.code:
                raise Failed(f"client {self.index} has failed: see {self.log}")
            self.took = time.monotonic() - self.started
        if self.took is None and self.child.ended():
            raise Failed(f"client {self.index} has ended without the image: see {self.log}")

    def disk(self):
        path = self.one.path(f"c{self.index}.disk")
        if self.is_changed:
            run(self.one.options.rackweave, "image", "unpack", self.one.path(f"c{self.index}.ndz"), "--to", path, "-q")
        return digest(path)


class Once:
    """One image to all clients once."""

    def __init__(self, options, folder, disk, image, changed, gap, kills):
        self.options, self.folder, self.disk, self.image, self.gap, self.kills = options, folder, disk, image, gap, kills
        total = options.clients
        is_changed = lambda at: (at + 1) * changed // total > at * changed // total
        self.clients = [Client(self, at + 1, is_changed(at)) for at in range(total)]
        self.until = time.monotonic() + options.timeout

    def path(self, name):
        return os.path.join(self.folder, name)

    def program(self, name):
        return os.path.join(self.options.frisbee_dir, name)

    def switch(self):
        ports = ",".join(f"p{client.index}" for client in self.clients)
        words = [self.options.rackweave, "image", "switch", "--bpf", "--ports", ports, "--server", f"{address(0)}:{PORT}", "--json"]
        words += [] if self.options.pending else ["--no-pending"]
        self.switch_log = self.path(f"switch.{time.monotonic_ns()}.log")
        child = self.testbed.start(None, words, self.switch_log)
        wait(lambda: child.ended() or events(self.switch_log), self.until, "the switch does not begin")
        if child.ended():
            raise Failed(f"the switch has failed: see {self.switch_log}")
        return child

    def run(self):
        self.testbed = Testbed(self.options.clients, self.options.rate, "cubic")
        try:
            return self._run()
        finally:
            self.testbed.remove()

    def _run(self):
        switch, log = self.switch(), self.path("server.log")
        # Without -d it says nothing.
        words = [self.program("frisbeed"), "-d", "-i", address(0), "-m", GROUP, "-p", PORT, "-W", int(self.options.bits * 0.9), self.image]
        server = self.testbed.start(0, words, log)
        wait(lambda: server.listens(PORT, "udp"), self.until, "frisbeed does not begin")
        begin, waiting, kills = time.monotonic(), list(self.clients), set(self.kills)
        restarts = []
        while waiting or restarts or not all(client.took is not None for client in self.clients):
            now = time.monotonic()
            if now > self.until:
                late = [client.index for client in self.clients if client.took is None]
                raise Failed(f"clients {late} have no image after {self.options.timeout} s: see {self.folder}")
            if waiting and now >= begin + self.gap * (self.options.clients - len(waiting)):
                waiting.pop(0).begin()
            for client in self.clients:
                if client not in waiting and client not in restarts:
                    client.look()
            have = sum(client.took is not None for client in self.clients)
            if "client" in kills and have:
                # One that others are served by, and one that fetches, if there are such ones. They return.
                kills.remove("client")
                running = [client for client in self.clients if client.is_changed and client not in waiting]
                for wanted in (True, False):
                    for client in [it for it in running if (it.took is not None) == wanted and it not in restarts][:1]:
                        client.child.signal(signal.SIGKILL)
                        client.took = None
                        restarts.append(client)
                restart_at = now + 1
            if restarts and now >= restart_at:
                for client in restarts:
                    client.begin()
                restarts = []
            if "switch" in kills and have:
                kills.remove("switch")
                switch.signal(signal.SIGKILL)
                switch_at = now + 1
                switch = None
            if switch is None and now >= switch_at:
                switch = self.switch()
            time.sleep(0.02)
        makespan = time.monotonic() - begin
        server.signal(signal.SIGTERM)
        wait(server.ended, self.until, "frisbeed does not end")
        if switch:
            switch.signal(signal.SIGINT)
            wait(switch.ended, self.until, "the switch does not end")
        with open(log) as file:
            said = file.read()
        found = re.search(r"blocks sent:\s+(\d+)", said)
        if not found:
            raise Failed(f"frisbeed does not say what it has sent: see {log}")
        redirected = events(self.switch_log)[-1]
        end(self.testbed.children)
        right = sum(client.disk() == self.disk for client in self.clients)
        times = lambda which: [client.took for client in self.clients if client.is_changed == which]
        return {"server_chunks": int(found[1]) / 1024, "right": right, "clients": len(self.clients), "makespan_s": makespan,
                "unmodified_s": times(False), "changed_s": times(True), "to_holders": redirected["to_holders"] + redirected["to_pending"],
                "to_server": redirected["to_server"]}


def table(options, chunks, rows):
    print(f"{options.clients} clients, an image of {chunks} chunks, links of {options.rate}, changed clients stay {options.linger} s\n")
    print("| starts, s apart | changed | killed | chunks the server sent | copies | unmodified: median, last s | changed: median, last s | redirected | right |")
    print("|" + "---|" * 9)
    show = lambda times: f"{statistics.median(times):.1f}, {max(times):.1f}" if times else "-"
    for gap, changed, kills, one in rows:
        cells = [f"{gap:g}", f"{changed} of {options.clients}", ", ".join(kills) or "-", f"{one['server_chunks']:.0f}",
                 f"{one['server_chunks'] / chunks:.2f}", show(one["unmodified_s"]), show(one["changed_s"]), one["to_holders"],
                 f"{one['right']} of {one['clients']}"]
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clients", type=int, default=8)
    add("--changed", default="0,2,4,6,8", help="comma-separated: how many of the clients are changed (default %(default)s)")
    add("--starts", default="0,1,4", help="comma-separated seconds between two clients' starts (default %(default)s)")
    add("--mib", type=int, default=64, help="size of the disk, random bytes (default %(default)s)")
    add("--rate", default="200mbit", help="of every link (default %(default)s)")
    add("--linger", type=float, default=8, help="seconds for which changed clients stay (default %(default)s)")
    add("--kill", default="", help="of client, switch: what is killed when the first client has the image, and returns a second later")
    add("--pending", action="store_true", help="the switch sends requests also to clients that wait for the chunk")
    add("--rackweave", default=os.environ.get("RACKWEAVE", "rackweave"), help="the command (default: RACKWEAVE, or in PATH)")
    add("--frisbee-dir", default=os.environ.get("FRISBEE_DIR"), help="Emulab's programs (default: FRISBEE_DIR)")
    add("--timeout", type=float, default=240, help="seconds for one run (default %(default)s)")
    add("--dir", default="/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir(), help="where files are put (default %(default)s)")
    add("--json", help="file for every run's figures")
    add("--keep", action="store_true", help="keeps the files")
    options = parser.parse_args()
    found = re.fullmatch(r"(\d+)([kmg])bit", options.rate)
    if not found or not options.frisbee_dir:
        parser.error("--rate is a number with kbit, mbit or gbit, and --frisbee-dir is required")
    options.bits = int(found[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[found[2]]
    kills = [kind for kind in options.kill.split(",") if kind]
    if os.geteuid():
        sys.exit("frisbee.py makes network namespaces: run it as root")

    def stop(*_):
        # Once: what is made must be removed, whatever comes next.
        for number in stopping:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in stopping:
        signal.signal(number, stop)
    remove_leftovers(options.dir)
    directory, rows, code, chunks = tempfile.mkdtemp(prefix=f"{NAME}-{os.getpid()}-", dir=options.dir), [], 0, 1
    try:
        disk, image = os.path.join(directory, "disk"), os.path.join(directory, "golden.ndz")
        with open(disk, "wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        run(os.path.join(options.frisbee_dir, "imagezip"), "-r", disk, image)
        chunks = os.path.getsize(image) // CHUNK
        for gap in map(float, options.starts.split(",")):
            for changed in map(int, options.changed.split(",")):
                folder = os.path.join(directory, f"{gap:g}-{changed}")
                os.makedirs(folder)
                one = Once(options, folder, digest(disk), image, changed, gap, kills).run()
                rows.append((gap, changed, kills, one))
                print(f"  starts {gap:g} s apart, {changed} changed: {json.dumps(one)}", file=sys.stderr)
                code = code or int(one["right"] != one["clients"])
                if not options.keep:
                    shutil.rmtree(folder)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = 130
    except Failed as why:
        print(f"frisbee.py: {why}", file=sys.stderr)
        code = 1
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    if rows:
        table(options, chunks, rows)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"chunks": chunks, "runs": [[*row] for row in rows]}, out, indent=1)
    sys.exit(code)


if __name__ == "__main__":
    main()
