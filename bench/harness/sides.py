# SPDX-License-Identifier: Apache-2.0
"""The sides that are measured: how a store of each is had, and the programs that run on it.

Every process started here leads a session of its own (in the sense of setsid), is waited for
within a bound, and is ended, with what is left of its session and nothing else, when the benchmark
is through or interrupted.
"""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .lines import EMBEDDED, JOINED, REFERENCE

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bench" / "programs"
REFERENCE_PYTHON = ROOT / "build" / "bench-reference" / "bin" / "python"
TQ_PYTHON = ROOT / ".venv" / "bin" / "python"


class Failed(Exception):
    """A side did not do what was asked of it; the text says what and where to read more."""


class Child:
    """A process that answers in JSON lines on its standard output."""

    def __init__(self, command, env, log_path):
        self._log = open(log_path, "w")  # noqa: SIM115  (closed in end)
        self.log_path = log_path
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            start_new_session=True,
        )
        self._pending = b""

    @property
    def session(self):
        return self._process.pid

    def say(self, order):
        try:
            self._process.stdin.write(order.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"ended early: {self._last_words()}") from None

    def hear(self, limit_s):
        """The next JSON line, or Failed once limit_s have passed or the process has ended."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise Failed(f"did not finish in {limit_s:g} s")
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise Failed(f"ended early: {self._last_words()}")
                self._pending += piece
        text, _, self._pending = self._pending.partition(b"\n")
        return json.loads(text)

    def end(self, limit_s=15):
        """Let it close by itself, then end whatever of its session is left."""
        if not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        end_session(self._process)
        self._process.stdout.close()
        self._log.close()

    def _last_words(self):
        self._log.flush()
        lines = Path(self.log_path).read_text(errors="replace").splitlines()
        spoken = (line.strip() for line in reversed(lines) if any(map(str.isalpha, line)))
        return next(spoken, "without a word")


def end_session(leader, patience_s=0.0):
    """End a process that leads its own session, and the session: asked first, then made to."""
    if patience_s > 0 and leader.poll() is None:
        leader.terminate()
        try:
            leader.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
    for pid in session_members(leader.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    leader.wait()


def session_members(session):
    """The live processes of a session, whatever groups they have made for themselves."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.getsid(int(entry)) == session:
                members.append(int(entry))
        except ProcessLookupError:
            continue
    return members


class Side:
    """What a line needs from a side; the base is tq embedded in the program."""

    name = EMBEDDED

    def __init__(self, python, log_folder):
        self.python = str(python)
        self._log_folder = log_folder

    def start(self):
        """Bring up what lasts for the whole benchmark."""

    def stop(self):
        """End what start brought up."""

    def recover(self):
        """Be fit for the next line after a program had to be ended by force."""

    def open(self, line, session):
        """Start the line's program; returns one that is ready to run."""
        return Opened(self._program(line, session, self.environment(), line.options))

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TQ_"))}
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def _program(self, line, session, env, options, conf=None):
        command = [self.python, str(PROGRAMS / f"{line.program}.py"), *options]
        if conf:
            command += ["--conf", json.dumps(conf)]
        child = Child(command, env, self._log_path(line, session, line.program))
        return self._ready(child, line)

    def _ready(self, child, line):
        try:
            child.ready = child.hear(line.ready_limit_s)
        except Failed as failure:
            child.end(limit_s=0)
            raise Failed(f"set-up {failure}") from None
        return child

    def _log_path(self, line, session, what):
        return self._log_folder / f"{line.name}.{session}.{self.name}.{what}.log"


class JoinedSide(Side):
    """tq in a process other than the program's: what a worker of a training sees."""

    name = JOINED

    def open(self, line, session):
        env = self.environment()
        host = self._ready(
            Child(
                [self.python, str(PROGRAMS / "host.py")],
                env,
                self._log_path(line, session, "host"),
            ),
            line,
        )
        options = line.options
        if line.needs_store_session:
            options += ("--store-session", str(host.session))
        env = self.environment() | {"TQ_ADDRESS": host.ready["address"]}
        try:
            return Opened(self._program(line, session, env, options), host)
        except Failed:
            host.end()
            raise


class ReferenceSide(Side):
    """The reference, with a Ray of its own; its stores live in Ray actors."""

    name = REFERENCE

    def start(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        # Ray's sockets live below this folder, and their paths must stay short.
        self._folder = tempfile.mkdtemp(prefix="tqb-", dir="/tmp")
        log_path = self._log_folder / "ray.log"
        with open(log_path, "w") as log:
            self._ray = subprocess.Popen(
                [
                    str(Path(self.python).with_name("ray")),
                    "start",
                    "--head",
                    "--block",
                    "--num-cpus=32",
                    "--include-dashboard=false",
                    "--disable-usage-stats",
                    f"--port={self._port}",
                    f"--temp-dir={self._folder}",
                ],
                env=self._ray_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 90
        while "--block" not in log_path.read_text(errors="replace"):
            if self._ray.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Failed(f"Ray did not start; see {log_path}")
            time.sleep(0.1)

    def stop(self):
        end_session(self._ray, patience_s=20)
        shutil.rmtree(self._folder, ignore_errors=True)

    def recover(self):
        # Its named actors outlive a killed program by a while, and would be joined by the next.
        self.stop()
        self.start()

    def open(self, line, session):
        env = self.environment()
        options = line.options + line.reference_options
        if line.needs_store_session:
            options += ("--store-session", str(self._ray.pid))
        return Opened(self._program(line, session, env, options, line.reference_conf))

    def environment(self):
        return self._ray_environment() | {"RAY_ADDRESS": f"127.0.0.1:{self._port}"}

    def _ray_environment(self):
        # It asks for the number of cores at most, and warns on every request otherwise.
        threads = str(min(8, os.cpu_count() or 1))
        return super().environment() | {
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TQ_NUM_THREADS": threads,
        }


class Opened:
    """A line's program on one side, with the store's host where that is another process."""

    def __init__(self, program, host=None):
        self._program = program
        self._host = host

    @property
    def ready_s(self):
        return self._program.ready["ready_s"]

    def run(self, limit_s):
        self._program.say("run")
        return self._program.hear(limit_s)["metrics"]

    def end(self):
        self._program.end()
        if self._host is not None:
            self._host.end()


SIDE_CLASSES = {side.name: side for side in (ReferenceSide, Side, JoinedSide)}
