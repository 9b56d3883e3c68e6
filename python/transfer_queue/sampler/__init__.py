# SPDX-License-Identifier: Apache-2.0
"""Samplers that ``controller.sampler`` may name."""

from transfer_queue.sampler.base import BaseSampler
from transfer_queue.sampler.grpo_group_n_sampler import GRPOGroupNSampler
from transfer_queue.sampler.sequential_sampler import SequentialSampler

__all__ = ["BaseSampler", "GRPOGroupNSampler", "SequentialSampler"]
