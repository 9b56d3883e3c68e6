# SPDX-License-Identifier: Apache-2.0
"""Ready rows in the order in which they were inserted."""

from __future__ import annotations

from typing import Any

from transfer_queue.sampler.base import BaseSampler

__all__ = ["SequentialSampler"]


class SequentialSampler(BaseSampler):
    """Ready rows in the order in which they were inserted; takes no sampling_config."""

    def _store_options(self) -> dict[str, Any]:
        return {"sampler": "SequentialSampler"}
