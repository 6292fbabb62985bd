"""Refstream beside other upload tools: the same stores, the same files, in one run.

Each tool uploads a set of files to a store that runs in processes of its own; all of them take turns, `--rounds` times, and medians are
reported. A run counts from the start of the command to its end, reading the files included (they are in the page cache for all), and
for Refstream to the durable ack of each record. CPU seconds of the client are those of the command and its children as the kernel
counts them (wait4); those of the server are read from /proc, of every process that serves: for Refstream the broker too.

Options of the tools are those that make them fast here: they may assume that nothing is at the destination and need not look
afterwards. Refstream runs with its defaults. A run during which the machine stood still is repeated. After each run of small files what arrived is counted; a run that is not complete ends
the comparison.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ACCESS_KEY, SECRET_KEY = "admin", "secretsecret"
BUCKET = "compare"
TOOL_SECONDS = 900
STARTS_WITHIN = 60
# How often a run is looked at, and for how long it may not have been: then the machine, or somebody on it, stood still.
LOOK_SECONDS = 0.005
STOOD_STILL = 1.0
ATTEMPTS = 10


@dataclasses.dataclass
class Files:
    """Files to upload: how they are called in the table, where they are, and how many."""

    name: str
    path: pathlib.Path
    count: int
    size: int

    @property
    def large(self):
        return self.count == 1


@dataclasses.dataclass
class Run:
    """What one command took."""

    wall: float
    client_cpu: float
    server_cpu: float
    memory: int


def free_port():
    """A port that nobody uses, nor the one 10,000 above it, where SeaweedFS' gRPC goes."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", random.randint(20_000, 50_000)))
            port = one.getsockname()[1]
            two.bind(("127.0.0.1", port + 10_000))
            return port


def cpu_seconds(pid):
    """User and system time of all threads of a process, in hundredths of a second."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A process that serves, in a folder of its own."""

    def __init__(self, command, environment, log, stdout=subprocess.STDOUT):
        self.log = log
        with open(log, "wb") as output:
            out, err = (output, subprocess.STDOUT) if stdout == subprocess.STDOUT else (stdout, output)
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=out, stderr=err)

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Weed(Server):
    """SeaweedFS: master, volume server, filer and S3 gateway in one process."""

    def __init__(self, tools, folder):
        self.master, volume, self.filer, s3, admin = (free_port() for _ in range(5))
        ports = [f"-{name}.port={port}" for name, port in
                 [("master", self.master), ("volume", volume), ("filer", self.filer), ("s3", s3), ("admin", admin)]]
        data = folder / "weed"
        data.mkdir()
        command = [tools / "bin/weed", "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                   "-master.telemetry=false", "-s3.port.lance=0", "-s3.port.iceberg=0", "-webdav=false", "-admin.ui=false",
                   "-volume.max=200", "-master.volumeSizeLimitMB=1024", f"-bucket={BUCKET}",
                   f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock", *ports]
        environment = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "HOME": str(folder)}
        super().__init__(command, environment, folder / "weed.log")
        self.s3 = f"http://127.0.0.1:{s3}"
        self.bucket = BUCKET
        self.keys = (ACCESS_KEY, SECRET_KEY)
        until(lambda: answers(f"http://127.0.0.1:{self.master}/dir/assign"), self)
        until(lambda: answers(f"http://127.0.0.1:{self.filer}/buckets/{BUCKET}/"), self)


class Refstream(Server):
    """`refstream up`: a broker, and without `--store` the embedded store."""

    def __init__(self, binary, folder, name, store=None, keys=None):
        any_port = "127.0.0.1:0"
        command = [binary, "--output", "json", "up", "--data", folder / name, "--listen", any_port, "--http", any_port,
                   "--s3", any_port]
        command += ["--store", store] if store else []
        environment = {"AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]} if keys else {}
        super().__init__(command, environment, folder / f"{name}.log", subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{name} does not start: {self.log.read_text()}")
        said = json.loads(line)
        self.grpc = said["grpc"]
        if said.get("s3"):
            self.s3, self.bucket = said["s3"]["endpoint"], said["s3"]["bucket"]
            self.keys = (said["s3"]["access_key"], said["s3"]["secret_key"])


def answers(url):
    with contextlib.suppress(OSError):
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200 and b'"error"' not in answer.read(200)
    return False


def until(ready, server):
    end = time.monotonic() + STARTS_WITHIN
    while not ready():
        if server.process.poll() is not None or time.monotonic() > end:
            sys.exit(f"it does not start: {server.log.read_text()[-2000:]}")
        time.sleep(0.1)


class Compare:
    """All measurements of one store."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.bin = options.tools / "bin"
        self.number = 0

    def measured(self, command, environment, servers):
        """Runs a command to its end; fails when it does. None: the machine stood still meanwhile."""
        os.sync()
        before = sum(server.cpu() for server in servers)
        log = self.folder / "tool.log"
        start = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen([str(part) for part in command], env={**os.environ, "HOME": str(self.folder), **environment},
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            ended, looked, stood = 0, start, False
            while not ended:
                time.sleep(LOOK_SECONDS)
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                now = time.monotonic()
                stood, looked = stood or now - looked > STOOD_STILL, now
                if now - start > TOOL_SECONDS:
                    process.kill()
            process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        if stood:
            return None
        if process.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}: {log.read_text()[-2000:]}")
        server = sum(server.cpu() for server in servers) - before
        return Run(wall, usage.ru_utime + usage.ru_stime, server, usage.ru_maxrss << 10)

    def prefix(self, tool):
        self.number += 1
        return f"{tool}-{self.number}"

    def s3_tools(self, store):
        """The tools that speak S3."""
        environment = {"AWS_ACCESS_KEY_ID": store.keys[0], "AWS_SECRET_ACCESS_KEY": store.keys[1], "AWS_REGION": "us-east-1",
                       "AWS_CONFIG_FILE": str(self.folder / "aws.config"), "AWS_EC2_METADATA_DISABLED": "true",
                       "RCLONE_CONFIG": "", "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
                       "RCLONE_CONFIG_S_ENDPOINT": store.s3, "RCLONE_CONFIG_S_ENV_AUTH": "true", "RCLONE_CONFIG_S_REGION": "us-east-1"}
        (self.folder / "aws.config").write_text(
            "[default]\nrequest_checksum_calculation = when_required\ns3 =\n  max_concurrent_requests = 20\n  addressing_style = path\n")

        def aws(files, prefix):
            to = f"s3://{store.bucket}/{prefix}/"
            how = [] if files.large else ["--recursive"]
            return [self.bin / "aws", "--endpoint-url", store.s3, "s3", "cp", files.path, to, "--only-show-errors", *how]

        def rclone(files, prefix):
            how = ["--transfers", "32", "--no-check-dest", "--s3-no-head", "--s3-no-check-bucket", "--s3-upload-concurrency", "8"]
            return [self.bin / "rclone", "copy", files.path, f"s:{store.bucket}/{prefix}", *how]

        def s5cmd(files, prefix):
            to = f"s3://{store.bucket}/{prefix}/"
            source = files.path if files.large else f"{files.path}/"
            return [self.bin / "s5cmd", "--endpoint-url", store.s3, "--log", "error", "cp", source, to]

        def arrived(prefix):
            command = [self.bin / "rclone", "size", "--json", "--s3-list-version", "2", f"s:{store.bucket}/{prefix}"]
            said = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
            return json.loads(said.stdout)["count"]

        return [("aws s3 cp", aws, environment, arrived), ("rclone copy", rclone, environment, arrived),
                ("s5cmd cp", s5cmd, environment, arrived)]

    def weed_tools(self, weed):
        """SeaweedFS' own tools."""

        def copy(files, prefix):
            return [self.bin / "weed", "filer.copy", "-c", "16", files.path, f"http://127.0.0.1:{weed.filer}/{prefix}/"]

        def upload(files, _):
            what = [files.path] if files.large else [f"-dir={files.path}"]
            return [self.bin / "weed", "upload", f"-master=127.0.0.1:{weed.master}", *what]

        def uploaded(_):
            return (self.folder / "tool.log").read_text().count('"fid"')

        return [("weed filer.copy", copy, {}, None), ("weed upload", upload, {}, uploaded)]

    def refstream(self, up, keys):
        environment = {"REFSTREAM_ENDPOINT": up.grpc}
        if keys:
            environment |= {"AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]}

        def topic(prefix):
            command = [self.options.refstream, "topic", "create", prefix]
            subprocess.run(command, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)

        def backfill(files, prefix):
            topic(prefix)
            return [self.options.refstream, "backfill", prefix, files.path, "--job-dir", self.folder / "jobs"]

        def acked(prefix):
            command = [self.options.refstream, "--output", "json", "topic", "describe", prefix]
            said = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
            return sum(partition["latest"] for partition in json.loads(said.stdout)["offsets"])

        return [("refstream backfill", backfill, environment, acked)]

    def rows(self, where, files, tools, servers):
        """Measures all tools in turns, and makes the table's rows."""
        runs = {name: [] for name, *_ in tools}
        for turn in range(self.options.rounds):
            for name, command, environment, arrived in tools:
                for _ in range(ATTEMPTS):
                    prefix = self.prefix(name.split()[0])
                    run = self.measured(command(files, prefix), environment, servers(name))
                    if run:
                        break
                    print(f"{where}, {files.name}, {name}: the machine stood still; once more", file=sys.stderr)
                else:
                    sys.exit("the machine stood still again and again: nothing can be measured on it")
                print(f"{where}, {files.name}, {name}: {run.wall:.2f} s", file=sys.stderr)
                runs[name].append(run)
                if arrived and not files.large and (count := arrived(prefix)) != files.count:
                    sys.exit(f"{name} stored {count} of {files.count} files")
        return [Row(where, files, name, runs[name]) for name, *_ in tools]


@dataclasses.dataclass
class Row:
    """One tool at one store with one set of files: medians."""

    where: str
    files: Files
    tool: str
    runs: list

    def middle(self, field):
        return statistics.median(getattr(run, field) for run in self.runs)


def generate(folder):
    """4 KiB files and one of 1 GiB, of random bytes."""
    source = random.Random(7)
    small = folder / "small"
    for number in range(5_000):
        path = small / f"{number // 500:02}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.randbytes(4 << 10))
    large = folder / "large.bin"
    with open(large, "wb") as file:
        for _ in range(1 << 10):
            file.write(source.randbytes(1 << 20))
    return small, large


def found(name, path):
    """Counts files, and reads them, so that they are in memory for every tool."""
    paths = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    size = 0
    for one in paths:
        with open(one, "rb") as file:
            while piece := file.read(1 << 20):
                size += len(piece)
    return Files(name, path, len(paths), size)


def size(count):
    for unit in ["B", "KiB", "MiB", "GiB"]:
        if count < 1_024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024


def markdown(rows, options):
    """The table, and how Refstream compares with the best of the others."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    lines = [f"- {os.cpu_count()} cores ({model}), Linux {os.uname().release}, {options.rounds} rounds, medians", "",
             "| store | files | tool | wall | files/s | MiB/s | client CPU | server CPU | client memory |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        wall, files = row.middle("wall"), row.files
        lines.append(f"| {row.where} | {files.name} | {row.tool} | {wall:.2f} s | {files.count / wall:.0f} | "
                     f"{files.size / wall / (1 << 20):.0f} | {row.middle('client_cpu'):.2f} s | {row.middle('server_cpu'):.2f} s | "
                     f"{size(row.middle('memory'))} |")
    lines += ["", "| store | files | figure | measured | target | |", "|---|---|---|---|---|---|"]
    for where, name in dict.fromkeys((row.where, row.files.name) for row in rows):
        group = [row for row in rows if (row.where, row.files.name) == (where, name)]
        ours = [row for row in group if row.tool.startswith("refstream")]
        others = [row for row in group if not row.tool.startswith("refstream")]
        if not ours or not others:
            continue
        ours = ours[0]
        best = min(others, key=lambda row: row.middle("wall"))
        ratio = best.middle("wall") / ours.middle("wall")
        if ours.files.large:
            wall = 1 / ratio
            thrifty = min(others, key=lambda row: row.middle("client_cpu"))
            cpu = ours.middle("client_cpu") / best.middle("client_cpu")
            lines.append(f"| {where} | {name} | wall / {best.tool} | {wall:.2f} | <= 1.10 | {'met' if wall <= 1.1 else 'missed'} |")
            lines.append(f"| {where} | {name} | client CPU / {best.tool} (the fastest) | {cpu:.2f} | <= 1.00 | "
                         f"{'met' if cpu <= 1 else 'missed'} |")
            if thrifty is not best:
                cpu = ours.middle("client_cpu") / thrifty.middle("client_cpu")
                lines.append(f"| {where} | {name} | client CPU / {thrifty.tool} (the most thrifty) | {cpu:.2f} | | |")
        else:
            lines.append(f"| {where} | {name} | files/s / {best.tool} | {ratio:.1f} | >= 10 | {'met' if ratio >= 10 else 'missed'} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="benches/compare/run", description="Refstream beside other upload tools")
    parser.add_argument("--tools", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--refstream", type=pathlib.Path, default=pathlib.Path("target/release/refstream"),
                        help="the binary to measure [default: target/release/refstream]")
    parser.add_argument("--store", action="append", choices=["embedded", "gateway", "native"], help="only this store; may repeat")
    parser.add_argument("--files", action="append", choices=["icons", "small", "large"], help="only these files; may repeat")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each tool [default: 3]")
    parser.add_argument("--folder", type=pathlib.Path, help="where data lies while measuring [default: the system's temporary folder]")
    parser.add_argument("--only", action="append", help="only tools whose name contains this; may repeat")
    options = parser.parse_args()
    options.refstream = options.refstream.absolute()
    if not options.refstream.is_file():
        sys.exit(f"{options.refstream} does not exist: run cargo build --release -p refstream-cli first")
    stores = options.store or ["embedded", "gateway", "native"]
    kinds = options.files or ["icons", "small", "large"]
    with tempfile.TemporaryDirectory(prefix="refstream-compare", dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        small, large = generate(folder)
        everything = {"icons": ("12,060 icons", options.tools / "icons/package"), "small": ("5,000 files of 4 KiB", small),
                      "large": ("one file of 1 GiB", large)}
        rows = []
        for store in stores:
            for kind in kinds:
                rows += measure(options, folder, store, found(*everything[kind]))
    print(markdown(rows, options))


def measure(options, folder, store, files):
    """One store with one set of files, both of them fresh."""
    with tempfile.TemporaryDirectory(prefix=f"{store}-", dir=folder) as own, contextlib.ExitStack() as stack:
        own = pathlib.Path(own)
        compare = Compare(options, own)

        def start(make):
            server = make()
            stack.callback(server.stop)
            return server

        if store == "embedded":
            up = start(lambda: Refstream(options.refstream, own, "up"))
            tools = compare.s3_tools(up) + compare.refstream(up, up.keys)
            servers = lambda _: [up]
        else:
            weed = start(lambda: Weed(options.tools, own))
            if store == "gateway":
                at = f"s3://{BUCKET}/refstream?endpoint={weed.s3}"
                tools = compare.s3_tools(weed)
            else:
                at = f"seaweedfs://127.0.0.1:{weed.master}"
                tools = compare.weed_tools(weed)
            up = start(lambda: Refstream(options.refstream, own, "up", at, weed.keys))
            tools += compare.refstream(up, weed.keys if store == "gateway" else None)
            servers = lambda name: [weed, up] if name.startswith("refstream") else [weed]
        if options.only:
            tools = [tool for tool in tools if any(wanted in tool[0] for wanted in options.only)]
        names = {"embedded": "embedded", "gateway": "SeaweedFS, S3 gateway", "native": "SeaweedFS, natively"}
        return compare.rows(names[store], files, tools, servers)


if __name__ == "__main__":
    main()
