# SPDX-License-Identifier: Apache-2.0
"""Half a minute of chaos.py, which runs for as long as one likes by `make chaos`."""

from __future__ import annotations

import os
import shutil

from chaos import Chaos
from procs import FACTOR


def test_nothing_is_lost_doubled_or_mixed_up_while_processes_die_and_stop():
    seed = int(os.environ.get("TQ_TEST_CHAOS_SEED", int.from_bytes(os.urandom(4), "little")))
    print(f"TQ_TEST_CHAOS_SEED={seed}")
    chaos = Chaos(seed, 20, clients=16 if FACTOR == 1 else 6)
    verdict = chaos.run()
    print(verdict)
    assert not verdict.broken, "\n".join(map(str, verdict.broken[:20]))
    assert verdict.counts["cells read"] > 0 and verdict.counts["rows granted"] > 0
    shutil.rmtree(chaos.folder)
