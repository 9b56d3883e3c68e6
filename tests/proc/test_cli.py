# SPDX-License-Identifier: Apache-2.0
"""The command line against a daemon, over ipc and tcp."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from procs import Client, partition, seconds, stat, tq, tq_json, tq_start, until

_numbers = itertools.count()


@pytest.fixture
def part():
    """A partition that no other test uses."""
    return f"part-{next(_numbers)}"


def test_what_is_put_is_got_as_a_table_and_as_json(store, part):
    at = {"address": store.address}
    text = tq("put", part, "a", "prompt=2+2", "tokens:i64[3]=5,6,-7", "--tag", "v=3", **at)
    assert text.startswith("row ")
    table = tq("get", part, "a", **at).splitlines()
    assert table[0].split() == ["KEY", "FIELD", "VALUE"]
    assert table[1].split() == ["a", "prompt", "2+2"]
    assert table[2].split() == ["a", "tokens", "i64[3]", "5", "6", "-7"]
    assert tq_json("get", part, "a", **at) == {
        "a": {
            "prompt": {"encoding": "text", "bytes": 3, "value": "2+2"},
            "tokens": {"encoding": "tensor", "dtype": "i64", "shape": [3], "values": [5, 6, -7]},
        }
    }
    assert list(tq_json("get", part, "a", "--field", "tokens", **at)["a"]) == ["tokens"]


def test_rows_are_listed_with_their_tags_and_fields(store, part):
    at = {"address": store.address}
    first = tq_json("put", part, "a", "x=1", "--tag", "v=3", "--tag", "who=me", **at)["row"]
    tq("put", part, "b", "y=1", **at)
    tq("put", part, "b", "--tag", "ok=true", "--tag", "score=0.5", **at)
    assert part in tq_json("ls", **at)
    assert part in tq("ls", **at).split()
    rows = tq_json("ls", part, "--fields", **at)
    assert [row["key"] for row in rows] == ["a", "b"]
    assert rows[0]["row"] == first
    assert rows[0]["tags"] == {"v": 3, "who": "me"}
    assert (rows[0]["fields"], rows[0]["missing"]) == (["x"], ["y"])
    assert rows[1]["tags"] == {"ok": True, "score": 0.5}
    table = tq("ls", part, "--fields", **at).splitlines()
    assert table[0].split() == ["ROW", "KEY", "UNIT", "FIELDS", "TAGS"]
    assert len(table) == 3


def test_clear_takes_keys_or_everything(store, part):
    at = {"address": store.address}
    for key in "abc":
        tq("put", part, key, "x=1", **at)
    assert tq_json("clear", part, "a", "nobody", **at) == {"cleared": 1}
    assert [row["key"] for row in tq_json("ls", part, **at)] == ["b", "c"]
    assert tq("clear", part, "--all", **at) == "2 rows cleared\n"
    assert part not in tq_json("ls", **at)
    assert tq_json("clear", part, "--all", **at) == {"cleared": 0}


def test_only_a_lost_unit_is_forgotten(store):
    at = {"address": store.address}
    unit = tq_json("stat", **at)["controller"]["units"][0]["id"]
    assert "is not lost" in tq("unit", "forget", str(unit), status=2, **at)
    assert "there is no storage unit 99" in tq("unit", "forget", "99", status=1, **at)
    tq("unit", "forget", "x", status=2, **at)


def test_get_of_rows_without_a_field_in_common_says_what_they_lack(store, part):
    at = {"address": store.address}
    tq("put", part, "a", "x=1", **at)
    tq("put", part, "b", "y=1", "--tag", "n=1", **at)
    for flags in ([], ["--json"]):
        said = tq("get", part, "a", "b", *flags, status=1, **at)
        assert "E_NOT_PRODUCED" in said
        assert "'a' lacks y" in said and "'b' lacks x" in said
    tq("put", part, "bare", "--tag", "n=1", **at)
    assert "'bare' lacks x, y" in tq("get", part, "bare", status=1, **at)
    assert tq_json("get", part, "a", **at)["a"]["x"]["value"] == "1"


def test_stuck_names_the_rows_that_a_fetch_waits_for_and_what_they_lack(store, part):
    at = {"address": store.address}
    tq("put", part, "whole", "prompt=1", "reward:f32=1", **at)
    tq("put", part, "half", "prompt=2", **at)
    assert tq_json("ls", part, "--stuck", **at) == []
    waiting = Client(
        "fetch", store.address, part, "train", 2, seconds(20) * 1000, "prompt", "reward"
    )
    until(lambda: partition(stat(store.address), part)["waiters"] == 1, 5, "a waiter")
    (row,) = tq_json("ls", part, "--stuck", **at)
    assert row["key"] == "half"
    assert row["missing"] == ["reward"]
    table = tq("ls", part, "--stuck", **at).splitlines()
    assert table[0].split() == ["ROW", "KEY", "UNIT", "MISSING", "TAGS"]
    assert "half" in table[1] and "reward" in table[1]
    tq("put", part, "half", "reward:f32=0", **at)
    assert waiting.end() == (0, "fetched 2")
    assert tq_json("ls", part, "--stuck", **at) == []


def test_stat_is_json_with_the_store_its_units_and_sessions(store, part):
    tq("put", part, "a", "x=1", address=store.address)
    figures = stat(store.address)
    assert partition(figures, part)["produced"] == {"x": 1}
    assert partition(figures, part)["rows_active"] == 1
    assert [unit["state"] for unit in figures["controller"]["units"]] == ["present"] * 2
    assert [session["name"] for session in figures["controller"]["sessions"]] == ["tq"]
    assert sum(unit["capacity_bytes"] for unit in figures["units"]) == 256 << 20


def test_stat_as_prometheus_text_has_the_names_of_transfer_queue(store, part):
    at = {"address": store.address}
    odd = part + '-a"b\\c\nd'
    for name in (part, odd):
        tq("put", name, "a", "x=1", **at)
        tq("put", name, "b", "y=1", **at)
    waiting = Client("fetch", store.address, part, 'to"do', 1, seconds(20) * 1000, "x")
    assert waiting.end() == (0, "fetched 1")
    kinds, values = {}, {}
    for line in tq("stat", "--metrics", **at).removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kinds_of = line.split(" ")
            assert name not in kinds  # its series stand together
            kinds[name] = kinds_of
        elif not line.startswith("# HELP "):
            match = re.fullmatch(
                r'([a-z0-9_]+)(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? ([-+.e0-9]+)', line
            )
            assert match, line
            assert match[1] == list(kinds)[-1]
            values[match[1] + (match[2] or "")] = float(match[5])
    escaped = odd.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    for name in (part, escaped):
        assert values[f'tq_partition_samples_total{{partition_id="{name}"}}'] == 2
        assert values[f'tq_partition_production_progress{{partition_id="{name}"}}'] == 0.5
    consumption = "tq_partition_consumption_progress"
    assert values[f'{consumption}{{partition_id="{part}",task_name="to\\"do"}}'] == 0.5
    for unit in (1, 2):
        assert values[f'tq_storage_capacity_total{{storage_unit_id="{unit}"}}'] == 128 << 20
        assert values[f'tq_storage_unit_lost{{storage_unit_id="{unit}"}}'] == 0
    assert sum(v for k, v in values.items() if k.startswith("tq_storage_active_keys_total")) >= 4
    puts = 'tq_storage_payload_transfers_total{storage_unit_id="1",direction="put"}'
    assert values[puts] > 0 and kinds["tq_storage_payload_transfers_total"] == "counter"
    assert values["tq_controller_rows_published_total"] >= 4
    assert values["tq_controller_uptime_seconds"] > 0


def test_doctor_finds_a_good_store_good(store):
    checks = tq_json("doctor", address=store.address)
    assert {"store", "units"} <= {check["check"] for check in checks}
    assert all(check["ok"] for check in checks), checks
    assert "LOOK" not in tq("doctor", address=store.address)


def test_doctor_says_what_is_wrong_with_an_address():
    checks = {c["check"]: c for c in tq_json("doctor", address="ipc:///tmp/no-such", status=1)}
    assert not checks["store"]["ok"]
    assert "/tmp/no-such" in checks["store"]["text"]
    assert "LOOK" in tq("doctor", status=1)  # and without any


NO, USAGE, NO_STORE, NOT_NOW = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["get", "nowhere", "k"], NO, "there is no partition 'nowhere'"),
        (["get", "PART", "nobody"], NO, "no key 'nobody'"),
        (["get", "PART", "a", "--field", "z"], NO, "'z'"),
        (["ls", "nowhere"], NO, "no partition 'nowhere'"),
        (["put", "PART", "a", "x"], USAGE, "'x' is not FIELD=VALUE"),
        (["put", "PART", "a", "=x"], USAGE, "'=x' is not FIELD=VALUE"),
        (["put", "PART", "a"], USAGE, "expected PARTITION KEY"),
        (["put", "PART", "a", "x=@/no/such/file"], USAGE, "/no/such/file: No such file"),
        (["put", "PART", "a", "x:i65=1"], USAGE, "no element type 'i65'"),
        (["put", "PART", "a", "x:i8=128"], USAGE, "'128' is no i8 number"),
        (["put", "PART", "a", "x:u8=-1"], USAGE, "'-1' is no u8 number"),
        (["put", "PART", "a", "x:f32=one"], USAGE, "'one' is no f32 number"),
        (["put", "PART", "a", "x:i64[2]=1"], USAGE, "fewer numbers"),
        (["put", "PART", "a", "x:i64[2]=1,2,3"], USAGE, "more than the 2 numbers"),
        (["put", "PART", "a", "x:i64[2=1,2"], USAGE, "is no shape"),
        (["put", "PART", "a", "x:i64[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]=1"], USAGE, "no shape"),
        (["put", "PART", "a", "x:i8[4294967296,4294967296]=1"], USAGE, "fewer numbers"),
        (["put", "PART", "a", "--tag", "x"], USAGE, "'x' is not NAME=VALUE"),
        (["put", "PART", "a", "--tag", "x=1", "--tag", "x=2"], USAGE, "'x' is given twice"),
        (["put", "PART", "a", "x=1", "x=2"], USAGE, "'x'"),
        (["put", "", "a", "x=1"], USAGE, "partition"),
        (["put", "PART", "k" * 1025, "x=1"], USAGE, "1024"),
        (["put", "PART", "a", "f" * 1025 + "=1"], USAGE, "1024"),
        (["clear", "PART"], USAGE, "--all"),
        (["clear", "PART", "a", "--all"], USAGE, "either"),
        (["ls", "--stuck"], USAGE, "need a PARTITION"),
        (["get", "PART"], USAGE, "at least one KEY"),
        (["stat", "x"], USAGE, "takes no arguments"),
        (["put", "PART", "a", "x=1", "--tags"], USAGE, "'--tags'"),
        (["put", "PART", "a", "x=1", "--tag"], USAGE, "'--tag'"),
        (["ls", "--timeout", "soon"], USAGE, "'soon' is no number of seconds"),
        (["frobnicate"], USAGE, "no command 'frobnicate'"),
    ],
)
def test_what_is_wrong_is_said_with_the_exit_status_of_its_kind(store, args, status, says):
    tq("put", "errors", "a", "y=1", address=store.address)
    args = ["errors" if arg == "PART" else arg for arg in args]
    assert says in tq(*args, env={"TQ_ADDRESS": store.address}, status=status)
    rows = tq_json("ls", "errors", "--fields", address=store.address)
    assert [(row["key"], row["fields"]) for row in rows] == [("a", ["y"])]  # and nothing happened


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nonsense", "'nonsense' is no address"),
        ("tcp://127.0.0.1", "is no address"),
        ("tcp://127.0.0.1:65537", "is no address"),
        ("tcp://127.0.0.1:http", "is no address"),
        ("tcp://127.0.0.1:*", "is no address"),
        ("ipc://", "is no address"),
        ("tcp://127.0.0.1:1#12", "incarnation"),
    ],
)
def test_what_is_no_address_is_bad_usage(address, says):
    assert says in tq("ls", address=address, status=USAGE, limit_s=2)


def test_an_address_where_no_store_is_ends_after_five_seconds():
    addresses = (
        "ipc:///tmp/no-such-store",
        "tcp://127.0.0.1:1",
        "tcp://no-such-host.invalid:1",
    )
    started = [tq_start("ls", address=address) for address in addresses]
    began = time.monotonic()
    for address, process in zip(addresses, started, strict=True):
        _, said = process.communicate(timeout=seconds(10))
        assert process.returncode == NO_STORE
        assert address in said
    assert time.monotonic() - began < seconds(6)


def test_without_an_address_the_remedy_is_named():
    assert "TQ_ADDRESS" in tq("ls", status=USAGE)


def test_the_address_comes_from_the_environment(store):
    tq("ls", env={"TQ_ADDRESS": store.address})


def test_another_incarnation_at_the_address_is_refused(store):
    other = store.address[:-16] + "0123456789abcdef"
    assert "E_STORE_GONE" in tq("ls", address=other, status=NO_STORE)
    tq("ls", address=store.address.split("#")[0])


def test_help_and_version_need_no_store():
    assert "usage: tq COMMAND" in tq("--help")
    assert tq("version").startswith("tq 0.")
    assert "usage: tq COMMAND" in tq(status=USAGE)
