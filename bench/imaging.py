#!/usr/bin/env python3
"""Disk imaging: one image from a server to many clients, Rackweave beside the tools that people use, in network namespaces.

The server and each client are a namespace with one interface; all are connected by a bridge in another namespace. Every link is
shaped in both directions (TBF). The image is random bytes in memory, and every copy is compared with it by SHA-256. Prints one
Markdown table; --json also writes every run.

  bench/imaging.py --install                                  installs the other programs (Debian)
  bench/imaging.py --links 200mbit:128,1gbit:256 --clients 4,8 --starts 0,2,6 --runs 3 --json imaging.json

Needs root, Python 3.11, iproute2, and for each method its program; a method whose program is missing is named and skipped. Everything
that is made carries the name rwim-PID and is removed at the end, after an error and after Ctrl-C; what a killed run has left
is removed by the next one.
"""
import argparse, functools, glob, hashlib, json, os, platform, re, shutil, signal, statistics, subprocess, sys, tempfile, time

sys.dont_write_bytecode = True  # No __pycache__ beside the script.
import bittorrent
from namespaces import NAME, POLL_S, Failed, Testbed, address, end, remove_leftovers, run, wait

CHAIN_PORT, HTTP_PORT, UDPCAST_PORT, CAST_PORT, IMAGE_PORT = 7000, 8080, 9000, 6722, 6723
PACKAGES = ["nginx-light", "curl", "aria2", "python3-libtorrent", "netcat-openbsd", "udpcast", "iproute2"]
IMAGE_NAME = "golden"
MULTICAST_GROUP = "239.255.67.23"
# A frame of 1514 bytes carries 1448 bytes of TCP (with timestamps). TBF counts frames from the Ethernet header on.
PAYLOAD, FRAME = 1448, 1514


# --- methods: `server` brings up what must be there before the first client starts; a method with `push` has its clients there
# already, `begin` starts the sender, and all clients count as started then


class Run:
    """One image to all clients once."""

    def __init__(self, testbed, options, image, folder, clients, rate):
        self.testbed, self.options, self.image, self.folder, self.rate = testbed, options, image, folder, rate
        self.clients = range(1, clients + 1)
        self.size = os.path.getsize(image.raw)
        self.until = time.monotonic() + options.timeout
        self.server_children, self.client_children = [], {index: [] for index in self.clients}

    def path(self, name):
        return os.path.join(self.folder, name)

    def target(self, index):
        folder = self.path(f"c{index}")
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, os.path.basename(self.image.raw))

    def at_server(self, words, counted=True, **more):
        child = self.testbed.start(0, words, self.path("server.log"), **more)
        if counted:
            self.server_children.append(child)
        return child

    def at_client(self, index, words, **more):
        child = self.testbed.start(index, words, self.path(f"c{index}.log"), **more)
        self.client_children[index].append(child)
        return child

    def listening(self, child, port, kind="tcp"):
        wait(lambda: child.listens(port, kind) or child.ended(), self.until, f"nothing listens on port {port}")
        if child.ended():
            raise Failed(f"a program ended before it listened on port {port}")

    def exited(self, index):
        return all([child.ended() for child in self.client_children[index]])


class Method:
    programs, push = (), False

    def missing(self, options):
        absent = [program for program in self.programs if not shutil.which(program)]
        return f"{', '.join(absent)} not installed" if absent else None

    def server(self, run):
        pass

    def begin(self, run):
        pass

    def client(self, run, index):
        pass

    def complete(self, run, index):
        return run.exited(index)

    def details(self, run, index):
        return {}


class Http(Method):
    programs = ("nginx", "curl")

    def server(self, run):
        conf = run.path("nginx.conf")
        temporary = " ".join(f"{kind}_temp_path {run.path('nginx')};" for kind in
                             ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(conf, "w") as out:
            out.write(f"daemon off; worker_processes 2; user root; pid {run.path('nginx.pid')}; error_log stderr;\n"
                      "events {}\n"
                      f"http {{ access_log off; sendfile on; {temporary}\n"
                      f"server {{ listen {HTTP_PORT}; root {os.path.dirname(run.image.raw)}; }} }}\n")
        run.listening(run.at_server(["nginx", "-e", "stderr", "-c", conf]), HTTP_PORT)

    def client(self, run, index):
        url = f"http://{address(0)}:{HTTP_PORT}/{os.path.basename(run.image.raw)}"
        run.at_client(index, ["curl", "-s", "-f", "-o", run.target(index), url])


class BitTorrent(Method):
    """A seeder and leechers. Making the torrent and the tracker, which runs beside the seeder, are not counted."""

    def server(self, run):
        self.torrent = run.path("t.torrent")
        with open(self.torrent, "wb") as out:
            out.write(run.image.torrent(f"http://{address(0)}:{bittorrent.TRACKER_PORT}/announce"))
        run.listening(run.at_server([sys.executable, bittorrent.__file__, "tracker"], counted=False), bittorrent.TRACKER_PORT)
        self.seeder(run)
        # The seeder announces itself before the first leecher asks who is there.
        wait(lambda: "announced" in open(run.path("server.log")).read(), run.until, "the seeder does not announce itself")

    def complete(self, run, index):
        return os.path.exists(run.target(index) + ".done")


class Aria2(BitTorrent):
    programs = ("aria2c",)

    def __init__(self, leave):
        # 0.0 is "for ever" as a ratio, and "not at all" as a time.
        self.after = "--seed-time=0" if leave else "--seed-ratio=0.0"

    def words(self, folder, after):
        return ["aria2c", "--no-conf", "--dir", folder, "--enable-dht=false", "--enable-dht6=false", "--bt-enable-lpd=false",
                f"--listen-port={bittorrent.PORT}", "--file-allocation=none", "--summary-interval=0", "--console-log-level=error",
                "--disk-cache=64M", "--bt-max-peers=0", "--enable-peer-exchange=true", "--max-upload-limit=0",
                "--bt-tracker-interval=2", "--bt-request-peer-speed-limit=0", "--check-integrity=false",
                "--bt-seed-unverified=true", after, self.torrent]

    def seeder(self, run):
        run.listening(run.at_server(self.words(os.path.dirname(run.image.raw), "--seed-ratio=0.0")), bittorrent.PORT)
        self.hook = run.path("complete")
        with open(self.hook, "w") as out:
            out.write('#!/bin/sh\n: > "$3.done"\n')
        os.chmod(self.hook, 0o755)

    def client(self, run, index):
        folder = os.path.dirname(run.target(index))
        run.at_client(index, self.words(folder, self.after) + [f"--on-bt-download-complete={self.hook}"])


class Libtorrent(BitTorrent):
    @functools.cache
    def python(self):
        """A Python that has the module: Debian's package is for Debian's Python."""
        for python in (sys.executable, "/usr/bin/python3"):
            if os.path.exists(python) and run(python, "-c", "import libtorrent", check=False).returncode == 0:
                return python

    def missing(self, options):
        return None if self.python() else "the Python module libtorrent is not installed"

    def words(self, what, folder):
        return [self.python(), bittorrent.__file__, what, self.torrent, folder]

    def seeder(self, run):
        run.listening(run.at_server(self.words("seed", os.path.dirname(run.image.raw))), bittorrent.PORT)

    def client(self, run, index):
        run.at_client(index, self.words("leech", os.path.dirname(run.target(index))))


class Chain(Method):
    programs, push = ("nc", "tee"), True

    def missing(self, options):
        usage = run("nc", "-h", check=False) if shutil.which("nc") else None
        return super().missing(options) or (None if "OpenBSD" in usage.stderr else "nc is not OpenBSD's (netcat-openbsd)")

    def server(self, run):
        # From the last: a hop gives up silently if the next one does not listen yet.
        for index in reversed(run.clients):
            last = index == len(run.clients)
            onward = f"> {run.target(index)}" if last else f"| tee {run.target(index)} | nc -N {address(index + 1)} {CHAIN_PORT}"
            run.listening(run.at_client(index, f"nc -l {CHAIN_PORT} {onward}", shell=True), CHAIN_PORT)

    def begin(self, run):
        run.at_server(f"nc -N {address(1)} {CHAIN_PORT} < {run.image.raw}", shell=True)

    def complete(self, run, index):
        """Its copy has all bytes: it exits only when all hosts behind it have."""
        path = run.target(index)
        return os.path.exists(path) and os.path.getsize(path) == run.size


class Udpcast(Method):
    programs, push = ("udp-sender", "udp-receiver"), True

    def server(self, run):
        for index in run.clients:
            child = run.at_client(index, ["udp-receiver", "--nokbd", "--no-progress", "--interface", "e0",
                                          "--portbase", UDPCAST_PORT, "--file", run.target(index)])
            run.listening(child, UDPCAST_PORT, "udp")

    def begin(self, run):
        rate = f"{kbit(run.rate) * run.options.udpcast_share:.0f}k"
        run.at_server(["udp-sender", "--nokbd", "--no-progress", "--interface", "e0", "--portbase", UDPCAST_PORT,
                       "--min-receivers", len(run.clients), "--min-wait", 0, "--max-wait", 3, "--full-duplex",
                       # Otherwise it looks every two seconds only whether all receivers are there.
                       "--rexmit-hello-interval", 100,
                       "--max-bitrate", rate, "--file", run.image.raw])


class Rackweave(Method):
    command = ""

    def missing(self, options):
        if not shutil.which(options.rackweave):
            return f"{options.rackweave} is not there (build it, and name it with --rackweave)"
        for command in ("image pack", self.command):
            if run(options.rackweave, *command.split(), "--help", check=False).returncode:
                return f"{options.rackweave} has no command `{command}`"

    def complete(self, run, index):
        """Both commands rename a file to its name when all of its bytes are verified and written."""
        return os.path.exists(run.target(index))


class Image(Rackweave):
    command = "image serve"

    def __init__(self, leave=False, bpf=False, multicast=False):
        self.leave, self.bpf, self.multicast = leave, bpf, multicast

    def missing(self, options):
        return super().missing(options) or ("clang is not installed" if self.bpf and not shutil.which("clang") else None)

    def switch(self, run):
        """The program in the kernel of the switch, which redirects requests in place of the server."""
        ports = ",".join(f"p{index}" for index in run.clients)
        words = [run.options.rackweave, "image", "switch", "--bpf", "--ports", ports, "--server", address(0)]
        log = run.path("switch.log")
        child = run.testbed.start(None, words, log)
        wait(lambda: child.ended() or "ready" in open(log).read(), run.until, "the switch does not get ready")
        if child.ended():
            raise Failed("`image switch --bpf` has ended")

    def server(self, run):
        options = run.options
        if self.bpf:
            self.switch(run)
        packed = run.image.packed(options.rackweave, options.pack_args)
        words = [options.rackweave, "image", "serve", packed, "--listen", address(0), "--json"]
        more = options.serve_args.format(clients=len(run.clients)).split()
        more += ["--switch"] if self.bpf else []
        if self.multicast:
            # As for udpcast: a part of the link is left for requests and other hosts.
            rate = f"{kbit(run.rate) * options.udpcast_share:.0f} kbps"
            more += ["--multicast", MULTICAST_GROUP, "--rate", rate]
        run.listening(run.at_server(words + more, out=run.path("server.json")), IMAGE_PORT)

    def client(self, run, index):
        options = run.options
        words = [options.rackweave, "image", "fetch", IMAGE_NAME, "--from", address(0), "--to", run.target(index),
                 "--linger", "0 s" if self.leave else f"{options.linger:g} s", "--json"]
        run.at_client(index, words + options.fetch_args.split(), out=run.path(f"c{index}.json"))

    def details(self, run, index):
        """What the client says about its copy: chunks from each holder, and its own time."""
        for line in open(run.path(f"c{index}.json")):
            event = json.loads(line)
            if event.get("event") == "written":
                return event
        return {}


class Cast(Rackweave):
    command, push = "cast send", True

    def server(self, run):
        for index in run.clients:
            child = run.at_client(index, [run.options.rackweave, "cast", "receive", "--dir", os.path.dirname(run.target(index)),
                                          "--from", address(0), "--interface", "e0", "--once", "--quiet"])
            run.listening(child, CAST_PORT, "udp")

    def begin(self, run):
        to = ",".join(map(address, run.clients))
        run.at_server([run.options.rackweave, "cast", "send", run.image.raw, "--to", to, "--interface", "e0", "--quiet"])


METHODS = {
    "image": Image(),
    "image-leave": Image(leave=True),
    "image-bpf": Image(bpf=True),
    "image-multicast": Image(leave=True, multicast=True),
    "cast": Cast(),
    "http": Http(),
    "aria2": Aria2(leave=False),
    "aria2-leave": Aria2(leave=True),
    "libtorrent": Libtorrent(),
    "chain": Chain(),
    "udpcast": Udpcast(),
}


# --- the image


class ImageFile:
    """Random bytes, which compress to no less."""

    def __init__(self, folder, mib):
        self.folder = os.path.join(folder, f"{mib}")
        os.makedirs(self.folder)
        self.raw = os.path.join(self.folder, "image.bin")
        with open(self.raw, "wb") as out:
            for _ in range(mib):
                out.write(os.urandom(1 << 20))
        self.hash = sha256(self.raw)
        self.pieces = None

    def packed(self, rackweave, more):
        path = os.path.join(self.folder, "image.rwi")
        if not os.path.exists(path):
            run(rackweave, "image", "pack", self.raw, "--to", path, "--name", IMAGE_NAME, *more.split())
        return path

    def torrent(self, tracker):
        self.pieces = self.pieces or bittorrent.pieces_of(self.raw)
        return bittorrent.torrent(self.raw, self.pieces, tracker)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def sha256(path):
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


# --- measuring


def kbit(rate):
    found = re.fullmatch(r"([0-9.]+)(gbit|mbit|kbit)", rate)
    if not found:
        raise Failed(f"{rate} is not a rate (such as 200mbit, 1gbit)")
    return float(found[1]) * {"gbit": 1e6, "mbit": 1e3, "kbit": 1}[found[2]]


def ideal_s(size, rate):
    """Time of one copy over one link."""
    return size * 8 * FRAME / PAYLOAD / (kbit(rate) * 1000)


def machine_s():
    """Seconds of all processors since boot: user code at any priority, idle, stolen by the hypervisor, and all."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) / ticks for word in open("/proc/stat").readline().split()[1:9])
    return {"user": user + nice, "idle": idle + iowait, "steal": steal,
            "all": user + nice + system + idle + iowait + irq + softirq + steal}


def transfer(run, method, start_gap_s):
    """Starts clients, and returns when each started and completed. Ends early if a client exits without its copy."""
    begin = time.monotonic()
    method.begin(run)
    started = {index: begin for index in run.clients} if method.push else {}
    done, failed = {}, set()
    while len(done) + len(failed) < len(run.clients):
        for index in run.clients:
            if index not in started and time.monotonic() >= begin + (index - 1) * start_gap_s:
                started[index] = time.monotonic()
                method.client(run, index)
        for index in started.keys() - done.keys() - failed:
            # In this order: a client may complete and exit between the two.
            exited = run.exited(index)
            if method.complete(run, index):
                done[index] = time.monotonic()
            elif exited:
                failed.add(index)
        if time.monotonic() > run.until:
            break
        time.sleep(POLL_S)
    return begin, started, done


def once(name, options, image, case):
    method, (rate, mib, clients, start_gap_s) = METHODS[name], case
    folder = tempfile.mkdtemp(prefix=f"{name}-", dir=os.path.dirname(image.folder))
    load = os.getloadavg()[0]
    testbed = Testbed(clients, rate, options.congestion)
    try:
        one = Run(testbed, options, image, folder, clients, rate)
        try:
            method.server(one)
        except Failed:
            show_logs(name, folder, 0, clients)
            raise
        sent, machine, own = testbed.sent(), machine_s(), os.times().user
        begin, started, done = transfer(one, method, start_gap_s)
        sent = {key: value - sent[key] for key, value in testbed.sent().items()}
        machine = {key: value - machine[key] for key, value in machine_s().items()}
        own = os.times().user - own
        if method.push:
            # They may have the rest of a handshake to do; a client is complete by its bytes.
            until = time.monotonic() + 3
            while not all([one.exited(index) for index in done]) and time.monotonic() < until:
                time.sleep(POLL_S)
        end(testbed.children)
        right = [index for index in done if os.path.exists(one.target(index)) and sha256(one.target(index)) == image.hash]
        if options.verbose or len(right) < clients:
            show_logs(name, folder, len(right), clients)
        cpu = lambda children: sum(child.user_s + child.system_s for child in children)
        children = one.server_children + [child for index in one.clients for child in one.client_children[index]]
        ideal = ideal_s(one.size, rate)
        wall = (max(done.values()) if done else time.monotonic()) - begin
        return {
            "method": name, "rate": rate, "mib": mib, "clients": clients, "start_gap_s": start_gap_s, "ideal_s": ideal,
            "right": len(right), "completion_s": [done[index] - started[index] for index in sorted(done)], "makespan_s": wall,
            "copies": sent["interface_bytes"] / one.size, "sent": sent,
            "client_cpu_s": cpu(child for index in one.clients for child in one.client_children[index]) / clients,
            "server_cpu_s": cpu(one.server_children),
            "idle_share": machine["idle"] / machine["all"], "steal_share": machine["steal"] / machine["all"],
            "other_user_cpu_s": max(0.0, machine["user"] - own - sum(child.user_s for child in children)),
            "load_before": load, "clients_say": [method.details(one, index) for index in sorted(done)],
        }
    finally:
        testbed.remove()
        shutil.rmtree(folder, ignore_errors=True)


def show_logs(name, folder, right, clients):
    print(f"  {name}: {right} of {clients} copies are right", file=sys.stderr)
    for path in sorted(glob.glob(os.path.join(folder, "*.log")) + glob.glob(os.path.join(folder, "*.json"))):
        if text := open(path, errors="replace").read().strip():
            print(f"    {os.path.basename(path)}: {text[-400:]}", file=sys.stderr)


def row(runs):
    """Medians over the runs in which every client got the right bytes."""
    first, good = runs[0], [one for one in runs if one["right"] == one["clients"]]
    cells = {
        "link": first["rate"], "MiB": first["mib"], "clients": first["clients"], "starts": f"{first['start_gap_s']:g} s",
        "method": first["method"], "runs ok": f"{len(good)}/{len(runs)}",
    }
    median = lambda value: statistics.median(map(value, good))
    times = lambda pick: lambda one: pick(one["completion_s"]) / one["ideal_s"]
    last = [times(max)(one) for one in good]
    names = ("first", "median", "last (min to max)", "makespan s", "copies", "CPU s a client", "CPU s server", "idle", "others")
    if not good:
        return cells | {name: "-" for name in names}
    values = (
        f"{median(times(min)):.2f}", f"{median(times(statistics.median)):.2f}",
        f"{statistics.median(last):.2f} ({min(last):.2f} to {max(last):.2f})", f"{median(lambda one: one['makespan_s']):.2f}",
        f"{median(lambda one: one['copies']):.2f}", f"{median(lambda one: one['client_cpu_s']):.2f}",
        f"{median(lambda one: one['server_cpu_s']):.2f}", f"{100 * median(lambda one: one['idle_share']):.0f} %",
        f"{max(one['other_user_cpu_s'] / one['makespan_s'] for one in good):.2f}",
    )
    return cells | dict(zip(names, values))


NOTE = """
First, median, last: completion since the client's own start, in multiples of the time that one copy needs over one link (1448 of
1514 bytes). Starts: seconds between two clients' starts. Copies: bytes that left the server's interface (its counter, with the headers of a batch
of segments once) / bytes of the image. CPU: user and system time of the method's processes, without the kernel's work for packets;
making torrent or image, and the tracker, are not counted. Medians of the runs that are ok. Idle: of all processors; others: processors that
other programs had (user code), in the worst run.
"""


def show(rows, skipped, failed):
    if rows:
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + "---|" * len(rows[0]))
        for cells in rows:
            print("| " + " | ".join(map(str, cells.values())) + " |")
        print(NOTE)
    for name, why in skipped.items():
        print(f"{name}: skipped, {why}")
    for name, why in failed.items():
        print(f"{name}: failed, {why}")


def environment(options):
    packages = run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES, check=False).stdout if shutil.which("dpkg-query") else ""
    version = run(options.rackweave, "--version", check=False).stdout.strip() if shutil.which(options.rackweave) else None
    return {"arguments": sys.argv[1:], "kernel": platform.release(), "processors": os.cpu_count(), "congestion": options.congestion,
            "packages": packages.splitlines(), "rackweave": version, "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def cases(options):
    for link in options.links.split(","):
        rate, _, mib = link.partition(":")
        kbit(rate)
        for clients in map(int, options.clients.split(",")):
            for gap in map(float, options.starts.split(",")):
                yield rate, int(mib or 128), clients, gap


def measure(options, names, rows, results, skipped, failed):
    directory = tempfile.mkdtemp(prefix=f"{NAME}-{os.getpid()}-", dir=options.dir)
    image = None
    try:
        for case in list(cases(options)):
            if image is None or os.path.getsize(image.raw) != case[1] << 20:
                if image:
                    image.remove()
                image = ImageFile(directory, case[1])
            for name in names:
                if METHODS[name].push and case[3]:
                    skipped[f"{name} with starts {case[3]:g} s apart"] = "its clients can only start together"
                    continue
                runs = []
                for _ in range(options.runs):
                    try:
                        runs.append(once(name, options, image, case))
                    except Failed as why:
                        failed[f"{name} ({' '.join(map(str, case))})"] = str(why)
                        break
                if runs:
                    results.extend(runs)
                    rows.append(row(runs))
                    print("  " + "  ".join(f"{key}: {value}" for key, value in rows[-1].items()), file=sys.stderr)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--links", default="200mbit:128,1gbit:256", help="comma-separated RATE:MIB: rate of every link, size of the image (default %(default)s)")
    add("--clients", default="4,8", help="comma-separated numbers of clients (default %(default)s)")
    add("--starts", default="0", help="comma-separated seconds between two clients' starts (default 0: together)")
    add("--methods", default=",".join(METHODS), help="comma-separated, of: " + ", ".join(METHODS))
    add("--runs", type=int, default=1, help="of each method in each case (default 1)")
    add("--linger", type=float, default=60, help="seconds for which a client of `image` serves others after its copy is complete (default 60)")
    add("--congestion", default="cubic", help="TCP's congestion control in the namespaces (default cubic)")
    add("--udpcast-share", type=float, default=0.95, help="udpcast's rate, of the link's (default 0.95)")
    add("--rackweave", default=os.environ.get("RACKWEAVE", "rackweave"), help="the command (default: RACKWEAVE, or in PATH)")
    add("--pack-args", default="", help="more arguments of `image pack`, such as '--chunk-size 256KiB'")
    add("--serve-args", default="", help="more arguments of `image serve`, such as '--expect {clients}'")
    add("--fetch-args", default="", help="more arguments of `image fetch`")
    add("--timeout", type=float, default=180, help="seconds for one run (default 180)")
    add("--dir", default="/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir(), help="where files are put (default %(default)s)")
    add("--json", help="file for every run's figures")
    add("--verbose", action="store_true", help="shows the programs' output")
    add("--install", action="store_true", help=f"installs {', '.join(PACKAGES)} with apt-get, and ends")
    options = parser.parse_args()
    options.names = options.methods.split(",")
    unknown = [name for name in options.names if name not in METHODS]
    try:
        sizes_ok = all(1 <= clients <= 200 and mib > 0 and gap >= 0 for _, mib, clients, gap in cases(options))
    except (Failed, ValueError) as wrong:
        parser.error(str(wrong))
    if unknown or not sizes_ok or options.runs < 1:
        parser.error(f"no such method: {', '.join(unknown)}" if unknown else "1 to 200 clients, at least 1 MiB and 1 run")
    return options


def main():
    options = arguments()
    if os.geteuid():
        sys.exit("imaging.py makes network namespaces: run it as root")
    if options.install:
        words = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
        sys.exit(subprocess.run(words, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}).returncode)

    def stop(*_):
        # Once: what is made must be removed, whatever comes next.
        for number in stopping:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in stopping:
        signal.signal(number, stop)
    rows, results, skipped, failed, code = [], [], {}, {}, 0
    try:
        remove_leftovers(options.dir)
        missing = {name: METHODS[name].missing(options) for name in options.names}
        skipped.update({name: why for name, why in missing.items() if why})
        measure(options, [name for name in options.names if not missing[name]], rows, results, skipped, failed)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = 130
    except Failed as why:
        print(f"imaging.py: {why}", file=sys.stderr)
        code = 1
    show(rows, skipped, failed)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"environment": environment(options), "rows": rows, "runs": results, "skipped": skipped,
                       "failed": failed}, out, indent=1)
    wrong = any(one["right"] != one["clients"] for one in results)
    sys.exit(code or int(wrong or bool(failed)))


if __name__ == "__main__":
    main()
