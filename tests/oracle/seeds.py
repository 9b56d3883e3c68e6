#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs seeds of the simulator and judges what their clients saw.

usage: seeds.py SIM [--from N] [--seeds N] [--keep FILE] [-- ARG ...]

TQ_SIM_HISTORIES overrides --seeds. What follows -- goes to the simulator. A history that is not right
stays in --keep (history.jsonl).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from check import check
from history import load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sim")
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--keep", type=Path, default=Path("history.jsonl"))
    parser.add_argument("more", nargs="*", metavar="ARG")
    args = parser.parse_args()
    cnt = int(os.environ.get("TQ_SIM_HISTORIES", args.seeds))
    total: Counter = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.jsonl"
        for seed in range(args.first, args.first + cnt):
            command = [args.sim, "--seed", str(seed), "--history", str(file), *args.more]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                print(f"seed {seed}: sim ends with {done.returncode}: {done.stderr}")
                wrong += 1
                continue
            broken, counts = check(load([file]))
            total += counts
            if broken:
                wrong += 1
                print(
                    f"seed {seed}: {len(broken)} rules broken; repeat it with: {' '.join(command)}"
                )
                for one in broken[:5]:
                    print(one)
                args.keep.write_bytes(file.read_bytes())
    print(", ".join(f"{word} {cnt}" for word, cnt in sorted(total.items())))
    print(f"seeds {cnt - wrong}, histories that are not right {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
