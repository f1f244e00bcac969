#!/usr/bin/env python3
"""Spark's broadcast variables through Rackweave's casts beside Spark's own way (TorrentBroadcast), by turns, in network namespaces.

The driver and each of three executors are a host with one shaped link. Each round sends another value of random bytes and ends
when a task at every executor has used it; then every executor's value is compared by SHA-256. Prints one Markdown table.

  bench/spark.py --rackweave target/release/rackweave --links 200mbit:40,1gbit:100 --runs 3

Needs root, iproute2, Java 17 or later and Maven.
"""
import argparse, os, pathlib, re, shutil, statistics, subprocess, sys, tempfile, time

sys.dont_write_bytecode = True  # No __pycache__ beside the script.
from namespaces import Failed, Testbed, address, end, remove_leftovers, wait

EXECUTORS, MASTER_PORT = 3, 7077
HERE = pathlib.Path(__file__).resolve().parent.parent / "integrations" / "spark"
OPENS = [f"java.base/{name}" for name in ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar")]


def build(work):
    """Returns the classpath of an application. The executors' is the folder home/jars."""
    classpath = work / "classpath"
    subprocess.run(["mvn", "-q", "-B", "test-compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"],
                   cwd=HERE, check=True)
    jars = work / "home" / "jars"
    jars.mkdir(parents=True)
    for jar in classpath.read_text().strip().split(":"):
        (jars / os.path.basename(jar)).symlink_to(jar)
    return f"{HERE}/target/classes:{HERE}/target/test-classes:{jars}/*"


class Cluster:
    """Spark's own cluster manager: a master beside the driver, a worker at each host of an executor."""

    def __init__(self, testbed, work, classpath):
        self.testbed, self.work, self.classpath = testbed, work, classpath
        self.url = f"spark://{address(0)}:{MASTER_PORT}"
        master = self.java(0, "org.apache.spark.deploy.master.Master", "--host", address(0), "--port", MASTER_PORT)
        wait(lambda: master.listens(MASTER_PORT), time.monotonic() + 120, "Spark's master does not start")
        for host in range(1, EXECUTORS + 1):
            self.java(host, "org.apache.spark.deploy.worker.Worker", "--host", address(host), "--cores", 1, "--memory", "1g",
                      "--work-dir", work / f"worker{host}", self.url)

    def java(self, host, name, *words, log="spark.log", out=None):
        environment = [f"SPARK_HOME={self.work}/home", "SPARK_SCALA_VERSION=2.12", f"SPARK_LOCAL_IP={address(host)}",
                       f"SPARK_LOCAL_DIRS={self.work}/local{host}"]
        opens = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
        return self.testbed.start(host, ["env", *environment, "java", "-Xmx1g", *opens, "-cp", self.classpath, name, *words],
                                  self.work / log, out=out)

    def run(self, settings):
        """One application; returns the times of its rounds."""
        out, log = self.work / "out", self.work / "log"
        out.write_text("")
        driver = self.java(0, "org.rackweave.spark.RunCasts", "compare", f"spark.master={self.url}", "spark.ui.enabled=false",
                           f"spark.driver.host={address(0)}", "spark.executor.memory=700m", "spark.locality.wait=0",
                           f"spark.executor.extraClassPath={HERE}/target/classes:{HERE}/target/test-classes", *settings,
                           log="log", out=out)
        wait(driver.ended, time.monotonic() + 600, "the application does not end")
        if driver.code:
            raise Failed(f"the application failed:\n{out.read_text()}{log.read_text()[-3000:]}")
        return [tuple(map(float, found)) for found in re.findall(r"^round: (\S+) (\S+)$", out.read_text(), re.MULTILINE)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rackweave", default="rackweave", help="the program")
    parser.add_argument("--links", default="200mbit:40", help="rates and MB of a value (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="turns of both ways")
    parser.add_argument("--rounds", type=int, default=3, help="values of an application")
    options = parser.parse_args()
    rackweave = shutil.which(options.rackweave)
    if not rackweave:
        parser.error(f"there is no program {options.rackweave}")
    remove_leftovers(tempfile.gettempdir())
    work = pathlib.Path(tempfile.mkdtemp())
    ways = {
        "TorrentBroadcast": [],
        "cast": ["spark.plugins=org.rackweave.spark.RackweavePlugin", f"spark.rackweave.command={os.path.abspath(rackweave)}",
                 "spark.rackweave.send.arguments=--interface e0", "spark.rackweave.receive.arguments=--interface e0"],
    }
    try:
        classpath = build(work)
        columns = ["link", "MB", "", "s until all have used it: median (least, most)", "of it `broadcast`", "copies from the driver"]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for link in options.links.split(","):
            rate, megabytes = link.split(":")
            size = int(megabytes) * 1_000_000
            testbed = Testbed(EXECUTORS, rate, "cubic")
            try:
                cluster = Cluster(testbed, work, classpath)
                rounds, sent = {way: [] for way in ways}, {way: [] for way in ways}
                for _ in range(options.runs):
                    for way, settings in ways.items():
                        before = testbed.sent()["wire_bytes"]
                        rounds[way] += cluster.run([*settings, f"test.bytes={size}", f"test.rounds={options.rounds}"])
                        sent[way].append((testbed.sent()["wire_bytes"] - before) / options.rounds / size)
                for way, times in rounds.items():
                    cast, whole = ([row[column] for row in times] for column in (0, 1))
                    print(f"| {rate} | {megabytes} | {way} | {statistics.median(whole):.2f} ({min(whole):.2f}, {max(whole):.2f}) "
                          f"| {statistics.median(cast):.2f} | {statistics.median(sent[way]):.2f} |", flush=True)
            finally:
                testbed.remove()
    except Failed as error:
        sys.exit(f"error: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
