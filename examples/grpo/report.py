# SPDX-License-Identifier: Apache-2.0
"""What a person sees: progress bars while it runs, a table and a picture at the end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from stages import StageStats

BAR_WIDTH = 24
LINE_PERIOD_S = 5.0
SMOOTHED = 10


class Progress:
    """One bar per stage, redrawn in place on a terminal.

    Where the output is no terminal, one plain line every LINE_PERIOD_S.
    """

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._began = time.monotonic()
        self._lines_drawn = 0
        self._line_due = 0.0

    def say(self, text: str) -> None:
        """One line that stays, above the bars."""
        self._erase()
        print(text, file=self._stream, flush=True)

    def show(self, bars: Sequence[tuple[str, int, int, str]], is_last: bool = False) -> None:
        """Draws `bars`, each (name, done, total, note). The last ones stay."""
        if self._is_terminal:
            self._erase()
            # A line that wraps could not be taken back.
            width = shutil.get_terminal_size().columns - 1
            for bar in bars:
                print(_bar(*bar)[:width], file=self._stream)
            self._stream.flush()
            self._lines_drawn = 0 if is_last else len(bars)
        elif is_last or time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + LINE_PERIOD_S
            parts = [f"{name} {done}/{total} {note}".rstrip() for name, done, total, note in bars]
            seconds = time.monotonic() - self._began
            print(f"[{seconds:4.0f} s] " + " | ".join(parts), file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._lines_drawn:
            # Up so many lines, then clear to the end of the screen.
            print(f"\x1b[{self._lines_drawn}A\x1b[J", end="", file=self._stream)
            self._lines_drawn = 0


def _bar(name: str, done: int, total: int, note: str) -> str:
    filled = min(BAR_WIDTH, BAR_WIDTH * done // max(total, 1))
    bar = "█" * filled + "░" * (BAR_WIDTH - filled)
    return f"  {name:<10} {bar} {done:>6} / {total}  {note}"


@dataclass
class Timeline:
    """What happened when. All times of time.monotonic()."""

    began: float = field(default_factory=time.monotonic)
    depths: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """How many rows waited for each task."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """The trainer's reports: time, reward, kl, policy_age."""
    killed: float | None = None


def table(stats: dict[str, StageStats]) -> str:
    """Rows, bytes, waits and throughput of each process."""
    header = [
        "process",
        "rows read",
        "rows put",
        "MB read",
        "MB put",
        "fetches",
        "waited s",
        "longest ms",
        "rows/s",
    ]
    lines = [header]
    for name, stage in sorted(stats.items()):
        seconds = max(stage.seen - stage.began, 1e-9)
        lines.append(
            [
                name,
                f"{stage.rows_read:,}",
                f"{stage.rows_written:,}",
                f"{stage.bytes_read / 1e6:.1f}",
                f"{stage.bytes_written / 1e6:.1f}",
                f"{stage.fetches:,}",
                f"{stage.wait_s:.1f} ({stage.wait_s / seconds:.0%})",
                f"{stage.wait_max_s * 1e3:,.0f}",
                f"{stage.rows_read / seconds:,.0f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    text = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([text[0], rule, *text[1:]])


def plot(timeline: Timeline, before: float, after: float, path: Path) -> None:
    """The reward, and how many rows waited for each task, over time, as a PNG."""
    # Here, not above: every process imports this module, and one draws.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (reward, depth) = plt.subplots(2, 1, figsize=(9, 7), sharex=True)

    times = [step["time"] - timeline.began for step in timeline.steps]
    rewards = [step["reward"] for step in timeline.steps]
    reward.plot(times, rewards, color="tab:blue", alpha=0.3, label="of a step's rows")
    reward.plot(times, _smoothed(rewards), color="tab:blue", label=f"mean of {SMOOTHED}")
    reward.axhline(before, color="tab:gray", linestyle=":", label=f"held out, before: {before:.2f}")
    reward.axhline(after, color="tab:green", linestyle="--", label=f"held out, after: {after:.2f}")
    reward.set_ylabel("reward")
    reward.set_title("GRPO through tq")
    reward.legend(loc="lower right")

    sampled = [moment - timeline.began for moment, _ in timeline.depths]
    tasks = timeline.depths[0][1] if timeline.depths else {}
    for task in tasks:
        waiting = [float(depths[task]) for _, depths in timeline.depths]
        (line,) = depth.plot(sampled, waiting, linewidth=0.8, alpha=0.2)
        depth.plot(sampled, _smoothed(waiting), color=line.get_color(), label=task)
    depth.set_ylabel("rows that wait for the task")
    depth.set_xlabel("seconds")
    depth.set_ylim(bottom=0)
    if times:
        # Without the start of the processes, and the end of those that have nothing left to do.
        depth.set_xlim(times[0] - 3, times[-1] + 1)
    if tasks:
        depth.legend(loc="upper left")

    if timeline.killed is not None:
        for axes in (reward, depth):
            axes.axvline(timeline.killed - timeline.began, color="tab:red")
        depth.annotate(
            "a rollout process is killed",
            (timeline.killed - timeline.began, depth.get_ylim()[1] * 0.9),
            xytext=(6, 0),
            textcoords="offset points",
            color="tab:red",
        )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _smoothed(values: list[float]) -> list[float]:
    """Of each value and up to SMOOTHED - 1 before it, the mean."""
    windows = (values[max(0, end - SMOOTHED) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
