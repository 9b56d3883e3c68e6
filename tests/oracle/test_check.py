# SPDX-License-Identifier: Apache-2.0
"""Each rule catches the fault that it is there for, and lets pass what is right or may be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import check
from history import Malformed, load, parse
from hypothesis import given, settings
from hypothesis import strategies as st

S = 1_000_000_000


class Story:
    """A history, told call by call; times are seconds."""

    def __init__(self):
        self.lines = []
        self.number = 0

    def op(self, kind, call, done=None, status="OK", p="c1", store="A", args=None, **result):
        self.number += 1
        key = {"p": p, "id": self.number}
        args = {"part": "train", **(args or {})}
        self.lines.append({**key, "t": int(call * S), "op": kind, **args})
        if done is not None:
            end = {**key, "t": int(done * S), "status": status, "store": store, **result}
            self.lines.append(end)

    def put(self, call, done, rows, cells, keys=None, into=None, **more):
        args = {"n": len(next(iter(cells.values()))), "cells": cells}
        args |= {"keys": keys} if keys else {"rows": into} if into else {}
        self.op("put", call, done, args=args, rows=rows, **more)

    def get(self, call, done, rows, cells, by=None, keys=None, skip=False, **more):
        """Of these rows; or by these keys, which were these rows."""
        asked = {"keys": by, "rows": None} if by else {"rows": rows}
        args = {**asked, "fields": list(cells), "skip": skip}
        self.op("get", call, done, args=args, rows=rows, cells=cells, keys=keys or by, **more)

    def miss(
        self, call, done, status="E_NOT_PRODUCED", rows=None, keys=None, fields=("x",), **more
    ):
        args = {"rows": rows, "keys": keys, "fields": list(fields)}
        self.op("get", call, done, status, args=args, **more)

    def fetch(self, call, done, rows, task="t", fields=("x",), poll=False, n=None, **more):
        args = {"task": task, "fields": list(fields), "n": n or len(rows), "poll": poll}
        self.op("fetch", call, done, args=args, rows=rows, **more)

    def clear(self, call, done, rows=None, keys=None, is_all=False, **more):
        self.op("clear", call, done, args={"rows": rows, "keys": keys, "all": is_all}, **more)

    def reset(self, call, done, task=None, **more):
        self.op("reset", call, done, args={"task": task}, **more)

    def list(self, call, done, rows, keys=None, fields=("x",), produced=None, **more):
        marks = produced or ["1" * len(fields)] * len(rows)
        named = {"keys": keys or [None] * len(rows), "fields": list(fields), "produced": marks}
        self.op("list", call, done, rows=rows, **named, **more)

    def event(self, what, at, **more):
        self.lines.append({"event": what, "t": int(at * S), **more})

    def broken(self):
        """The rules that the history breaks."""
        found, _ = check.check(parse(self.lines))
        return sorted({one.rule for one in found})


@pytest.fixture
def story():
    return Story()


# ---- what is right ---------------------------------------------------------------------------


def test_a_life_without_faults_is_right(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]}, units=[1, 1])
    story.put(1, 2, [7], {"x": ["c"], "y": ["d"]}, keys=["k"])
    story.get(3, 4, [5], {"x": ["a"]})
    story.get(3, 4, [7], {"y": ["d"]}, by=["k"])
    story.put(4, 5, [5], {"x": ["e"]}, into=[5])
    story.get(6, 7, [5, 6], {"x": ["e", "b"]})
    story.fetch(7, 8, [5, 6])
    story.fetch(7, 8, [5, 6], task="other")
    story.reset(9, 10, "t")
    story.fetch(11, 12, [5, 7])
    story.list(12, 13, [5, 6, 7], [None, None, "k"])
    story.clear(13, 14, rows=[5])
    story.miss(15, 16, "E_NOT_FOUND", [5])
    story.clear(16, 17, is_all=True)
    story.list(18, 19, [])
    assert story.broken() == []


def test_writes_at_the_same_time_may_be_read_in_either_order(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(2, 9, [5], {"x": ["b"]}, into=[5])
    story.put(2, 9, [5], {"x": ["c"]}, into=[5], p="c2")
    story.get(3, 4, [5], {"x": ["c"]}, p="c3")
    story.get(5, 6, [5], {"x": ["b"]}, p="c3")
    story.get(10, 11, [5], {"x": ["b"]}, p="c3")
    assert story.broken() == []


@pytest.mark.parametrize("status", [None, "E_OUTCOME_UNKNOWN"])
def test_a_put_of_unknown_outcome_may_be_seen_late_or_never(story, status):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    end = None if status is None else 3
    story.put(2, end, None, {"x": ["b"]}, keys=["k"], status=status, p="c2")
    story.put(2, end, None, {"x": ["never"]}, keys=["other"], status=status, p="c3")
    story.get(4, 5, [5], {"x": ["a"]})
    story.get(50, 51, [5], {"x": ["b"]}, by=["k"])
    story.miss(52, 53, "E_NO_KEY", keys=["other"])
    assert story.broken() == []


def test_a_failed_put_may_have_replaced_what_was_there(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(2, 4, None, {"x": ["b"]}, into=[5], status="E_TIMEOUT")
    story.get(5, 6, [5], {"x": ["b"]})
    assert story.broken() == []


def test_what_a_unit_that_died_had_may_be_gone(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(0, 1, [6], {"x": ["b"]})
    story.list(1, 2, [5, 6], units=[1, 2])
    story.event("lost", 3, unit=1)
    story.miss(4, 5, rows=[5])
    assert story.broken() == []
    story.miss(4, 5, rows=[6])
    assert story.broken() == ["lost"]


def test_another_store_has_other_rows_of_the_same_numbers(story):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.fetch(1, 2, [5])
    story.event("lost", 3)
    story.put(4, 5, [5], {"x": ["b"]}, keys=["k2"], store="B")
    story.get(6, 7, [5], {"x": ["b"]}, store="B")
    story.miss(6, 7, "E_NO_KEY", keys=["k"], store="B")
    story.fetch(6, 7, [5], store="B")
    assert story.broken() == []


def test_a_grant_that_its_taker_did_not_live_to_acknowledge_may_be_given_again(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5], p="c2")
    story.fetch(4, 5, [5])
    story.get(5, 6, [5], {"x": ["a"]})
    assert story.broken() == []


def test_a_pause_may_have_cost_the_session_and_its_grants(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5], p="c2")
    story.event("stop", 1, p="c2")
    story.event("continue", 2.5, p="c2")
    story.get(3.1, 3.2, [5], {"x": ["a"]}, p="c2")
    story.fetch(4, 5, [5])
    assert story.broken() == []


def test_empty_values_say_nothing_of_their_writer(story):
    story.put(0, 1, [5, 6], {"x": ["", ""]})
    story.get(2, 3, [5, 6], {"x": ["", ""]})
    assert story.broken() == []


def test_a_clear_that_timed_out_may_go_on(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.clear(2, 3, rows=[5], status="E_TIMEOUT")
    story.get(4, 5, [5], {"x": ["a"]})
    story.miss(6, 7, rows=[5])
    assert story.broken() == []


def test_a_put_may_be_seen_before_its_store_dies(story):
    story.put(0, 5, None, {"x": ["a"]}, status="E_STALE_STORE")
    story.get(1, 2, [5], {"x": ["a"]})
    story.fetch(1, 2, [5])
    story.event("lost", 3)
    assert story.broken() == []
    story.get(6, 7, [5], {"x": ["a"]}, store="B")
    assert story.broken() == ["origin", "unpublished"]


def test_rows_that_were_reserved_may_get_a_key(story):
    story.list(0, 1, [5], [None], produced=["0"])
    story.put(2, 3, [5], {"x": ["a"]}, keys=["k"])
    assert story.broken() == []


def test_a_fetch_that_waited_over_a_reset_may_get_what_was_given_before_it(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(1, 9, [5], session=1)
    story.fetch(2, 3, [5], p="c2", session=2)
    story.reset(4, 5, "t", p="c2", session=2)
    story.get(10, 11, [5], {"x": ["a"]}, session=1)
    assert story.broken() == []


def test_a_key_may_name_another_row_after_a_clear(story):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.clear(2, 3, keys=["k"])
    story.put(4, 5, [6], {"x": ["b"]}, keys=["k"])
    story.get(6, 7, [6], {"x": ["b"]}, by=["k"])
    assert story.broken() == []


# ---- each rule catches its fault -------------------------------------------------------------


@pytest.mark.parametrize("status", ["E_BUG", "E_MALFORMED", "E_RUNTIME", "E_INVALID"])
def test_status(story, status):
    story.miss(0, 1, status, rows=[1])
    assert story.broken() == ["status"]


def test_unique(story):
    story.put(0, 1, [5], {"x": ["a"], "y": ["a"]})
    assert story.broken() == ["unique"]


@pytest.mark.parametrize(
    "read",
    [
        {"rows": [5], "cells": {"x": ["nobody's"]}},
        {"rows": [6], "cells": {"x": ["a"]}},
        {"rows": [5], "cells": {"y": ["a"]}},
        {"rows": [5], "cells": {"x": ["a"]}, "store": "B"},
        {"rows": [5], "cells": {"x": ["a"]}, "args": {"part": "eval"}},
    ],
    ids=["value", "row", "field", "store", "partition"],
)
def test_origin(story, read):
    story.put(0, 1, [5, 6], {"x": ["a", "b"], "y": ["c", "d"]})
    args = read.pop("args", {})
    story.op("get", 2, 3, args={"rows": read["rows"], "fields": ["x"], **args}, **read)
    assert "origin" in story.broken()


def test_origin_of_what_was_put_to_a_row_that_exists(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]})
    story.put(2, None, None, {"x": ["c"]}, into=[5])
    story.get(4, 5, [6], {"x": ["c"]})
    assert story.broken() == ["origin"]


def test_origin_of_a_put_whose_rows_nobody_was_told(story):
    story.put(0, None, None, {"x": ["a"]}, p="c2")
    story.get(1, 2, [5], {"x": ["a"]})
    story.get(1, 2, [6], {"x": ["a"]})
    assert "origin" in story.broken()


def test_origin_of_the_rows_of_an_answer(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]})
    args = {"rows": [5], "fields": ["x"]}
    story.op("get", 2, 3, args=args, rows=[6], cells={"x": ["b"]})
    assert story.broken() == ["origin"]


def test_early(story):
    story.get(0, 1, [5], {"x": ["a"]})
    story.put(2, 3, [5], {"x": ["a"]})
    assert "early" in story.broken()


@pytest.mark.parametrize("status", ["E_TIMEOUT", "E_FULL", "E_CANCELLED"])
def test_unpublished(story, status):
    story.put(0, 1, None, {"x": ["a"]}, status=status)
    story.get(2, 3, [5], {"x": ["a"]})
    assert story.broken() == ["unpublished"]


def test_order_of_a_value_that_was_replaced(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(2, 3, [5], {"x": ["b"]}, into=[5])
    story.get(4, 5, [5], {"x": ["a"]})
    assert story.broken() == ["order"]


def test_order_of_reads_alone(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(2, None, None, {"x": ["b"]}, into=[5], p="c2")
    story.get(3, 4, [5], {"x": ["b"]})
    story.get(5, 6, [5], {"x": ["a"]})
    assert story.broken() == ["order"]


def test_order_after_a_failed_put_has_been_replaced(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.put(2, 3, None, {"x": ["b"]}, into=[5], status="E_TIMEOUT")
    story.put(4, 5, [5], {"x": ["c"]}, into=[5])
    story.get(6, 7, [5], {"x": ["b"]})
    assert story.broken() == ["order"]


@pytest.mark.parametrize("how", [{"rows": [5]}, {"keys": ["k"]}, {"is_all": True}])
@pytest.mark.parametrize("kind", ["get", "fetch", "list"])
def test_cleared(story, how, kind):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.clear(2, 3, **how)
    if kind == "get":
        story.get(4, 5, [5], {"x": ["a"]})
    elif kind == "fetch":
        story.fetch(4, 5, [5])
    else:
        story.list(4, 5, [5], ["k"])
    assert story.broken() == ["cleared"]


def test_lost_by_row(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.miss(2, 3, rows=[5])
    assert story.broken() == ["lost"]


def test_lost_by_key(story):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.miss(2, 3, "E_NO_KEY", keys=["k"])
    assert story.broken() == ["lost"]


def test_lost_from_a_get_that_leaves_out_keys(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]}, keys=["k", "l"])
    args = {"keys": ["k", "l"], "rows": None, "fields": ["x"], "skip": True}
    story.op("get", 2, 3, args=args, rows=[5], keys=["k"], cells={"x": ["a"]})
    assert story.broken() == ["lost"]


def test_lost_after_a_put_was_seen_to_be_published(story):
    story.put(0, None, None, {"x": ["a"]}, p="c2")
    story.get(1, 2, [5], {"x": ["a"]})
    story.miss(3, 4, rows=[5])
    assert story.broken() == ["lost"]


def test_lost_part_of_a_put_that_is_published_whole(story):
    story.put(0, 20, [5, 6], {"x": ["a", "b"], "y": ["c", "d"]}, p="c2")
    story.get(1, 2, [5], {"x": ["a"]})
    story.miss(3, 4, rows=[6], fields=["y"])
    assert story.broken() == ["lost"]


@pytest.mark.parametrize("why", ["fetch", "list"])
def test_lost_what_the_controller_called_produced(story, why):
    story.put(0, None, None, {"x": ["a"]}, p="c2")
    if why == "fetch":
        story.fetch(1, 2, [5])
    else:
        story.list(1, 2, [5])
    story.miss(3, 4, rows=[5])
    assert story.broken() == ["lost"]


def test_lost_from_a_list(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]})
    story.list(2, 3, [5])
    assert story.broken() == ["lost"]


def test_lost_field_in_a_list(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.list(2, 3, [5], produced=["0"])
    assert story.broken() == ["lost"]


def test_a_clear_does_not_excuse_what_was_put_after_it(story):
    story.clear(0, 1, is_all=True)
    story.put(2, 3, [5], {"x": ["a"]})
    story.miss(4, 5, rows=[5])
    assert story.broken() == ["lost"]


def test_a_loss_does_not_excuse_what_was_put_after_it(story):
    story.event("lost", 1)
    story.put(2, 3, [5], {"x": ["a"]})
    story.miss(4, 5, rows=[5])
    assert story.broken() == ["lost"]


def test_key(story):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.put(2, 3, [6], {"x": ["b"]}, keys=["k"])
    assert story.broken() == ["key"]


def test_two_keys_of_one_row(story):
    story.put(0, 1, [5], {"x": ["a"]}, keys=["k"])
    story.list(2, 3, [5], ["l"])
    assert story.broken() == ["key"]


def test_unready(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5], fields=("x", "y"))
    assert story.broken() == ["unready"]


def test_twice_by_clients_that_live_on(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5])
    story.get(3, 4, [5], {"x": ["a"]})
    story.fetch(5, 6, [5], p="c2")
    assert story.broken() == ["twice"]


def test_twice_at_the_same_time(story):
    story.put(0, 1, [5], {"x": ["a"]})
    for p in ("c1", "c2"):
        story.fetch(2, 3, [5], p=p)
        story.get(3, 4, [5], {"x": ["a"]}, p=p)
    assert story.broken() == ["twice"]


def test_one_reset_allows_one_more_grant(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.reset(1, 20, "t", p="c9")
    for at in (2, 5, 8):
        story.fetch(at, at + 1, [5])
        story.get(at + 1, at + 2, [5], {"x": ["a"]})
        assert story.broken() == (["twice"] if at == 8 else [])


def test_a_reset_of_another_task_excuses_nothing(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5])
    story.get(3, 4, [5], {"x": ["a"]})
    story.reset(4, 5, "other")
    story.fetch(5, 6, [5], p="c2")
    assert story.broken() == ["twice"]


def test_twice_where_sessions_are_told(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5], session=1)
    story.get(30, 40, [5], {"x": ["a"]}, session=1)
    story.fetch(50, 60, [5], p="c2", session=2)
    assert story.broken() == ["twice"]


def test_a_session_that_ended_excuses_a_second_grant(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5], session=1)
    story.get(3, 4, [5], {"x": ["a"]}, session=3)
    story.fetch(5, 6, [5], p="c2", session=2)
    assert story.broken() == []


def test_undelivered(story):
    story.put(0, 1, [5, 6], {"x": ["a", "b"]})
    story.fetch(2, 3, [5])
    story.event("quiet", 4)
    story.fetch(5, 6, [], poll=True, n=1)
    assert story.broken() == ["undelivered"]


def test_undelivered_after_a_reset(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, 3, [5])
    story.reset(3.2, 3.8)
    story.event("quiet", 4)
    story.fetch(5, 6, [], poll=True, n=1)
    assert story.broken() == ["undelivered"]


def test_a_taker_that_died_may_have_the_rows(story):
    story.put(0, 1, [5], {"x": ["a"]})
    story.fetch(2, None, [5], p="c2")
    story.event("quiet", 4)
    story.fetch(5, 6, [], poll=True, n=1)
    assert story.broken() == []


# ---- an order, found by trying all -----------------------------------------------------------


@st.composite
def register_histories(draw):
    """Up to six writes and reads of one cell: (kind, call, done, value, may it be left out)."""
    cnt = draw(st.integers(2, 6))
    moments = draw(st.permutations(range(2, 2 + 2 * cnt)))
    ops, values = [], ["init"]
    kinds = draw(st.lists(st.sampled_from(["OK", "late", "failed", "read", "read"]), min_size=cnt))
    for i, kind in enumerate(kinds[:cnt]):
        call, done = sorted(moments[2 * i : 2 * i + 2])
        if kind == "read":
            ops.append((kind, call, done, draw(st.sampled_from([*values, "v0", "v1"])), False))
        else:
            values.append(f"v{i}")
            end = 1000 if kind == "late" else done
            ops.append((kind, call, end, f"v{i}", kind != "OK"))
    known = {op[3] for op in ops if op[0] != "read"} | {"init"}
    return [op for op in ops if op[3] in known]


def has_order(ops, value="init"):
    """Whether some order of moments explains every read; tried one by one."""
    if all(op[4] for op in ops):
        return True
    for i, (kind, call, _, of, _) in enumerate(ops):
        rest = ops[:i] + ops[i + 1 :]
        # What ended before it began comes before it, or is left out if it may be.
        if any(op[2] < call and not op[4] for op in rest):
            continue
        rest = [op for op in rest if op[2] > call]
        if kind == "read" and of != value:
            continue
        if has_order(rest, value if kind == "read" else of):
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(register_histories())
def test_zones_say_what_trying_every_order_says(ops):
    story = Story()
    story.put(0, 1, [5], {"x": ["init"]})
    for kind, call, done, value, _ in ops:
        if kind == "read":
            story.get(call, done, [5], {"x": [value]})
        elif kind == "OK":
            story.put(call, done, [5], {"x": [value]}, into=[5])
        elif kind == "late":
            story.put(call, None, None, {"x": [value]}, into=[5])
        else:
            story.put(call, done, None, {"x": [value]}, into=[5], status="E_TIMEOUT")
    assert (story.broken() == []) == has_order(ops)


# ---- files -----------------------------------------------------------------------------------


def test_files_are_read_together_and_what_was_cut_off_is_left_out(story, tmp_path, capsys):
    story.put(0, 1, [5], {"x": ["a"]})
    story.get(2, 3, [5], {"x": ["a"]}, p="c2")
    files = []
    for process in ("c1", "c2"):
        files.append(tmp_path / f"{process}.jsonl")
        lines = [json.dumps(line) for line in story.lines if line["p"] == process]
        files[-1].write_text("\n".join(lines) + '\n{"p": "c1", "id": 9')
    assert len(load(files).ops) == 2
    assert check.main([str(file) for file in files]) == 0
    assert "the history is right" in capsys.readouterr().out


def test_a_broken_rule_is_told_with_its_operations(story, tmp_path, capsys):
    story.put(0, 1, [5], {"x": ["a"]})
    story.miss(2, 3, rows=[5])
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in story.lines))
    assert check.main([str(file)]) == 1
    told = capsys.readouterr().out
    assert "lost: E_NOT_PRODUCED" in told and "put c1/1" in told and "get c1/2" in told


@pytest.mark.parametrize(
    "lines",
    [
        ["not JSON"],
        [{"p": "c", "id": 1, "t": 0, "op": "dance", "part": "p"}],
        [{"p": "c", "id": 1, "t": 0, "status": "OK"}],
        [{"p": "c", "id": 1, "t": 0, "op": "stat"}] * 2,
        [{"p": "c", "id": 1, "t": 5, "op": "stat"}, {"p": "c", "id": 1, "t": 4, "status": "OK"}],
        [{"id": 1, "t": 5, "op": "stat"}],
    ],
)
def test_what_is_no_history_is_refused(lines):
    with pytest.raises(Malformed):
        parse(lines)
