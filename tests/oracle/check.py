#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges a history from outside: only from what clients asked, were told, and when.

usage: check.py [--late-s N] FILE...

Prints each broken rule with the operations that break it, and ends with status 1; or what was
checked, and 0. An operation happened at one moment between its call and its end; one without an end,
or of unknown outcome, at any moment after its call, or never. The rules (RULES below, explained in
docs/testing.md) never guess: where a history leaves it open whether something was right, it was.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf

from history import MISSING, History, Malformed, Op, load

RULES = {
    "status": "no operation ends with an internal error or a malformed message (INV-30)",
    "unique": "no two cells were given the same value (of the history itself)",
    "origin": "a value is read only at the row, field and store that it was put to (INV-21)",
    "early": "nothing is read before it was put (INV-22)",
    "unpublished": "what a failed put wrote is not read, but where it replaced something (INV-22)",
    "order": "reads and writes of a cell fit one order of their moments (INV-24)",
    "cleared": "a row that was cleared is never read, granted or listed again (INV-24)",
    "lost": "what was acknowledged, read or listed stays until replaced, cleared or lost (INV-23)",
    "key": "a key names one row at a time (INV-5)",
    "unready": "no row is granted without the fields asked for (INV-20)",
    "twice": "between resets a task is given a row once (INV-20)",
    "undelivered": "a task is given every ready row (INV-20)",
}
BROKEN = frozenset({"E_BUG", "E_MALFORMED", "E_RUNTIME", "E_INVALID", "E_DUPLICATE"})
# A client that got another answer so soon after it took a grant had not lost its session between.
SESSION_NS = 3_000_000_000
# A pause so long before may still have cost the session.
SILENCE_NS = 10_000_000_000


@dataclass(slots=True)
class Broken:
    rule: str
    text: str
    ops: tuple

    def __str__(self) -> str:
        return "\n".join([f"{self.rule}: {self.text}", *(f"    {op}" for op in self.ops)])


@dataclass(slots=True)
class Span:
    """Something that was there from `since` on, and can't have gone before `until`."""

    since: float
    until: float
    op: Op


class Spans:
    """Spans of one thing; asks which of them holds from one moment to another."""

    __slots__ = ("_furthest", "_since", "all")

    def __init__(self) -> None:
        self.all: list[Span] = []
        self._since: list[float] | None = None

    def add(self, span: Span) -> None:
        last = self.all[-1] if self.all else None
        if last is None or last.since > span.since or last.until < span.until:
            self.all.append(span)
            self._since = None

    def over(self, begin, end) -> Span | None:
        """A span that had begun before `begin` and was not over at `end`."""
        if self._since is None:
            self.all.sort(key=lambda span: span.since)
            self._since = [span.since for span in self.all]
            self._furthest = list(accumulate(self.all, lambda a, b: b if b.until > a.until else a))
        at = bisect_left(self._since, begin)
        span = self._furthest[at - 1] if at else None
        return span if span and span.until > end else None


class Clears:
    """Clears of one row, key or partition, or resets of a task. Each is at work somewhere from its
    call to its end."""

    __slots__ = ("_calls", "_ends", "_items", "_latest", "_soonest")

    def __init__(self) -> None:
        self._items: list[tuple] = []
        self._calls: list[float] | None = None

    def add(self, call, end, op) -> None:
        self._items.append((call, end, op))

    def _sort(self) -> None:
        if self._calls is None:
            self._items.sort(key=lambda item: item[0])
            self._calls = [item[0] for item in self._items]
            self._latest = list(accumulate((item[1] for item in self._items), max))
            ends = accumulate(reversed(self._items), lambda a, b: b if b[1] < a[1] else a)
            self._soonest = list(ends)[::-1]

    def first_from(self, moment) -> float:
        """The call of the first one that may have been at work at `moment` or later."""
        self._sort()
        at = bisect_left(self._latest, moment)
        return self._calls[at] if at < len(self._calls) else inf

    def count(self, begin, end) -> int:
        """How many may have been at work at some moment from `begin` to `end`."""
        return sum(call <= end and done >= begin for call, done, _ in self._items)

    def soonest_after(self, moment) -> tuple:
        """(end, op) of the one that ended first of those called after `moment`."""
        self._sort()
        at = bisect_right(self._calls, moment)
        return self._soonest[at][1:] if at < len(self._calls) else (inf, None)


@dataclass(slots=True)
class Cell:
    """What was written to and read from one field of one row."""

    writes: list = field(default_factory=list)  # (op, value); of those known to be of this row
    reads: list = field(default_factory=list)  # (op, value)


@dataclass(slots=True)
class Wrote:
    """Where a value came from."""

    op: Op
    field: str
    place: int


class Checker:
    def __init__(self, history: History, late_s: float = 60) -> None:
        self.history = history
        # A clear or reset whose end is not known to be right may still be at work for so long.
        self.late_ns = late_s * 1e9
        self.broken: list[Broken] = []
        self.counts: Counter = Counter()

    def run(self) -> list[Broken]:
        self._index()
        self._bind()
        self._deaths()
        self._presence()
        self._check_reads()
        self._check_order()
        self._check_cleared()
        self._check_missing()
        self._check_lists()
        self._check_keys()
        self._check_fetches()
        return self.broken

    def _break(self, rule, text, *ops) -> None:
        assert rule in RULES
        self.broken.append(Broken(rule, text, tuple(dict.fromkeys(ops))))

    # ---- what there is ---------------------------------------------------------------------------

    def _index(self) -> None:
        """Operations by kind; where each value comes from."""
        self.by_kind: dict[str, list[Op]] = defaultdict(list)
        self.wrote: dict[str, Wrote] = {}
        for op in self.history.ops:
            self.by_kind[op.kind].append(op)
            self.counts[op.kind] += 1
            if op.status in BROKEN:
                self._break("status", f"a {op.kind} ends with {op.status}", op)
        # A fetch of all is a list with another name.
        self.lists = self.by_kind["list"] + self.by_kind["fetch all"]
        for op in self.by_kind["put"]:
            for name, values in op.args["cells"].items():
                for place, value in enumerate(values):
                    if not value:
                        continue
                    if value in self.wrote:
                        self._break("unique", f"value {value} twice", self.wrote[value].op, op)
                    self.wrote[value] = Wrote(op, name, place)

    def _cells_read(self, op):
        """(place, row, field, value) of a get that succeeded."""
        for name, values in op.result["cells"].items():
            for place, (row, value) in enumerate(zip(op.result["rows"], values, strict=True)):
                yield place, row, name, value

    # ---- rows and keys ---------------------------------------------------------------------------

    def _bind(self) -> None:
        """Which row each key and each row of a put was: from answers, and from what was read."""
        # (store, row) -> where it is, on which unit, and since when it is known to be there.
        self.part_of: dict[tuple, str] = {}
        self.unit_of: dict[tuple, int] = {}
        self.known_since: dict[tuple, float] = {}
        self.key_of: dict[tuple, str] = {}
        self.keyless: set[tuple] = set()
        # (store, part, key) -> {(store, row): (known since, op)}
        self.rows_of_key: dict[tuple, dict] = defaultdict(dict)
        # (put, place) -> (store, row): of puts that nobody was told the end of.
        self.found: dict[tuple, tuple] = {}
        # put -> (when, op): who first read something of it.
        self.first_read: dict[Op, tuple] = {}
        for op in self.history.ops:
            if op.is_ok and op.result.get("rows"):
                self._bind_rows(op)
        for op in self.by_kind["get"]:
            if op.is_ok:
                for _, row, name, value in self._cells_read(op):
                    self._bind_read(op, row, name, value)

    def _bind_rows(self, op) -> None:
        units = op.result.get("units")
        keys = op.result.get("keys") or (
            op.args.get("keys") if op.kind in ("put", "resolve") else None
        )
        is_new = op.kind == "insert" or (op.kind == "put" and _is_new(op))
        for place, row in enumerate(op.result["rows"]):
            if row is None:
                continue  # of a key that has none
            ident = (op.store, row)
            part = self.part_of.setdefault(ident, op.partition)
            if part != op.partition:
                self._break("origin", f"row {row} is in {part} and in {op.partition}", op)
            self.known_since[ident] = min(self.known_since.get(ident, inf), op.done)
            if units:
                self.unit_of[ident] = units[place]
            if keys and keys[place] is not None:
                self._bind_key(op, ident, keys[place])
            elif is_new:
                self.keyless.add(ident)

    def _bind_key(self, op, ident, key) -> None:
        known = self.key_of.setdefault(ident, key)
        if known != key or ident in self.keyless:
            self._break("key", f"row {ident[1]} has the keys {known} and {key}, or none", op)
        rows = self.rows_of_key[ident[0], op.partition, key]
        if ident not in rows or op.done < rows[ident][0]:
            rows[ident] = (op.done, op)

    def _bind_read(self, op, row, name, value) -> None:
        wrote = self.wrote.get(value)
        if wrote is None or wrote.field != name or wrote.op.partition != op.partition:
            return
        put, place, ident = wrote.op, wrote.place, (op.store, row)
        first = self.first_read.get(put)
        if first is None or op.done < first[0]:
            self.first_read[put] = (op.done, op)
        if put.is_ok or put.args.get("rows"):
            return
        known = self.found.setdefault((put, place), ident)
        if known != ident:
            self._break("origin", f"row {place} of a put is row {known[1]} and row {row}", put, op)
        elif put.args.get("keys"):
            self._bind_key(op, ident, put.args["keys"][place])
        else:
            self.keyless.add(ident)

    def _row_of(self, put, place):
        """(store, row) of the put's row, or None. A put by row of unknown outcome has no store."""
        if put.is_ok:
            return put.store, put.result["rows"][place]
        return self.found.get((put, place))

    # ---- how long things stay --------------------------------------------------------------------

    def _deaths(self) -> None:
        """Clears and losses: what may end the life of a row, and what certainly has."""
        # (store that certainly did it, or None; what it names) -> clears
        self.clears: dict[tuple, Clears] = defaultdict(Clears)
        for op in self.by_kind["clear"]:
            end, part = self._end_of(op), op.partition
            names = [("all", part)] if op.args.get("all") else []
            names += [("row", part, row) for row in op.args.get("rows") or ()]
            names += [("key", part, key) for key in op.args.get("keys") or ()]
            names += [("any key", part)] if op.args.get("keys") else []
            for name in names:
                self.clears[op.store if op.is_ok else None, name].add(op.call, end, op)
        # Rows are gone for good by a clear that succeeded and found them there.
        self.dead: dict[tuple, tuple] = {}
        for ident, since in self.known_since.items():
            part = self.part_of[ident]
            self._kill(ident, ("all", part), since)
            self._kill(ident, ("row", part, ident[1]), since)
        for (_, part, key), rows in self.rows_of_key.items():
            for ident, (since, _) in rows.items():
                self._kill(ident, ("key", part, key), since)
        losses = self.history.losses
        self.losses_of = {
            unit: [loss.at for loss in losses if loss.unit in (None, unit)]
            for unit in {loss.unit for loss in losses}
        }
        self.losses_of.setdefault(None, [])
        self.any_loss = [loss.at for loss in losses]

    def _end_of(self, op) -> float:
        """Until when a clear or a reset may be at work."""
        if op.is_ok:
            return op.done
        return (op.call if op.status is None else op.done) + self.late_ns

    def _kill(self, ident, name, since) -> None:
        """Notes the earliest end of a clear that certainly found the row."""
        clears = self.clears.get((ident[0], name))
        end, op = clears.soonest_after(since) if clears else (inf, None)
        if end < self.dead.get(ident, (inf, None))[0]:
            self.dead[ident] = (end, op)

    def _until(self, ident, start, told) -> float:
        """The earliest moment at which a row that was there at `start` may have gone, told by
        somebody whose news of losses are not older than `told`."""
        store, row = ident
        part, key = self.part_of.get(ident), self.key_of.get(ident)
        names = [("all", part), ("row", part, row)]
        if key is not None:
            names.append(("key", part, key))
        elif ident not in self.keyless:
            names.append(("any key", part))
        until = inf
        for name in names:
            for by in (store, None):
                clears = self.clears.get((by, name))
                if clears:
                    until = min(until, clears.first_from(start))
        unit = self.unit_of.get(ident)
        losses = self.any_loss if unit is None else self.losses_of.get(unit, self.losses_of[None])
        at = bisect_left(losses, told)
        return min(until, losses[at]) if at < len(losses) else until

    def _presence(self) -> None:
        """Spans of time in which cells, rows and keys were there for certain."""
        self.cells: dict[tuple, Cell] = defaultdict(Cell)
        self.cell_spans: dict[tuple, Spans] = defaultdict(Spans)
        self.row_spans: dict[tuple, Spans] = defaultdict(Spans)
        self.key_spans: dict[tuple, Spans] = defaultdict(Spans)
        for put in self.by_kind["put"]:
            self._present_put(put)
        for op in self.by_kind["get"]:
            if op.is_ok:
                for _, row, name, value in self._cells_read(op):
                    self.cells[op.store, row, name].reads.append((op, value))
                    self._there((op.store, row), name, op.call, op.call, op.done, op)
        # The controller's word may be of before a loss that it has not heard of.
        for op in self.by_kind["fetch"] + self.lists:
            if op.is_ok:
                told = op.call - self.late_ns
                for row, name in _granted(op) if op.kind == "fetch" else _listed(op):
                    self._there((op.store, row), name, op.call, told, op.done, op)

    def _present_put(self, put) -> None:
        since, why = (put.done, put) if put.is_ok else (inf, put)
        # A put of new rows is published whole: what was read of it tells of all of it.
        if _is_new(put) and not put.is_failed:
            since, why = min((since, why), self.first_read.get(put, (inf, put)), key=lambda s: s[0])
        for name, values in put.args["cells"].items():
            for place, value in enumerate(values):
                ident = self._row_of(put, place)
                if ident is not None:
                    self.cells[(*ident, name)].writes.append((put, value))
                    if since < inf:
                        self._there(ident, name, put.call, put.call, since, why)

    def _there(self, ident, name, start, told, since, op) -> None:
        """The cell was there at some moment from `start` to `since`, and so from `since` on."""
        until = self._until(ident, start, told)
        if since >= until:
            return
        span = Span(since, until, op)
        self.cell_spans[(*ident, name)].add(span)
        self.row_spans[ident].add(span)
        key = self.key_of.get(ident)
        if key is None:
            return
        part = self.part_of[ident]
        bound, _ = self.rows_of_key[ident[0], part, key][ident]
        if bound < until:
            span = Span(max(since, bound), until, op)
            self.key_spans[part, key, name].add(span)
            self.key_spans[part, key, None].add(span)

    # ---- reads -----------------------------------------------------------------------------------

    def _check_reads(self) -> None:
        for op in self.by_kind["get"]:
            if not op.is_ok:
                continue
            asked = op.args.get("rows")
            if asked is not None and op.result["rows"] != asked:
                self._break("origin", f"asked for rows {asked}, got {op.result['rows']}", op)
            for _, row, name, value in self._cells_read(op):
                self.counts["cells read"] += 1
                if value:
                    self._check_read(op, row, name, value)

    def _check_read(self, op, row, name, value) -> None:
        wrote = self.wrote.get(value)
        where = f"row {row} field {name} of {op.partition}"
        if wrote is None:
            self._break("origin", f"{where} has value {value}, which nobody put", op)
            return
        put, place = wrote.op, wrote.place
        if wrote.field != name or put.partition != op.partition:
            self._break(
                "origin",
                f"{where} has value {value}, put to field {wrote.field} of {put.partition}",
                put,
                op,
            )
            return
        rows, keys = put.args.get("rows"), put.args.get("keys")
        if rows and rows[place] != row:
            self._break("origin", f"{where} has what was put to row {rows[place]}", put, op)
        elif put.is_ok and (put.store, put.result["rows"][place]) != (op.store, row):
            self._break(
                "origin",
                f"{where} of store {op.store} has what was put to row "
                f"{put.result['rows'][place]} of store {put.store}",
                put,
                op,
            )
        elif keys and self.key_of.get((op.store, row), keys[place]) != keys[place]:
            self._break("origin", f"{where} has what was put to key {keys[place]}", put, op)
        elif op.done < put.call:
            self._break("early", f"{where} has value {value} before it was put", put, op)
        elif not put.may_publish(op.call) and not self._may_replace(put, op.store, row, name):
            self._break("unpublished", f"{where} has what a put wrote that failed", put, op)

    def _may_replace(self, put, store, row, name) -> bool:
        """Whether the cell may have been published before the put ended."""
        ident = (store, row)
        for other, _ in self.cells[store, row, name].writes:
            if other is not put and not other.is_failed and other.call < put.done:
                return True
        return self._may_write(ident, name, put.done, put)

    def _may_write(self, ident, name, before, but=None) -> bool:
        """Whether a put of unknown outcome may have written the cell."""
        key = self.key_of.get(ident)
        for put in self._vague_puts.get((self.part_of.get(ident), name), ()):
            if put.call >= before:
                break
            if put is but:
                continue
            keys, rows = put.args.get("keys"), put.args.get("rows")
            if (rows and ident[1] in rows) or (keys and (key is None or key in keys)):
                return True
            if _is_new(put) and any((put, n) not in self.found for n in range(put.args["n"])):
                return True
        return False

    @cached_property
    def _vague_puts(self):
        vague = defaultdict(list)
        for put in self.by_kind["put"]:
            if not put.is_ok and not put.is_failed:
                for name in put.args["cells"]:
                    vague[put.partition, name].append(put)
        return vague

    # ---- one order for each cell -----------------------------------------------------------------

    def _check_order(self) -> None:
        """A register with distinct values is linearizable if and only if the zones of its values
        fit (Gibbons and Korach, "Testing shared memories", 1997): the zone of a value goes from the
        first end to the last beginning of its write and reads. Where the end comes first the value
        must have been there all that time, so that no two such zones overlap, and no other value's
        write and reads lie inside."""
        for (store, row, name), cell in self.cells.items():
            self.counts["cells"] += 1
            if len(cell.writes) + len(cell.reads) > 1:
                self._check_cell(f"row {row} field {name}", store, cell)

    def _check_cell(self, where, store, cell) -> None:
        zones: dict[tuple, list] = {}
        for put, value in cell.writes:
            if put.is_ok:
                zones[value or put] = [put.done, put.call, put, put]
        for op, value in cell.reads:
            wrote = self.wrote.get(value)
            if wrote is None:
                continue
            put = wrote.op
            zone = zones.get(value)
            if zone is None:
                zone = zones[value] = [put.latest, put.call, put, put]
            if op.done < zone[0]:
                zone[0], zone[2] = op.done, op
            if op.call > zone[1]:
                zone[1], zone[3] = op.call, op
        forward = sorted((z for z in zones.values() if z[0] < z[1]), key=lambda z: z[0])
        for one, two in pairwise(forward):
            if two[0] < one[1]:
                self._break(
                    "order",
                    f"{where} has one value, another, and the first again",
                    *one[2:],
                    *two[2:],
                )
                return
        starts = [zone[0] for zone in forward]
        for zone in zones.values():
            if zone[0] < zone[1]:
                continue
            at = bisect_left(starts, zone[1]) - 1
            if at >= 0 and forward[at][1] > zone[0]:
                self._break(
                    "order",
                    f"{where} has a value that had been replaced",
                    *forward[at][2:],
                    *zone[2:],
                )
                return

    # ---- what is gone ----------------------------------------------------------------------------

    def _check_cleared(self) -> None:
        for ops in (self.by_kind["get"], self.by_kind["fetch"], self.lists):
            for op in ops:
                if not op.is_ok:
                    continue
                for row in op.result["rows"]:
                    end, clear = self.dead.get((op.store, row), (inf, None))
                    if end < op.call:
                        self._break("cleared", f"row {row} of {op.partition} is back", clear, op)

    # ---- what has to be there --------------------------------------------------------------------

    def _check_missing(self) -> None:
        for op in self.by_kind["get"]:
            names = op.args.get("fields")
            if op.status in MISSING and names:
                spans = [self._asked(op, what, name) for what in _asked_for(op) for name in names]
                if spans and all(spans):
                    self._break(
                        "lost",
                        f"{op.status} for {_asked_for(op)} of {op.partition}, which must be there",
                        spans[0].op,
                        op,
                    )
            elif op.is_ok and op.args.get("skip") and op.args.get("keys"):
                left_out = set(op.args["keys"]) - set(op.result.get("keys") or op.args["keys"])
                for key in left_out:
                    span = self._asked(op, key, None)
                    if span:
                        self._break("lost", f"key {key} is left out", span.op, op)

    def _asked(self, op, what, name):
        if op.args.get("keys") is not None:
            spans = self.key_spans.get((op.partition, what, name))
        else:
            # The store that had the row at that time is the one that answered.
            spans = self.cell_spans.get((op.store, what, name))
        self.counts["absences"] += 1
        return spans.over(op.call, op.done) if spans else None

    def _check_lists(self) -> None:
        """A list has every row that is there all the time, with its fields."""
        for op in self.lists:
            if op.is_ok:
                for row, name in _listed(op, is_missing=True):
                    spans = self.cell_spans.get((op.store, row, name))
                    span = spans.over(op.call, op.done) if spans else None
                    if span:
                        self._break("lost", f"row {row} is listed without {name}", span.op, op)
        # Rows come and go in the order of time; lists look at those that are there.
        whole = [op for op in self.lists if op.is_ok and not op.args.get("some")]
        moments = [(op.call, 1, op) for op in whole]
        for ident, spans in self.row_spans.items():
            moments += [(span.since, 0, (ident, span)) for span in spans.all]
        moments.sort(key=lambda moment: moment[:2])
        there: dict[tuple, dict] = defaultdict(dict)
        for at, what, item in moments:
            if what == 0:
                ident, span = item
                rows = there[ident[0], self.part_of[ident]]
                if ident not in rows or rows[ident].until < span.until:
                    rows[ident] = span
                continue
            op = item
            rows = there[op.store, op.partition]
            for ident in [ident for ident, span in rows.items() if span.until <= at]:
                del rows[ident]
            listed = set(op.result["rows"])
            for ident, span in rows.items():
                if span.since < op.call and span.until > op.done and ident[1] not in listed:
                    self._break("lost", f"row {ident[1]} is not listed", span.op, op)

    def _check_keys(self) -> None:
        for (_, part, key), rows in self.rows_of_key.items():
            ordered = sorted(rows.items(), key=lambda item: item[1][1].call)
            for (one, (since, op)), (two, (_, other)) in pairwise(ordered):
                if since < other.call and self._until(one, op.call, op.call) > other.done:
                    text = f"key {key} of {part} is row {one[1]} and row {two[1]}"
                    self._break("key", text, op, other)

    # ---- fetches ---------------------------------------------------------------------------------

    def _check_fetches(self) -> None:
        self._find_final()
        grants: dict[tuple, list[Op]] = defaultdict(list)
        for op in self.by_kind["fetch"]:
            if not op.is_ok:
                continue
            for row in op.result["rows"]:
                self.counts["rows granted"] += 1
                grants[op.store, op.args["task"], row].append(op)
                for name in op.args["fields"]:
                    self._check_ready(op, row, name)
        resets = defaultdict(list)
        for op in self.by_kind["reset"]:
            resets[op.partition].append((op.call, self._end_of(op), op))
        of_task: dict[tuple, Clears] = defaultdict(Clears)
        for part, items in resets.items():
            for task in {op.args["task"] for op in self.by_kind["fetch"]}:
                for call, end, op in items:
                    if op.args.get("task") in (None, task):
                        of_task[part, task].add(call, end, op)
        for (_, task, row), ops in grants.items():
            if len(ops) > 1:
                self._check_twice(task, row, ops, of_task[ops[0].partition, task])
        self._check_delivered(grants, resets)

    def _find_final(self) -> None:
        """Fetches whose rows were surely the task's: the store has heard that they were taken. It
        has when it answered the same session again; where histories name no sessions, when it
        answered the same process soon, and that had not been stopped."""
        self.final: set[Op] = set()
        waiting: dict[str, list[Op]] = defaultdict(list)
        pauses: dict[str, list] = defaultdict(list)
        for process, begin, end in self.history.pauses:
            pauses[process].append((begin, end))
        by_end = sorted(
            (op for op in self.history.ops if op.is_ok and op.kind != "stat"),
            key=lambda op: op.done,
        )
        for op in by_end:
            left = []
            for fetch in waiting[op.process]:
                if op.call < fetch.done:
                    left.append(fetch)
                elif self._has_heard(fetch, op, pauses[op.process]):
                    self.final.add(fetch)
            waiting[op.process] = left
            if op.kind == "fetch" and op.result["rows"]:
                waiting[op.process].append(op)

    @staticmethod
    def _has_heard(fetch, op, pauses) -> bool:
        session = fetch.result.get("session")
        if session is not None:
            return op.result.get("session") == session and op.store == fetch.store
        return (
            op.store == fetch.store
            and op.done - fetch.done < SESSION_NS
            and not any(b <= op.done and e >= fetch.done - SILENCE_NS for b, e in pauses)
        )

    def _check_ready(self, op, row, name) -> None:
        ident = (op.store, row)
        cell = self.cells.get((*ident, name))
        if cell and any(not put.is_failed and put.call < op.done for put, _ in cell.writes):
            return
        if not self._may_write(ident, name, op.done):
            self._break("unready", f"row {row} is granted, and nobody put its {name}", op)

    def _check_twice(self, task, row, ops, resets) -> None:
        text = f"task {task} is given row {row} twice"
        final = [op for op in ops if op in self.final]
        for one in final:
            for two in ops:
                if two is one or resets.first_from(one.call) <= two.done:
                    continue
                # Of one that may not count: the store had heard of the first before it.
                is_later = two.call > one.done
                if is_later or (two in self.final and resets.first_from(two.call) > one.done):
                    self._break("twice", text, one, two)
                    return
        # Each of several grants needs a reset of its own before the next.
        begin, end = min(op.call for op in ops), max(op.done for op in ops)
        if len(final) > 1 and resets.count(begin, end) < len(final) - 1:
            self._break("twice", text, *final)

    def _check_delivered(self, grants, resets) -> None:
        """Once it is quiet, a poll for one row that comes back empty leaves no ready row behind."""
        vague = Counter()
        for op in self.by_kind["fetch"]:
            if op.status is None:
                vague[op.partition, op.args["task"]] += op.args["n"]
        rows_of = defaultdict(set)
        for store, row, name in self.cell_spans:
            rows_of[store, self.part_of[store, row], name].add(row)
        for op in self.by_kind["fetch"]:
            is_empty = op.is_ok and op.args.get("poll") and not op.result["rows"]
            if not is_empty or op.args["n"] != 1 or not self._is_quiet(op):
                continue
            task, names = op.args["task"], op.args["fields"]
            rows = set.intersection(*(rows_of[op.store, op.partition, name] for name in names))
            left = []
            for row in sorted(rows):
                spans = [self.cell_spans[op.store, row, n].over(op.call, op.done) for n in names]
                if not all(spans) or self._had(grants, resets, op, task, row):
                    continue
                left.append((row, spans[0].op))
            self.counts["rows delivered"] += len(rows)
            if len(left) > vague[op.partition, task]:
                row, why = left[0]
                self._break("undelivered", f"task {task} never gets row {row}", why, op)

    def _is_quiet(self, op) -> bool:
        return any(begin <= op.call and op.done <= end for begin, end in self.history.quiet)

    @staticmethod
    def _had(grants, resets, poll, task, row) -> bool:
        """Whether the task may have the row: granted, and not surely reset since."""
        for fetch in grants.get((poll.store, task, row), ()):
            if fetch.call < poll.done and not any(
                op.is_ok
                and call > fetch.done
                and end < poll.call
                and op.args.get("task") in (None, task)
                for call, end, op in resets[poll.partition]
            ):
                return True
        return False


def _is_new(put) -> bool:
    """A put that makes rows of its own."""
    return not put.args.get("keys") and not put.args.get("rows")


def _granted(op):
    """(row, field) of cells that a fetch calls produced."""
    return ((row, name) for row in op.result["rows"] for name in op.args["fields"])


def _listed(op, is_missing=False):
    """(row, field) of cells that a list calls produced, or (is_missing) not produced."""
    names = op.result.get("fields") or ()
    for row, marks in zip(op.result["rows"], op.result.get("produced") or (), strict=False):
        for name, mark in zip(names, marks, strict=True):
            if (mark == "0") == is_missing:
                yield row, name


def _asked_for(op):
    return op.args["keys"] if op.args.get("keys") is not None else op.args["rows"]


def check(history: History, late_s: float = 60) -> tuple[list[Broken], Counter]:
    checker = Checker(history, late_s)
    return checker.run(), checker.counts


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "--late-s", type=float, default=60, help="what may still be at work so long"
    )
    args = parser.parse_args(argv)
    try:
        broken, counts = check(load(args.files), args.late_s)
    except Malformed as error:
        print(f"not a history: {error}", file=sys.stderr)
        return 2
    for one in broken[:20]:
        print(one)
    print(", ".join(f"{word} {cnt}" for word, cnt in sorted(counts.items())))
    print(f"{len(broken)} rules broken" if broken else "the history is right")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
