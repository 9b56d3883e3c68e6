# SPDX-License-Identifier: Apache-2.0
"""From raw runs to figures: medians, ratios, targets met or not, and the table in markdown."""

import statistics

from .lines import EMBEDDED, JOINED, LINES, MIB, REFERENCE, TQ_SIDES

HEADINGS = {REFERENCE: "reference", EMBEDDED: "tq, embedded", JOINED: "tq, joined"}
BLOCKS = ("block1", "block8", "block32")


def summarise(results):
    """A list of rows, one per line and metric, each with a figure per side and what it is worth.

    figures[side] is {"value", "cold", "ratio", "target", "met"} or {"error"}; a ratio above 1
    means that tq is ahead, whichever way the metric points.
    """
    memcpy = memcpy_rate(results)
    rows = []
    for line in LINES:
        runs = [run for run in results["runs"] if run["line"] == line.name]
        if not runs:
            continue
        for metric in line.metrics:
            figures = {}
            for side in HEADINGS:
                mine = [run for run in runs if run["side"] == side]
                if mine:
                    figures[side] = figure(metric, mine)
            rows.append({"line": line, "metric": metric, "figures": figures})
    for row in rows:
        judge(row, rows, memcpy)
    return rows


def memcpy_rate(results):
    """Bytes per second of this run's memcpy, or None when no line with a payload was run."""
    seconds = [entry["seconds"] for entry in results["memcpy_s"]]
    return 256 * MIB / statistics.median(seconds) if seconds else None


def figure(metric, runs):
    errors = [run["error"] for run in runs if "error" in run]
    warm = samples(metric, runs, cold=False)
    if not warm:
        return {"error": errors[0] if errors else "no run"}
    cold = samples(metric, runs, cold=True)
    result = {"value": pooled(metric, warm), "samples": len(warm)}
    if metric.payload_bytes and cold:
        result["cold"] = pooled(metric, cold)
    if errors:
        result["error"] = errors[0]
    return result


def samples(metric, runs, cold):
    """Every sample of a metric in the unit of the metric."""
    values = []
    for run in runs:
        if "error" in run or run["cold"] != cold:
            continue
        value = run["metrics"][metric.key]
        values += value if isinstance(value, list) else [value]
    if metric.payload_bytes:
        values = [metric.payload_bytes / value for value in values]
    return values


def pooled(metric, values):
    if metric.stat == "p99":
        ordered = sorted(values)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return statistics.median(values)


def judge(row, rows, memcpy):
    metric = row["metric"]
    reference = row["figures"].get(REFERENCE, {}).get("value")
    for side in TQ_SIDES:
        mine = row["figures"].get(side)
        if mine is None or "value" not in mine:
            continue
        # A time of zero (the consumer was there before the producer's return) has no ratio.
        if reference and mine["value"]:
            better, worse = mine["value"], reference
            if not metric.more_is_better:
                better, worse = worse, better
            mine["ratio"] = better / worse
        bound = target_bound(metric.targets.get(side), side, metric, rows, memcpy)
        if bound is not None:
            at_least = metric.targets[side].at_least
            mine["target"] = bound
            mine["met"] = mine["value"] >= bound if at_least else mine["value"] <= bound


def target_bound(target, side, metric, rows, memcpy):
    """The target in the metric's own unit, or None when what it refers to was not measured."""
    if target is None:
        return None
    if target.of == "":
        return target.bound
    if target.of == "memcpy":
        return memcpy and target.bound * memcpy
    for row in rows:
        if row["line"].name == target.of and row["metric"].name == metric.name:
            value = row["figures"].get(side, {}).get("value")
            return value and target.bound * value
    return None


def spread(rows, side, name):
    """Slowest over fastest of a metric over the field counts of the 256 MiB block."""
    values = [
        row["figures"][side]["value"]
        for row in rows
        if row["line"].name in BLOCKS
        and row["metric"].name == name
        and "value" in row["figures"].get(side, {})
    ]
    return min(values) / max(values) if len(values) == len(BLOCKS) else None


def markdown(results, rows):
    machine = results["machine"]
    memcpy = memcpy_rate(results)
    text = [
        "# tq beside the reference",
        "",
        f"{machine['when']}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"load before the start {machine['load_before']:.2f}.",
    ]
    for side, found in machine["versions"].items():
        text.append(
            f"{HEADINGS[side]}: transfer_queue {found['transfer_queue']}, "
            f"Python {found['python']}, torch {found['torch']}."
        )
    if memcpy is not None:
        text += ["", f"memcpy of this run (one thread, 256 MiB, warm): {quantity(memcpy, 'B/s')}."]
    text += ["", *table(rows), *cold_table(rows), *spreads(rows), *notes(rows)]
    return "\n".join(text) + "\n"


def table(rows):
    text = [
        "| line | figure | reference | tq, embedded | ratio | tq, joined | ratio | target | met |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    previous = None
    for row in rows:
        line, metric, figures = row["line"], row["metric"], row["figures"]
        cells = [line.title if line is not previous else "", metric.name]
        cells.append(cell(figures.get(REFERENCE), metric.unit))
        for side in TQ_SIDES:
            mine = figures.get(side)
            cells += [cell(mine, metric.unit), ratio(mine)]
        cells += verdict(row)
        text.append("| " + " | ".join(cells) + " |")
        previous = line
    return text + [
        "",
        "Medians of warm runs; a ratio above 1 says how many times tq is ahead. Embedded: the"
        " store is in the measuring process; joined: in another one, as the reference's always"
        " is.",
    ]


def cold_table(rows):
    with_cold = [row for row in rows if any("cold" in figure for figure in row["figures"].values())]
    if not with_cold:
        return []
    text = [
        "",
        "First run after the start, on memory never used before (median of the sessions):",
        "",
        "| line | figure | reference | tq, embedded | tq, joined |",
        "| --- | --- | --: | --: | --: |",
    ]
    for row in with_cold:
        cells = [row["line"].title, row["metric"].name]
        for side in HEADINGS:
            cold = row["figures"].get(side, {}).get("cold")
            cells.append("" if cold is None else quantity(cold, row["metric"].unit))
        text.append("| " + " | ".join(cells) + " |")
    return text


def spreads(rows):
    text = []
    for side in HEADINGS:
        for name in ("put", "get"):
            found = spread(rows, side, name)
            if found is not None:
                goal = "" if side == REFERENCE else f" (target 0.8, {met_word(found >= 0.8)})"
                text.append(f"- {HEADINGS[side]}, {name}: {found:.2f}{goal}")
    if not text:
        return []
    return ["", "Slowest over fastest of 1, 8 and 32 fields:", "", *text]


def notes(rows):
    """How the reference had to be used, and what did not finish."""
    text = []
    for line in dict.fromkeys(row["line"] for row in rows):
        if line.reference_note:
            text.append(f"- {line.title}, reference: {line.reference_note}.")
    told = set()
    for row in rows:
        for side, found in row["figures"].items():
            key = (row["line"].name, side)
            if "error" in found and key not in told:
                told.add(key)
                text.append(f"- {row['line'].title}, {HEADINGS[side]}: {found['error']}.")
    return ["", *text] if text else []


def cell(found, unit):
    if found is None:
        return ""
    if "value" not in found:
        return "failed"
    return quantity(found["value"], unit)


def ratio(found):
    return times(found["ratio"]) if found and "ratio" in found else ""


def times(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(row):
    """The target and met cells; one word each where both tq sides agree, else both."""
    judged = [row["figures"][side] for side in TQ_SIDES if "met" in row["figures"].get(side, {})]
    if not judged:
        return ["", ""]
    sign = "≥" if next(iter(row["metric"].targets.values())).at_least else "≤"
    bounds = dict.fromkeys(f"{sign} {quantity(f['target'], row['metric'].unit)}" for f in judged)
    words = dict.fromkeys(met_word(f["met"]) for f in judged)
    if len(words) > 1:
        return [", ".join(bounds), ", ".join(met_word(f["met"]) for f in judged)]
    return [", ".join(bounds), ", ".join(words)]


def met_word(met):
    return "yes" if met else "**no**"


def quantity(value, unit):
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "s":
        for scale, name in ((1e-6, "µs"), (1e-3, "ms")):
            if value < scale * 1000:
                return f"{value / scale:.3g} {name}"
        return f"{value:.3g} s"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
