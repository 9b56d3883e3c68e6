# SPDX-License-Identifier: Apache-2.0
"""A store for each module, and a partition of its own for each test."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

import transfer_queue as tq

# What the tests share is the module tqtest, beside this file.
sys.path.insert(0, str(Path(__file__).parent))

_numbers = itertools.count()


@pytest.fixture(scope="module")
def store():
    """An embedded store that the module's tests share."""
    os.environ.pop("TQ_ADDRESS", None)
    config = tq.init()
    yield config
    tq.close()


@pytest.fixture
def client(store):
    """The client of this process."""
    return tq.get_client()


@pytest.fixture
def partition():
    """A partition that no other test uses."""
    return f"partition-{next(_numbers)}"


@pytest.fixture
def no_store(monkeypatch):
    """A process without a store, before and after."""
    tq.close()
    monkeypatch.delenv("TQ_ADDRESS", raising=False)
    yield
    tq.close()
