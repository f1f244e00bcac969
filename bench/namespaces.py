"""Processes in network namespaces of this machine: hosts with one shaped link each, around a bridge. Used by imaging.py."""
import glob, json, os, re, shutil, signal, subprocess, time

# Namespaces and folders are called NAME-PID-..., so that the next run can remove what a killed one has left.
NAME = "rwim"
POLL_S = 0.004


class Failed(Exception):
    """A reason to give a run up, as a sentence for the user."""


def run(*words, check=True):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if check and done.returncode:
        raise Failed(f"`{' '.join(map(str, words))}`: {done.stderr.strip() or done.stdout.strip()}")
    return done


def wait(condition, until, message):
    while not condition():
        if time.monotonic() > until:
            raise Failed(message)
        time.sleep(POLL_S)


class Child:
    """A process in a namespace. Its processor time includes that of its own children, if it has waited for them."""

    def __init__(self, space, words, log, out=None, shell=False):
        words = ["sh", "-c", words] if shell else list(map(str, words))
        self.space, self.code, self.user_s, self.system_s = space, None, 0.0, 0.0
        with open(log, "ab") as errors, open(out or log, "ab") as output:
            command = ["ip", "netns", "exec", space] + words
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
        self.pid = self.process.pid

    def ended(self):
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
                self.user_s, self.system_s = usage.ru_utime, usage.ru_stime
        return self.code is not None

    def signal(self, number):
        if not self.ended():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def listens(self, port, kind="tcp"):
        """Whether a socket in its namespace listens on this port. False until `ip` has entered the namespace."""
        try:
            if os.stat(f"/proc/{self.pid}/ns/net").st_ino != os.stat(f"/run/netns/{self.space}").st_ino:
                return False
            with open(f"/proc/{self.pid}/net/{kind}") as table:
                rows = [line.split() for line in table][1:]
        except OSError:
            return False
        state = "0A" if kind == "tcp" else "07"
        return any(row[1].endswith(f":{port:04X}") and row[3] == state for row in rows)


def end(children):
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            child.signal(number)
        until = time.monotonic() + 3
        while not all([child.ended() for child in children]) and time.monotonic() < until:
            time.sleep(POLL_S)


def remove_namespaces(spaces):
    for space in spaces:
        for pid in run("ip", "netns", "pids", space, check=False).stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        run("ip", "netns", "del", space, check=False)


def remove_leftovers(directory):
    """Namespaces and folders of runs whose process is gone."""
    gone = lambda name: (found := re.match(rf"{NAME}-(\d+)-", name)) and not os.path.exists(f"/proc/{found[1]}")
    spaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    remove_namespaces(filter(gone, spaces))
    for path in glob.glob(os.path.join(directory, f"{NAME}-*")):
        if gone(os.path.basename(path)):
            shutil.rmtree(path, ignore_errors=True)


def address(index):
    """0 is the server."""
    return f"10.99.0.{10 + index}"


class Testbed:
    """The namespaces and their links."""

    def __init__(self, clients, rate, congestion):
        self.prefix, self.spaces, self.children = f"{NAME}-{os.getpid()}-", [], []
        try:
            self._make(clients, rate, congestion)
        except BaseException:
            self.remove()
            raise

    def space(self, index):
        """None is the switch, whose port to host N is pN."""
        return f"{self.prefix}sw" if index is None else f"{self.prefix}h{index}"

    def _add(self, space):
        # Noted first: a signal may come before the command has returned.
        self.spaces.append(space)
        run("ip", "netns", "add", space)
        # Without IPv6 the links are silent until a method uses them.
        no_ipv6 = "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ -e $f ] && echo 1 > $f; done; true"
        run("ip", "netns", "exec", space, "sh", "-c", no_ipv6)

    def _make(self, clients, rate, congestion):
        switch = self.space(None)
        self._add(switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", 0)
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for index in range(clients + 1):
            space, port = self.space(index), f"p{index}"
            self._add(space)
            run("ip", "link", "add", port, "netns", switch, "type", "veth", "peer", "name", "e0", "netns", space)
            run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            # With a broadcast address, without which udpcast waits for ever.
            run("ip", "-n", space, "addr", "add", address(index) + "/24", "brd", "+", "dev", "e0")
            for interface in ("lo", "e0"):
                run("ip", "-n", space, "link", "set", interface, "up")
            run("ip", "-n", space, "route", "add", "224.0.0.0/4", "dev", "e0")
            # By the route, because a namespace other than the first one may not change its default to a restricted one.
            run("ip", "-n", space, "route", "replace", "10.99.0.0/24", "dev", "e0", "src", address(index),
                "congctl", congestion)
            for where, interface in ((space, "e0"), (switch, port)):
                run("tc", "-n", where, "qdisc", "add", "dev", interface, "root",
                    "tbf", "rate", rate, "burst", "128kb", "latency", "20ms")

    def start(self, index, words, log, **more):
        child = Child(self.space(index), words, log, **more)
        self.children.append(child)
        return child

    def sent(self):
        """What has left the server's interface: bytes by the interface's counter, which counts the headers of a batch of
        segments once, and bytes and drops of the qdisc, which counts every frame."""
        link = json.loads(run("ip", "-n", self.space(0), "-s", "-j", "link", "show", "e0").stdout)[0]["stats64"]
        qdisc = json.loads(run("tc", "-n", self.space(0), "-s", "-j", "qdisc", "show", "dev", "e0").stdout)[0]
        return {"interface_bytes": link["tx"]["bytes"], "wire_bytes": qdisc["bytes"], "drops": qdisc["drops"]}

    def remove(self):
        end(self.children)
        remove_namespaces(self.spaces)
        self.children, self.spaces = [], []
