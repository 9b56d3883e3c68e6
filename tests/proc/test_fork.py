# SPDX-License-Identifier: Apache-2.0
"""Forks in the middle of transfers: of a client, and of a process that embeds the store."""

from __future__ import annotations

import os

import pytest
from procs import Client, stat, until

FORK = os.environ["TQ_TEST_FORK"]
FORKS = 40


@pytest.mark.parametrize("transport", ["ipc", "tcp", "embedded"])
def test_children_use_a_store_of_their_own_right_and_harm_nobody(daemons, transport):
    store = None if transport == "embedded" else daemons.store(transport)
    parent = Client(store.address if store else "embedded", str(FORKS), program=(FORK,))
    status, said = parent.end()
    assert (status, said) == (0, f"forked {FORKS}, worked on"), said
    if store:
        # Of children that closed nothing nothing is left.
        until(lambda: stat(store.address)["controller"]["sessions_cnt"] == 1, 10)
        figures = stat(store.address)
        assert figures["controller"]["counters"]["puts_failed"] == 0
        assert sum(unit["cells_published"] for unit in figures["units"]) == 0
        assert sum(unit["zombie_bytes"] for unit in figures["units"]) == 0
