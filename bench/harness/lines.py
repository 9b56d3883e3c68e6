# SPDX-License-Identifier: Apache-2.0
"""The lines of the benchmark: which program with which options, what it yields, what is aimed at."""

from dataclasses import dataclass, field

REFERENCE = "reference"
EMBEDDED = "tq"
JOINED = "tq-joined"
TQ_SIDES = (EMBEDDED, JOINED)
SIDES = (REFERENCE, *TQ_SIDES)

MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """What DESIGN section 11 asks of a metric: at least (or at most) a bound.

    The bound is a number in the metric's own unit. With of="memcpy" it is a share of this run's
    memcpy rate; with of="LINE" it is a multiple of the same metric of that line.
    """

    at_least: bool
    bound: float
    of: str = ""


@dataclass(frozen=True)
class Metric:
    """One figure of a line: the median (or p99) over all runs of what the program calls `key`.

    With `payload_bytes` the program's seconds are turned into bytes per second.
    """

    name: str
    key: str
    unit: str
    stat: str = "median"
    payload_bytes: int = 0
    targets: dict = field(default_factory=dict)

    @property
    def more_is_better(self):
        return self.unit.endswith("/s")


@dataclass(frozen=True, eq=False)
class Line:
    """One measurement. `sessions` times each side starts afresh and makes `runs` runs in turn with
    the others; the first run of each session, on memory never used before, is kept apart as cold.
    """

    name: str
    title: str
    program: str
    options: tuple
    metrics: tuple
    runs: int = 5
    sessions: int = 1
    sides: tuple = SIDES
    quick: bool = True
    ready_limit_s: float = 120.0
    run_limit_s: float = 120.0
    reference_options: tuple = ()
    reference_conf: dict = field(default_factory=dict)
    reference_note: str = ""
    needs_store_session: bool = False

    @property
    def payload_bytes(self):
        return max(metric.payload_bytes for metric in self.metrics)


def _both(target):
    return dict.fromkeys(TQ_SIDES, target)


def _columns(name, title, fields, row_bytes, targets):
    payload = 1024 * row_bytes
    return Line(
        name=name,
        title=title,
        program="columns",
        options=("--rows", "1024", "--fields", str(fields), "--row-bytes", str(row_bytes)),
        metrics=(
            Metric("put", "put_s", "B/s", payload_bytes=payload, targets=targets),
            Metric("get", "get_s", "B/s", payload_bytes=payload, targets=targets),
        ),
        sessions=3,
    )


def _block(fields):
    return _columns(
        f"block{fields}",
        f"256 MiB, 1,024 rows, {fields} field{'s' if fields > 1 else ''}",
        fields,
        MIB // 4,
        _both(Target(True, 0.5, "memcpy")),
    )


# 9,216 x 32 KiB in 0.08 s without a copy over a socket and in 0.2 s with, at a memcpy of 7 GB/s.
_VALUES_BYTES = 9216 * 32 * 1024
_VALUES_TARGETS = {
    EMBEDDED: Target(True, _VALUES_BYTES / 0.08 / 7e9, "memcpy"),
    JOINED: Target(True, _VALUES_BYTES / 0.2 / 7e9, "memcpy"),
}


def _kv(name, title, batch, calls, put_targets, get_targets):
    return Line(
        name=name,
        title=title,
        program="kv",
        options=("--batch", str(batch), "--calls", str(calls)),
        metrics=(
            Metric("put", "put_keys_per_s", "keys/s", targets=put_targets),
            Metric("get", "get_keys_per_s", "keys/s", targets=get_targets),
            Metric("one put", "put_call_s", "s"),
            Metric("one get", "get_call_s", "s"),
        ),
    )


def _fetch(name, rows, ready_limit_s, target, quick=True):
    return Line(
        name=name,
        title=f"fetch of 32 rows from {rows:,} ready",
        program="fetch",
        options=("--rows", str(rows)),
        metrics=(
            Metric("fetch", "fetch_s", "s", targets=target),
            Metric("a task's first", "first_s", "s"),
        ),
        runs=10,
        quick=quick,
        ready_limit_s=ready_limit_s,
    )


# "The same" within what two medians of a shared machine differ by.
_SAME_AS_1K = _both(Target(False, 1.5, "fetch1k"))
_POLLING = {"controller": {"polling_mode": True}}

LINES = (
    _block(1),
    _block(8),
    _block(32),
    _columns("values32k", "9,216 values of 32 KiB", 9, 9 * 32 * 1024, _VALUES_TARGETS),
    _kv(
        "kv1",
        "one key in a call",
        1,
        200,
        {EMBEDDED: Target(True, 5000), JOINED: Target(True, 2500)},
        {},
    ),
    _kv(
        "kv32",
        "32 keys in a call",
        32,
        100,
        _both(Target(True, 60000)),
        _both(Target(True, 60000)),
    ),
    Line(
        name="kv32x8",
        title="32 keys in a call, 8 processes",
        program="swarm",
        options=("--processes", "8", "--batch", "32", "--pairs", "60"),
        metrics=(
            Metric("put and get", "keys_per_s", "keys/s"),
            Metric(
                "CPU per key, all processes",
                "cpu_s_per_key",
                "s",
                targets=_both(Target(False, 15e-6)),
            ),
        ),
        needs_store_session=True,
    ),
    Line(
        name="wake",
        title="wake-up of a waiting get_meta",
        program="wake",
        options=(),
        metrics=(
            Metric("call of put to wake", "wake_s", "s"),
            Metric(
                "call of put to wake, p99",
                "wake_s",
                "s",
                stat="p99",
                targets=_both(Target(False, 1e-3)),
            ),
            Metric("return of put to wake, p99", "after_put_s", "s", stat="p99"),
            Metric("the put", "put_s", "s"),
        ),
        reference_options=("--poll-ms", "1"),
        reference_conf=_POLLING,
        reference_note="its waiting get_meta blocks the producer's put until it fails, so its"
        " consumer asks every 1 ms, in polling mode",
    ),
    Line(
        name="stream",
        title="wake-up of a StreamingDataset",
        program="wake",
        options=("--stream", "--wakes", "10"),
        metrics=(Metric("call of put to row", "wake_s", "s"),),
        runs=3,
        sides=(REFERENCE,),
        reference_conf=_POLLING,
        reference_note="what its users have instead of a waiting get_meta, in polling mode, which"
        " it needs",
    ),
    _fetch("fetch1k", 1000, 120, {}),
    _fetch("fetch100k", 100_000, 180, _SAME_AS_1K),
    _fetch("fetch1m", 1_000_000, 180, _SAME_AS_1K, quick=False),
    Line(
        name="clear",
        title="clear of 1,024 rows x 28 fields",
        program="clear",
        options=(),
        metrics=(Metric("clear", "clear_s", "s", targets=_both(Target(False, 5e-3))),),
        runs=15,
    ),
    Line(
        name="swarm64",
        title="64 processes x 20 put and get",
        program="swarm",
        options=("--processes", "64", "--pairs", "20"),
        metrics=(
            Metric("pairs", "pairs_per_s", "pairs/s"),
            Metric("one pair", "pair_s", "s"),
            Metric("worst pair", "worst_pair_s", "s"),
        ),
        ready_limit_s=300.0,
        needs_store_session=True,
    ),
)
