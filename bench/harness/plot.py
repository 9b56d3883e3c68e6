# SPDX-License-Identifier: Apache-2.0
"""Draws a results.json as PNG files beside it: python -m harness.plot RESULTS.json"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from . import report
from .lines import EMBEDDED, JOINED, LINES, REFERENCE

COLOURS = {REFERENCE: "#8c8c8c", EMBEDDED: "#1b6ca8", JOINED: "#e07b39"}
DATA = ("block1", "block8", "block32", "values32k")
DATA_NAMES = ("1 field", "8 fields", "32 fields", "9,216 x\n32 KiB")
FETCHES = {"fetch1k": 1e3, "fetch100k": 1e5, "fetch1m": 1e6}


def main(path):
    results = json.loads(path.read_text())
    rows = report.summarise(results)
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9})
    for name, figure in (
        ("ratios", ratios(rows)),
        ("throughput", throughput(rows, report.memcpy_rate(results))),
        ("fetch", fetches(rows)),
        ("samples", all_samples(results)),
    ):
        if figure is not None:
            figure.savefig(path.with_name(f"{name}.png"), dpi=120, bbox_inches="tight")
            plt.close(figure)


def ratios(rows):
    """How many times ahead of the reference tq is, every figure on one axis."""
    shown = [row for row in rows if any("ratio" in f for f in row["figures"].values())]
    if not shown:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(shown) + 1.2))
    for offset, side in ((-0.18, EMBEDDED), (0.18, JOINED)):
        places = [i for i, row in enumerate(shown) if "ratio" in row["figures"].get(side, {})]
        values = [shown[i]["figures"][side]["ratio"] for i in places]
        axes.barh(
            [i + offset for i in places],
            [value - 1 for value in values],
            left=1,
            height=0.34,
            color=COLOURS[side],
            label=report.HEADINGS[side],
        )
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                report.times(value),
                (value, place + offset),
                xytext=(3 if value >= 1 else -3, 0),
                textcoords="offset points",
                va="center",
                ha="left" if value >= 1 else "right",
                fontsize=7,
            )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    axes.set_yticks(
        range(len(shown)), [f"{row['line'].title}: {row['metric'].name}" for row in shown]
    )
    axes.invert_yaxis()
    axes.set_xlabel("times ahead of the reference (1 = equal)")
    axes.legend(frameon=False)
    return figure


def throughput(rows, memcpy):
    """Put and get of the data lines, warm in full colour and cold in pale, beside memcpy."""
    shown = [name for name in DATA if any(row["line"].name == name for row in rows)]
    if not shown:
        return None
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axes, name in zip(panels, ("put", "get"), strict=True):
        chosen = {r["line"].name: r["figures"] for r in rows if r["metric"].name == name}
        for place, side in enumerate(COLOURS):
            for i, line in enumerate(shown):
                found = chosen[line].get(side, {})
                at = i + (place - 1) * 0.27
                for key, width, alpha in (("value", 0.25, 1.0), ("cold", 0.11, 0.45)):
                    if key in found:
                        axes.bar(
                            at if key == "value" else at + 0.07,
                            found[key] / 1e9,
                            width,
                            color=COLOURS[side] if key == "value" else "white",
                            alpha=alpha,
                        )
            axes.bar(0, 0, color=COLOURS[side], label=report.HEADINGS[side])
        if memcpy is not None:
            axes.axhline(memcpy / 1e9, color="black", linewidth=0.8, label="memcpy")
            axes.axhline(memcpy / 2e9, color="black", linewidth=0.8, linestyle=":", label="half")
        names = dict(zip(DATA, DATA_NAMES, strict=True))
        axes.set_xticks(range(len(shown)), [names[line] for line in shown])
        axes.set_title(f"{name} (pale stripe: first run, cold)", fontsize=9)
    panels[0].set_ylabel("GB/s")
    panels[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def fetches(rows):
    """get_meta of 32 rows against the number of ready rows."""
    chosen = [r for r in rows if r["line"].name in FETCHES and r["metric"].name == "fetch"]
    if len(chosen) < 2:
        return None
    figure, axes = plt.subplots(figsize=(5, 3.4))
    for side, colour in COLOURS.items():
        points = [
            (FETCHES[row["line"].name], row["figures"][side]["value"] * 1e3)
            for row in chosen
            if "value" in row["figures"].get(side, {})
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=report.HEADINGS[side])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ready rows")
    axes.set_ylabel("ms to fetch 32")
    axes.legend(frameon=False)
    return figure


def all_samples(results):
    """Every warm sample over its side's median, so that a median's worth can be seen."""
    panels = [
        (line, metric)
        for line in LINES
        for metric in line.metrics
        if metric.stat == "median" and any(run["line"] == line.name for run in results["runs"])
    ]
    if not panels:
        return None
    columns = 5
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(13, 1.9 * lines), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (line, metric) in zip(grid.flat, panels, strict=False):
        for place, side in enumerate(COLOURS):
            runs = [r for r in results["runs"] if r["line"] == line.name and r["side"] == side]
            values = report.samples(metric, runs, cold=False)
            if not values:
                continue
            middle = statistics.median(values)
            spots = [place + 0.6 * (i / len(values) - 0.5) for i in range(len(values))]
            shares = [value / middle for value in values]
            axes.plot(spots, shares, ".", markersize=3, color=COLOURS[side])
        axes.axhline(1, color="black", linewidth=0.4)
        axes.set_xlim(-0.6, len(COLOURS) - 0.4)
        axes.set_ylim(0, 3)
        axes.set_xticks(range(len(COLOURS)), ["reference", "embedded", "joined"])
        axes.set_title(f"{line.name}: {metric.name}", fontsize=7)
        axes.tick_params(labelsize=7)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
