# SPDX-License-Identifier: Apache-2.0
"""Whole GRPO groups only."""

from __future__ import annotations

from typing import Any

from transfer_queue.errors import UsageError
from transfer_queue.sampler.base import BaseSampler

__all__ = ["GRPOGroupNSampler"]


class GRPOGroupNSampler(BaseSampler):
    """Whole groups of ``n_samples_per_prompt`` rows; a fetch waits until there are enough.

    Args:
        n_samples_per_prompt: rows of a group; a batch_size must be a multiple of it.
        group_by: a tag whose equal values make a group. None: rows that were inserted one after
            another do.
    """

    def __init__(self, n_samples_per_prompt: int = 1, group_by: str | None = None) -> None:
        if n_samples_per_prompt < 1:
            raise UsageError(f"n_samples_per_prompt must be from 1 up, not {n_samples_per_prompt}")
        self.n_samples_per_prompt = n_samples_per_prompt
        self.group_by = group_by

    def _store_options(self) -> dict[str, Any]:
        return {
            "sampler": "GRPOGroupNSampler",
            "sampler_group": self.n_samples_per_prompt,
            "sampler_group_by": self.group_by,
        }
