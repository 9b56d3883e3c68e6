# SPDX-License-Identifier: Apache-2.0
"""What says how ready rows are chosen for a fetch.

The samplers of this package are names: the store chooses, in C, and an instance only carries the
parameters that its creator gives to ``init`` as ``controller.sampler``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BaseSampler"]


class BaseSampler:
    """Base of all samplers."""

    def _store_options(self) -> dict[str, Any]:
        """Options of ``_core.Store``. UnsupportedError for what the store has no sampler for."""
        from transfer_queue.errors import UnsupportedError

        raise UnsupportedError(
            f"{type(self).__qualname__}: samplers written in Python are not supported yet; "
            "controller.sampler takes SequentialSampler or GRPOGroupNSampler"
        )
