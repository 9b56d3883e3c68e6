# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with GRPO, in processes that share nothing but tq.

    python examples/grpo/demo.py            a few minutes on two cores
    python examples/grpo/demo.py --kill     kills a rollout process half-way; so does KILL=1

Ends with status 0 if the score on held-out problems rose as it must and every check held.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import policy
import rows
import transfer_queue as tq
from grpo import evaluate, warm_up
from model import Transformer, get_weights, set_weights
from report import Progress, Timeline, plot, table
from settings import Settings
from stages import (
    NEEDS,
    StageStats,
    end_run,
    run_reference,
    run_reward,
    run_rollout,
    run_trainer,
)
from task import ChainSum, Problem, held_out_problems, training_problems

PICTURE = Path("build/demo/grpo.png")
WATCH_PERIOD_S = 0.2
VICTIM = 0
"""The rollout worker that `--kill` kills."""
ORPHANS_DUE_S = 2.0
"""How long after a process's death its unfinished rows are cleared: anything that it still sent has
long been handled."""


class RunError(RuntimeError):
    """The run failed: a process died, something hung, or an account does not balance."""


class Run:
    """The processes of one run, watched from the parent through what they leave in the store."""

    def __init__(self, settings: Settings, progress: Progress, kill: bool) -> None:
        self.settings = settings
        self.progress = progress
        self.timeline = Timeline()
        self.kills = kill
        self.rows_orphaned = 0
        self.stats: dict[str, StageStats] = {}
        # Forked from a clean process that has only imported what takes long: each joins the store
        # by TQ_ADDRESS, as a program of its own would.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tensordict", "reasoning_gym", "transfer_queue"])
        self._processes: dict[str, BaseProcess] = {}
        self._orphans_due: float | None = None

    def train(self) -> None:
        """Starts the processes and watches until all have ended. RunError if one fails."""
        try:
            for worker in range(self.settings.rollout_workers):
                self._start(f"rollout-{worker}", run_rollout, worker)
            self._start("reward", run_reward)
            self._start("reference", run_reference)
            self._start("trainer", run_trainer)
            deadline = time.monotonic() + self.settings.deadline_s
            while any(process.is_alive() for process in self._processes.values()):
                if time.monotonic() > deadline:
                    raise RunError(f"not done after {self.settings.deadline_s:.0f} s")
                self._watch()
                time.sleep(WATCH_PERIOD_S)
            self._watch()
            self.progress.show(self._bars(), is_last=True)
        finally:
            for process in self._processes.values():
                process.kill()
                process.join()

    def settle(self) -> int:
        """Checks that every row that was fed is accounted for, and clears what is left.

        Returns how many rows were left: fed, and not needed any more when the trainer had ended.
        """
        self._clear_orphans()
        left = len(tq.kv_list(rows.ROWS)[rows.ROWS])
        trainer = self.stats["trainer"]
        if trainer.rows_read != self.settings.rows:
            raise RunError(f"trained on {trainer.rows_read} rows, not {self.settings.rows}")
        if trainer.rows_written != trainer.rows_read + left + self.rows_orphaned:
            raise RunError(
                f"{trainer.rows_written} rows were fed, but {trainer.rows_read} trained on, "
                f"{self.rows_orphaned} orphaned and {left} left"
            )
        tq.get_client().clear_partition(rows.ROWS)
        return left

    def _start(self, name: str, target: Callable[..., None], *args: int) -> None:
        process = self._context.Process(target=target, args=(self.settings, *args), name=name)
        process.start()
        self._processes[name] = process

    def _watch(self) -> None:
        """Looks once at everything: the processes, their counters, the queues."""
        for name, process in self._processes.items():
            if process.exitcode not in (None, 0) and not self._is_killed(name):
                end_run()
                raise RunError(f"{name} failed (exit status {process.exitcode}); see above")
        published = tq.kv_list(rows.STATS).get(rows.STATS, {})
        self.stats = {name: StageStats(**tags) for name, tags in published.items()}
        steps = tq.kv_list(rows.HISTORY).get(rows.HISTORY, {})
        self.timeline.steps = [steps[name] for name in sorted(steps)]
        self.timeline.depths.append((time.monotonic(), queue_depths()))
        if self.kills and self.timeline.killed is None:
            if len(self.timeline.steps) >= self.settings.steps // 2:
                self._kill()
        elif self._orphans_due is not None and time.monotonic() > self._orphans_due:
            self._clear_orphans()
        self.progress.show(self._bars())

    def _kill(self) -> None:
        """Kills a rollout process while it has rows in hand; tries again at the next look if not."""
        victim = self._processes[f"rollout-{VICTIM}"]
        # It can't finish its rows between our look and its end.
        os.kill(victim.pid, signal.SIGSTOP)
        in_hand = unfinished_rows(VICTIM)
        if not in_hand:
            os.kill(victim.pid, signal.SIGCONT)
            return
        victim.kill()
        victim.join()
        self.timeline.killed = time.monotonic()
        self._orphans_due = self.timeline.killed + ORPHANS_DUE_S
        self.progress.say(
            f"killed {victim.name} (SIGKILL) after step {len(self.timeline.steps)}, "
            f"with {len(in_hand)} rows in hand"
        )

    def _clear_orphans(self) -> None:
        """Clears what the killed process had taken and can't finish. Nothing waits for these rows:
        they would only lie there."""
        self._orphans_due = None
        if self.timeline.killed is not None and (orphans := unfinished_rows(VICTIM)):
            tq.kv_clear(orphans, rows.ROWS)
            self.rows_orphaned += len(orphans)

    def _is_killed(self, name: str) -> bool:
        return self.timeline.killed is not None and name == f"rollout-{VICTIM}"

    def _bars(self) -> list[tuple[str, int, int, str]]:
        def rows_read(*names: str) -> int:
            return sum(self.stats[name].rows_read for name in names if name in self.stats)

        workers = [name for name in self._processes if name.startswith("rollout")]
        shares = [
            f"{name}: {'killed at ' if self._is_killed(name) else ''}{rows_read(name)}"
            for name in workers
        ]
        fed, recent = self.settings.rows_fed, self.timeline.steps[-10:]
        note = ""
        if recent:
            reward = sum(step["reward"] for step in recent) / len(recent)
            note = f"step {len(self.timeline.steps)}, reward {reward:.2f}"
        return [
            ("rollout", rows_read(*workers), fed, ", ".join(shares)),
            ("reward", rows_read("reward"), fed, ""),
            ("reference", rows_read("reference"), fed, ""),
            ("trainer", rows_read("trainer"), self.settings.rows, note),
        ]


def queue_depths() -> dict[str, int]:
    """How many rows are ready for each task and wait for it."""
    client = tq.get_client()
    depths = {}
    for task, fields in NEEDS.items():
        indexes, produced = client.get_production_status(fields, rows.ROWS)
        known, consumed = client.get_consumption_status(task, rows.ROWS)
        if indexes is None or known is None:
            # No row has these fields yet.
            depths[task] = 0
            continue
        ready = indexes[produced.bool().all(1)]
        # Rows cleared between the two questions are in the first answer only.
        waiting = known[~consumed.bool()]
        depths[task] = int(torch.isin(ready, waiting).sum())
    return depths


def unfinished_rows(worker: int) -> list[str]:
    """Keys of the rows that a rollout worker has taken and has put no response into."""
    listing = tq.kv_list(rows.ROWS).get(rows.ROWS, {})
    return [
        key
        for key, tags in listing.items()
        if tags.get("worker") == worker and "policy_version" not in tags
    ]


def warmed_up(settings: Settings, progress: Progress) -> Transformer:
    """A model that knows the format and some arithmetic."""
    model = Transformer()

    def show(step: int, loss: float) -> None:
        bar = ("warm-up", step, settings.warm_up_steps, f"loss {loss:.2f}")
        is_last = step == settings.warm_up_steps
        if is_last or step % 10 == 0:
            progress.show([bar], is_last)

    problems = training_problems(settings.seed)
    warm_up(model, problems, settings.warm_up_steps, settings.warm_up_rows, show)
    return model


def demo(settings: Settings, kill: bool) -> None:
    """The whole demo. RunError where it does not do what it says."""
    began = time.monotonic()
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    progress = Progress()
    task = ChainSum(settings.seed)
    held_out: list[Problem] = held_out_problems(settings.seed, settings.held_out_problems)

    model = warmed_up(settings, progress)
    before = evaluate(model, task, held_out, settings.seed)
    progress.say(f"reward on {len(held_out)} held-out problems before GRPO: {before:.3f}")

    # The store, in this process. Children find it by TQ_ADDRESS.
    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=settings.group_size)
    tq.init({"controller": {"sampler": sampler}})
    try:
        policy.publish(policy.FIRST_VERSION, get_weights(model))
        run = Run(settings, progress, kill)
        run.train()
        version, weights = policy.read_newest()
        left = run.settle()
    finally:
        tq.close()

    set_weights(model, weights)
    after = evaluate(model, task, held_out, settings.seed)
    plot(run.timeline, before, after, PICTURE)

    ages = [step["policy_age"] for step in run.timeline.steps]
    print(f"\n{table(run.stats)}\n")
    print(
        f"{run.stats['trainer'].rows_written:,} rows fed: {settings.rows:,} trained on and cleared"
        f", {run.rows_orphaned} lost with a killed process, {left} left over and cleared."
    )
    print(
        "Every seal of every row read was right, groups were whole, no process was given a row "
        "twice."
    )
    print(f"Rows were sampled {sum(ages) / len(ages):.1f} policy versions before their step.")
    print(f"Picture: {PICTURE}")
    print(
        f"\nreward on {len(held_out)} held-out problems: {before:.3f} before, {after:.3f} after "
        f"{version} steps of GRPO ({time.monotonic() - began:.0f} s in all)"
    )
    if kill and run.timeline.killed is None:
        raise RunError("no rollout process could be killed")
    if after - before < settings.rise_min:
        raise RunError(f"the reward rose by less than {settings.rise_min}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kill",
        action="store_true",
        default=os.environ.get("KILL", "") not in ("", "0"),
        help="kill a rollout process half-way (or KILL=1 in the environment)",
    )
    defaults = Settings()
    parser.add_argument("--steps", type=int, default=defaults.steps, help="GRPO steps")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    arguments = parser.parse_args()
    try:
        demo(Settings(seed=arguments.seed, steps=arguments.steps), arguments.kill)
    except RunError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
