# SPDX-License-Identifier: Apache-2.0
"""Every number of the demo, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One run. Handed to every process, so that all agree."""

    seed: int = 7
    """Of the weights, the problems and the sampling. In what order the processes get to run is
    chance, so two runs with one seed end alike, not the same."""

    warm_up_steps: int = 400
    warm_up_rows: int = 64

    steps: int = 200
    """Steps of the trainer; each makes a new policy version."""
    groups_per_step: int = 64
    group_size: int = 8
    """Responses to one prompt, which GRPO compares with each other."""
    updates_per_step: int = 2
    learning_rate: float = 5e-4

    rollout_workers: int = 2
    worker_rows: int = 128
    """How many rows the rollout, reward and reference processes ask for at a time. Whole groups."""
    steps_ahead: int = 2
    """How many steps' prompts are in the store at once: the bound on how old a policy may be."""

    held_out_problems: int = 1024
    rise_min: float = 0.1
    """How much the score on the held-out problems must rise for the demo to succeed."""

    poll_s: float = 1.0
    """How long a process waits for rows before it looks whether the run is over."""
    deadline_s: float = 900.0
    """After this the run is given up: something hangs."""

    @property
    def rows_per_step(self) -> int:
        return self.groups_per_step * self.group_size

    @property
    def rows(self) -> int:
        """How many rows the trainer takes in all."""
        return self.steps * self.rows_per_step

    @property
    def rows_fed(self) -> int:
        """How many rows it feeds: it stays ahead to the end, in case some are lost on the way."""
        return self.rows + self.steps_ahead * self.rows_per_step
