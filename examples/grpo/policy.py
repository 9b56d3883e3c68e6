# SPDX-License-Identifier: Apache-2.0
"""Policy versions in the store: one key each, so a reader gets one version whole.

The trainer publishes and drops old ones; the rollouts take the newest. The first version, from the
warm-up, stays: it is the reference.
"""

from __future__ import annotations

import zlib

from torch import Tensor

import rows
import transfer_queue as tq

FIRST_VERSION = 0
KEPT = 2
"""Newest versions kept, so that a reader who chose one still finds it while the next arrives."""


def publish(version: int, weights: Tensor) -> None:
    """Makes `weights` (parameters,) the newest policy, and drops one that nobody needs now."""
    tag = {"version": version, "checksum": _checksum(weights)}
    tq.kv_put(_key(version), rows.POLICY, fields={"weights": weights}, tag=tag)
    if version - KEPT > FIRST_VERSION:
        tq.kv_clear(_key(version - KEPT), rows.POLICY)


def newest_version() -> int:
    return max(tag["version"] for tag in _tags().values())


def read(version: int) -> Tensor:
    """The weights of a version that is there: (parameters,) float32."""
    data = tq.kv_batch_get(_key(version), rows.POLICY, select_fields=["weights"])
    weights = data["weights"].values()
    if _checksum(weights) != _tags()[_key(version)]["checksum"]:
        raise rows.CorruptRowError(f"the weights of policy version {version} are not as published")
    return weights


def read_newest() -> tuple[int, Tensor]:
    """The newest version and its weights."""
    while True:
        version = newest_version()
        try:
            return version, read(version)
        except (KeyError, ValueError):
            if version == newest_version():
                raise
            # Dropped meanwhile, since newer ones came: take the newest again.


def _key(version: int) -> str:
    return f"policy-{version:05}"


def _tags() -> dict[str, dict]:
    return tq.kv_list(rows.POLICY)[rows.POLICY]


def _checksum(weights: Tensor) -> int:
    return zlib.crc32(weights.numpy().tobytes())
