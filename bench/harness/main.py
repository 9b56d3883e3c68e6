# SPDX-License-Identifier: Apache-2.0
"""The benchmark's command line and its loop: lines, sessions, and runs that take turns."""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from . import report
from .lines import LINES, MIB, REFERENCE, SIDES
from .sides import REFERENCE_PYTHON, ROOT, SIDE_CLASSES, TQ_PYTHON, Failed

RESULTS = ROOT / "bench" / "results"
LAST = ROOT / "build" / "bench" / "last"
MEMCPY = ROOT / "build" / "bench" / "memcpy"


def main(argv=None):
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(args)
    out = args.out
    logs = out / "logs" if out.is_relative_to(ROOT / "build") else ROOT / "build/bench/logs"
    logs.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)

    results = {"format": 1, "machine": machine(args), "runs": [], "memcpy_s": []}
    results_path = out / "results.json"
    with contextlib.ExitStack() as stack:
        sides = []
        for name in args.sides:
            side = SIDE_CLASSES[name](python_of(args, name), logs)
            try:
                side.start()
            except Failed as failure:
                sys.exit(f"bench: {failure}")
            stack.callback(side.stop)
            sides.append(side)
        for line in args.lines:
            note(f"{line.name}: {line.title}")
            measure(args, line, sides, results)
            save(results, results_path)

    summary = report.summarise(results)
    table = report.markdown(results, summary)
    (out / "table.md").write_text(table)
    print(table)
    draw(args, results_path)
    note(f"results are in {os.path.relpath(out)}")
    return 1 if any("error" in run for run in results["runs"] if run["side"] != REFERENCE) else 0


def parse(argv):
    names = [line.name for line in LINES]
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures tq beside the reference, in turns, on this machine.",
        epilog="lines: " + ", ".join(f"{line.name} ({line.title})" for line in LINES),
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="LINE", help="one line; may be repeated"
    )
    parser.add_argument("--side", action="append", choices=SIDES, help="one side; may be repeated")
    parser.add_argument("--runs", type=int, help="runs in a session, instead of the line's own")
    parser.add_argument("--sessions", type=int, help="fresh starts, instead of the line's own")
    parser.add_argument("--quick", action="store_true", help="two runs in one session, no 1M rows")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--tq-python", default=TQ_PYTHON, help="interpreter that has tq")
    parser.add_argument("--reference-python", default=REFERENCE_PYTHON)
    args = parser.parse_args(argv)

    args.lines = [
        line
        for line in LINES
        if (line.name in args.only if args.only else line.quick or not args.quick)
    ]
    args.sides = [side for side in SIDES if not args.side or side in args.side]
    if args.quick:
        args.runs = args.runs or 2
        args.sessions = args.sessions or 1
    complete = not (args.only or args.side or args.quick or args.runs or args.sessions)
    if args.out is None:
        args.out = RESULTS / datetime.date.today().isoformat() if complete else LAST
    args.out = args.out.absolute()
    return args


def prepare(args):
    """Have what the run needs: the reference's environment, tq's, and the memcpy program."""
    if REFERENCE in args.sides and Path(args.reference_python) == REFERENCE_PYTHON:
        subprocess.run([ROOT / "bench" / "setup-reference"], check=True)
    for side in args.sides:
        python = python_of(args, side)
        works = (
            Path(python).exists()
            and not subprocess.run(
                [python, "-c", "import transfer_queue"], capture_output=True, cwd="/"
            ).returncode
        )
        if not works:
            sys.exit(f"bench: {python} can't import transfer_queue for side {side}; make build")
    MEMCPY.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench" / "memcpy.c"
    subprocess.run(["cc", "-O2", "-o", MEMCPY, source], check=True)


def python_of(args, side):
    return args.reference_python if side == REFERENCE else args.tq_python


def measure(args, line, sides, results):
    """All sessions of a line. A side that fails is left out of the rest of the line."""
    able = [side for side in sides if side.name in line.sides]
    for number in range(args.sessions or line.sessions):
        opened = []
        try:
            for side in list(able):
                with failing(line, side, number, able, results):
                    opened.append((side, side.open(line, number)))
            take_turns(args.runs or line.runs, line, number, opened, able, results)
        finally:
            for _, session in opened:
                session.end()


def take_turns(runs, line, number, opened, able, results):
    """The first run of each side is cold; then each round gives every side one run."""
    for turn in range(runs + 1):
        if line.payload_bytes:
            results["memcpy_s"].append({"line": line.name, "seconds": memcpy_s()})
        order = opened if turn % 2 == 0 else reversed(opened)
        for side, session in order:
            if side not in able:
                continue
            with failing(line, side, number, able, results):
                metrics = session.run(line.run_limit_s)
                results["runs"].append(
                    {
                        "line": line.name,
                        "side": side.name,
                        "session": number,
                        "cold": turn == 0,
                        "metrics": metrics,
                    }
                )


@contextlib.contextmanager
def failing(line, side, number, able, results):
    """Record a failure of one side in one line, and go on without it."""
    try:
        yield
    except Failed as failure:
        note(f"{line.name}: {side.name}: {failure}")
        results["runs"].append(
            {"line": line.name, "side": side.name, "session": number, "error": str(failure)}
        )
        able.remove(side)
        side.recover()


def save(results, path):
    """One run on a line, so that the file can be read, and compared, by people too."""
    runs = ",\n  ".join(json.dumps(run) for run in results["runs"])
    rest = {key: value for key, value in results.items() if key != "runs"}
    path.write_text(json.dumps(rest, indent=1)[:-2] + f',\n "runs": [\n  {runs}\n ]\n}}\n')


def memcpy_s():
    """Median seconds of one thread's copy of 256 MiB, warm to warm."""
    answer = subprocess.run(
        [MEMCPY, str(256 * MIB), "7"], check=True, capture_output=True, text=True, timeout=60
    )
    return statistics.median(json.loads(answer.stdout)["seconds"])


def machine(args):
    """What the figures depend on, without anything that names this machine."""
    model = next(
        (
            text.partition(":")[2].strip()
            for text in Path("/proc/cpuinfo").read_text().splitlines()
            if text.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 30)),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "versions": {side: versions(python_of(args, side)) for side in args.sides},
    }


def versions(python):
    code = (
        "import platform, transfer_queue, torch, json;"
        "print(json.dumps({'python': platform.python_version(), 'torch': torch.__version__,"
        " 'transfer_queue': transfer_queue.__version__}))"
    )
    answer = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    return json.loads(answer.stdout.splitlines()[-1])


def draw(args, results_path):
    """Plots need matplotlib, which this interpreter may lack and tq's environment has."""
    for python in (sys.executable, args.tq_python):
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode:
            continue
        plot = [python, "-m", "harness.plot", str(results_path)]
        subprocess.run(plot, check=True, cwd=ROOT / "bench")
        return
    note("no plots: neither interpreter has matplotlib")


def note(text):
    print(f"bench: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
