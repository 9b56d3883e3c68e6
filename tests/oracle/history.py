# SPDX-License-Identifier: Apache-2.0
"""Histories: what clients asked of a store and what they were told, as they recorded it.

A history is any number of files of JSON lines (docs/testing.md has the format). `load` reads them,
`History` is what the rules of check.py look at: operations with a beginning and, unless nobody lived
to see it, an end, on one clock for all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf

# A put, clear or reset that ended with this may have happened, at any time.
UNKNOWN = frozenset({"E_OUTCOME_UNKNOWN"})
# With one of these it may have happened before its end, in a store that is gone.
GONE = frozenset({"E_STALE_STORE", "E_STORE_GONE"})
# What a get says of cells that are not there.
MISSING = frozenset(
    {"E_NO_PARTITION", "E_NO_FIELD", "E_NO_KEY", "E_NOT_FOUND", "E_NOT_PRODUCED", "E_ROW_GONE"}
)
OPS = frozenset(
    {
        "put", "get", "fetch", "clear", "reset", "list", "fetch all",
        "insert", "resolve", "tags", "status", "stat",
    }
)  # fmt: skip


class Malformed(Exception):
    """Not a history."""


@dataclass(slots=True, eq=False)
class Op:
    """One call of one process. `done` is inf and `status` None where no end was recorded."""

    process: str
    number: int
    kind: str
    call: int
    args: dict
    done: float = inf
    status: str | None = None
    result: dict = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.status == "OK"

    @property
    def is_failed(self) -> bool:
        """Certainly not published."""
        return self.status is not None and not self.is_ok and self.status not in UNKNOWN | GONE

    @property
    def latest(self) -> float:
        """The last moment at which it can have done anything: a put that fails may have replaced
        something while it lasted."""
        return inf if self.status in UNKNOWN else self.done

    def may_publish(self, moment) -> bool:
        """Whether what this put wrote may be there at `moment`, in a cell that had nothing."""
        return not self.is_failed and (self.status not in GONE or moment <= self.done)

    @property
    def partition(self) -> str:
        return self.args["part"]

    @property
    def store(self) -> str | None:
        return self.result.get("store")

    def __str__(self) -> str:
        return f"{self.kind} {self.process}/{self.number} [{self.call}, {self.done}] {self.status}"


@dataclass(slots=True)
class Loss:
    """A role's memory died at `at`: a unit's, or (unit None) anyone's, the store's included."""

    at: int
    unit: int | None


@dataclass(slots=True)
class History:
    """Operations by the time of their calls, and what the harness knew."""

    ops: list[Op] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    # (process, from, until): times in which it did not run.
    pauses: list[tuple[str, int, float]] = field(default_factory=list)
    # (from, until): times in which nothing was disturbed.
    quiet: list[tuple[int, float]] = field(default_factory=list)


def parse(lines) -> History:
    """A history from lines (str, bytes or dicts) in any order across processes, in their own order
    for each of them."""
    history = History()
    open_ops: dict[tuple[str, int], Op] = {}
    seen: set[tuple[str, int]] = set()
    stopped: dict[str, int] = {}
    for line in lines:
        if not isinstance(line, dict):
            if not line.strip():
                continue
            try:
                line = json.loads(line)
            except ValueError:
                raise Malformed(f"not a line of JSON: {line[:200]!r}") from None
        try:
            _add(history, open_ops, seen, stopped, line)
        except (KeyError, TypeError) as error:
            raise Malformed(f"{error!r} in {str(line)[:200]}") from None
    for process, at in stopped.items():
        history.pauses.append((process, at, inf))
    history.ops.sort(key=lambda op: op.call)
    history.losses.sort(key=lambda loss: loss.at)
    return history


def _add(history, open_ops, seen, stopped, line) -> None:
    if "event" in line:
        what, at = line["event"], line["t"]
        if what == "lost":
            history.losses.append(Loss(at, line.get("unit")))
        elif what == "stop":
            stopped.setdefault(line["p"], at)
        elif what == "continue":
            history.pauses.append((line["p"], stopped.pop(line["p"]), at))
        elif what == "quiet":
            history.quiet.append((at, inf))
        elif what == "loud" and history.quiet:
            history.quiet[-1] = (history.quiet[-1][0], at)
        # Other events are for who reads the file.
        return
    key = (line["p"], line["id"])
    if "op" in line:
        if line["op"] not in OPS:
            raise Malformed(f"an unknown op: {str(line)[:200]}")
        if key in seen:
            raise Malformed(f"{key} is called twice")
        seen.add(key)
        op = open_ops[key] = Op(line["p"], line["id"], line["op"], line["t"], line)
        history.ops.append(op)
        return
    op = open_ops.pop(key, None)
    if op is None:
        raise Malformed(f"{key} ends twice, or never began: {str(line)[:200]}")
    if line["t"] < op.call:
        raise Malformed(f"{key} ends before it began")
    op.done, op.status, op.result = line["t"], line["status"], line


def load(paths) -> History:
    """Reads files. A last line that its writer did not live to finish is left out."""

    def lines():
        for path in paths:
            with open(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield line

    return parse(lines())
