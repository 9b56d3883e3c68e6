#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store whose processes are killed and stopped at random, under clients that verify everything.

usage: chaos.py [--minutes N] [--clients N] [--units N] [--seed N] [--build FOLDER] [--keep FOLDER]

A controller, units and clients, each a process. The seed chooses who is struck when, and how: SIGKILL,
after which the harness starts another in its place, or SIGSTOP for a while. The clients record what
they do (chaos_client.c), the harness what it did to them; in the end everything is healed, an auditor
reads and takes all that is left, and tests/oracle judges.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "oracle")]

# What befalls whom: weight, and how long it may be down or stopped, in seconds.
STRIKES = {
    ("kill", "client"): (30, 0.2),
    ("stop", "client"): (22, 8),
    ("kill", "unit"): (16, 3),
    ("stop", "unit"): (14, 13),
    ("stop", "controller"): (12, 4),
    ("kill", "controller"): (4, 2),
}


@dataclass
class Verdict:
    """What came of it."""

    strikes: Counter
    counts: Counter
    broken: list
    ops: int
    seconds: float
    folder: Path

    def __str__(self) -> str:
        struck = ", ".join(f"{how} {who} {n}" for (how, who), n in sorted(self.strikes.items()))
        counted = ", ".join(f"{word} {n}" for word, n in sorted(self.counts.items()))
        state = f"{len(self.broken)} rules broken" if self.broken else "the history is right"
        return (
            f"{self.seconds:.0f} s, {self.ops} operations; strikes {sum(self.strikes.values())}: "
            f"{struck}\n{counted}\n{state}"
        )


class Victim:
    """A process that may be struck, and what is in its place now."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.number = number
        self.lives = 0
        self.process = None  # a Daemon, or a Popen
        self.is_stopped = False

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def name(self) -> str:
        return f"{self.kind}{self.number}.{self.lives}"


class Chaos:
    def __init__(self, seed, seconds, clients=16, units=3, folder=None, rest_s=(0.2, 1.6)):
        self.client_program = os.environ["TQ_TEST_CHAOS_CLIENT"]
        self.folder = Path(folder or tempfile.mkdtemp(prefix="tqc-"))
        self.folder.mkdir(exist_ok=True)
        self.seed, self.seconds, self.rest_s = seed, seconds, rest_s
        self.rng = random.Random(seed)
        self.transport = self.rng.choice(["ipc", "tcp"])
        self.controller = Victim("controller", 0)
        self.units = [Victim("unit", i) for i in range(units)]
        self.clients = [Victim("client", i) for i in range(clients)]
        self.everybody = [self.controller, *self.units, *self.clients]
        self.strikes: Counter = Counter()
        self.due: list = []  # (when, number, what)
        self.numbers = 0
        self.address = None
        self.unit_address: dict[int, str] = {}
        self.unit_ids: dict[str, int] = {}
        self.log = (self.folder / "harness.jsonl").open("w", buffering=1)

    # ---- what happened -------------------------------------------------------------------------

    def note(self, event, **more) -> None:
        print(json.dumps({"event": event, "t": time.monotonic_ns(), **more}), file=self.log)

    # ---- beginning -----------------------------------------------------------------------------

    def start(self, victim) -> None:
        victim.lives += 1
        victim.is_stopped = False
        if victim is self.controller:
            self._start_controller()
        elif victim.kind == "unit":
            self._start_unit(victim)
        else:
            self._start_client(victim)

    def _start_controller(self) -> None:
        from procs import Daemon

        listen = self.address.partition("#")[0] if self.address else None
        if listen is None:
            listen = self._place("c", 2)
        self.controller.process = Daemon(
            self.folder, role="controller", name="controller", controller_listen=listen
        )
        self.address = self.controller.process.address.partition("#")[0]
        self.unit_ids = {}

    def _place(self, name, number) -> str:
        """Where nobody else listens, also while the daemon of that place is dead: connections come
        from ports of 127.0.0.1, any of which a dead daemon may have had."""
        if self.transport == "ipc":
            return f"ipc://{self.folder}/{name}"
        return f"tcp://127.0.0.{number}:*"

    def _start_unit(self, unit) -> None:
        from procs import Daemon

        listen = self.unit_address.get(unit.number)
        if listen is None:
            listen = self._place(f"u{unit.number}", 3 + unit.number)
        unit.process = Daemon(
            self.folder,
            role="unit",
            name=f"unit{unit.number}",
            unit_controller=self.address,
            unit_listen=listen,
            unit_capacity="192MiB",
        )
        self.unit_address[unit.number] = unit.process.address.partition("#")[0]

    def _start_client(self, client, mode="work") -> None:
        from procs import ENV

        with (self.folder / f"{client.name}.log").open("wb") as log:
            client.process = subprocess.Popen(
                [
                    self.client_program,
                    mode,
                    self.address,
                    client.name,
                    str(self.rng.getrandbits(60)),
                    self.folder / f"{client.name}.jsonl",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=ENV,
            )

    # ---- striking ------------------------------------------------------------------------------

    def later(self, seconds, what) -> None:
        self.numbers += 1
        heapq.heappush(self.due, (time.monotonic() + seconds, self.numbers, what))

    def strike(self, how, kind) -> None:
        """Somebody of the kind who lives and runs; nobody, if there is none."""
        victims = [v for v in self.everybody if v.kind == kind and v.is_up and not v.is_stopped]
        if not victims:
            return
        victim = self.rng.choice(victims)
        _, longest_s = STRIKES[how, kind]
        # Short more often than long.
        down_s = self.rng.uniform(0, longest_s) * self.rng.choice([0.1, 0.3, 1])
        self.strikes[how, kind] += 1
        if how == "kill":
            self.kill(victim)
            self.later(down_s, lambda: self.restart(victim))
        else:
            self.stop(victim)
            self.later(down_s, lambda: self.resume(victim))

    def kill(self, victim) -> None:
        self._learn_units()
        # Lost somewhere between two moments: both are told.
        lost = {}
        if victim.kind == "unit" and self.unit_address[victim.number] in self.unit_ids:
            lost = {"unit": self.unit_ids[self.unit_address[victim.number]]}
        if victim.kind != "client":
            self.note("lost", who=victim.name, **lost)
        victim.process.kill()
        victim.process.wait(10)
        if victim.kind != "client":
            self.note("lost", who=victim.name, **lost)
        else:
            self.note("killed", p=victim.name)
        victim.process = None

    def restart(self, victim) -> None:
        # Units wait for the controller, and so does who starts them.
        if victim.kind == "unit" and (not self.controller.is_up or self.controller.is_stopped):
            self.later(0.2, lambda: self.restart(victim))
            return
        self.start(victim)
        self.note("started", p=victim.name)

    def stop(self, victim) -> None:
        self.note("stop", p=victim.name)
        victim.is_stopped = True
        victim.process.send_signal(signal.SIGSTOP) if victim.kind == "client" else (
            victim.process.signal(signal.SIGSTOP)
        )

    def resume(self, victim) -> None:
        if not victim.is_up or not victim.is_stopped:
            return
        victim.process.send_signal(signal.SIGCONT) if victim.kind == "client" else (
            victim.process.signal(signal.SIGCONT)
        )
        victim.is_stopped = False
        self.note("continue", p=victim.name)

    def _learn_units(self) -> None:
        """Which unit has which number in this store, once all have; until then a loss is anybody's."""
        if self.unit_ids or not self.controller.is_up or self.controller.is_stopped:
            return
        found = {}
        for unit in self.figures()["controller"]["units"]:
            for address in unit["addresses"].split(","):
                found[address] = unit["id"]
        if all(address in found for address in self.unit_address.values()):
            self.unit_ids = found

    def figures(self) -> dict:
        """The controller's; units that don't answer are left out of them."""
        from procs import tq

        try:
            return json.loads(tq("stat", address=self.address, limit_s=8))
        except (AssertionError, subprocess.TimeoutExpired, ValueError):
            return {"controller": {"units": [], "sessions_cnt": -1}, "units": []}

    # ---- the run -------------------------------------------------------------------------------

    def run(self) -> Verdict:
        began = time.monotonic()
        try:
            for victim in self.everybody:
                self.start(victim)
            self._learn_units()
            self._rage(began + self.seconds)
            self._heal()
            ops = self._end_clients()
            self._wait_for_calm()
            self.note("quiet")
            ops += self._audit()
            self._check_empty()
            for daemon in [*self.units, self.controller]:
                daemon.process.stop()
                daemon.process = None
        finally:
            self._kill_all()
            self.log.close()
        from check import check
        from history import load

        broken, counts = check(load(sorted(self.folder.glob("*.jsonl"))))
        seconds = time.monotonic() - began
        return Verdict(self.strikes, counts, broken, ops, seconds, self.folder)

    def _rage(self, end) -> None:
        kinds = list(STRIKES)
        # Everything happens once, in any order; then by weight.
        first = self.rng.sample(kinds, len(kinds))
        weights = [STRIKES[kind][0] for kind in kinds]
        self.later(1, lambda: None)
        strike_at = time.monotonic() + 1
        while (now := time.monotonic()) < end:
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            if now >= strike_at:
                self.strike(*(first.pop() if first else self.rng.choices(kinds, weights)[0]))
                strike_at = time.monotonic() + self.rng.uniform(*self.rest_s)
            self._see_the_dead()
            time.sleep(0.01)

    def _see_the_dead(self) -> None:
        """Nobody dies but by our hand."""
        for victim in self.everybody:
            if victim.is_up and not victim.is_stopped:
                process = victim.process
                status = process.poll() if victim.kind == "client" else process.process.poll()
                if status is not None:
                    raise AssertionError(
                        f"{victim.name} ended with {status} by itself; see {self.folder}"
                    )

    def _heal(self) -> None:
        for victim in self.everybody:
            self.resume(victim)
        self.due.clear()
        for victim in self.everybody:
            if not victim.is_up:
                self.start(victim)

    def _end_clients(self) -> int:
        ops = 0
        for client in self.clients:
            client.process.stdin.close()
        for client in self.clients:
            from procs import seconds

            status = client.process.wait(seconds(40))
            said = client.process.stdout.read().decode().strip()
            client.process = None
            if status != 0 or not said.startswith("worked "):
                log = (self.folder / f"{client.name}.log").read_text()[-2000:]
                raise AssertionError(f"{client.name} ended with {status}: {said} {log}")
        for file in self.folder.glob("client*.jsonl"):
            with file.open("rb") as lines:
                ops += sum(b'"op":' in line for line in lines)
        return ops

    def _wait_for_calm(self) -> None:
        """All units are there, and no session but the asker's."""
        from procs import until

        def is_calm():
            controller = self.figures()["controller"]
            units = controller["units"]
            return (
                len([u for u in units if not u["lost"]]) == len(self.units)
                and controller["sessions_cnt"] == 1
            )

        until(is_calm, 30, "calm")

    def _audit(self) -> int:
        from procs import seconds

        auditor = Victim("auditor", 0)
        auditor.lives = 1
        self._start_client(auditor, "audit")
        try:
            said, _ = auditor.process.communicate(timeout=seconds(60))
        finally:
            auditor.process.kill()
        if auditor.process.returncode != 0:
            raise AssertionError(f"the auditor failed; see {self.folder}")
        return int(said.split()[1])

    def _check_empty(self) -> None:
        """All was cleared: no bytes are left."""
        from procs import until

        def is_empty():
            units = self.figures()["units"]
            return len(units) == len(self.units) and not any(u["used_bytes"] for u in units)

        until(is_empty, 15, f"no bytes left; see {self.folder}")

    def _kill_all(self) -> None:
        for victim in self.everybody:
            if victim.is_up:
                victim.process.kill()
                victim.process.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--units", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "dev")
    parser.add_argument("--keep", type=Path, help="where the history stays; default: only if wrong")
    args = parser.parse_args()
    build = args.build.resolve()
    for name, path in (
        ("TQ_TEST_TQD", "src/tqd/tqd"),
        ("TQ_TEST_TQ", "src/tq/tq"),
        ("TQ_TEST_CLIENT", "tests/proc/proc_client"),
        ("TQ_TEST_CHAOS_CLIENT", "tests/proc/proc_chaos_client"),
    ):
        os.environ[name] = str(build / path)
    chaos = Chaos(args.seed, args.minutes * 60, args.clients, args.units, args.keep)
    print(f"seed {args.seed}, {chaos.transport}, history in {chaos.folder}", flush=True)
    verdict = chaos.run()
    for one in verdict.broken[:20]:
        print(one)
    print(verdict)
    if not verdict.broken and not args.keep:
        shutil.rmtree(chaos.folder)
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
