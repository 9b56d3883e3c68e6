# SPDX-License-Identifier: Apache-2.0
"""Values and names at their ends: empty, huge, odd, many at once, and more than fit."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time

import pytest
from procs import FACTOR, partition, stat, tq, tq_json, tq_start

_numbers = itertools.count()


@pytest.fixture
def part():
    """A partition that no other test uses."""
    return f"part-{next(_numbers)}"


def tq_json_behind(command, *words, env):
    """With the options in front of "--", so that words may begin with dashes."""
    return json.loads(tq(command, "--json", "--", *words, env=env))


@pytest.mark.parametrize(
    "key",
    [
        "ключ-鍵-🔑",
        "two words",
        " leading and trailing ",
        "--dashes",
        "a/b/../c",
        "quote'\"\\",
        "tab\tand\nnewline",
        "\x1b[31mred",
        "k" * 1024,
        "=x",
        "@file",
        "%s%n",
    ],
)
def test_odd_keys_and_partitions_are_names_like_others(store, key):
    env = {"TQ_ADDRESS": store.address}
    part = key[:256]
    tq("put", "--", part, key, "x=1", env=env)
    (row,) = tq_json_behind("ls", part, env=env)
    assert row["key"] == key
    table = tq("ls", "--", part, env=env)
    assert "\x1b" not in table and len(table.splitlines()) == 2
    assert tq_json_behind("get", part, key, env=env)[key]["x"]["value"] == "1"
    assert part in tq_json("ls", env=env)
    assert tq_json_behind("clear", part, key, env=env) == {"cleared": 1}
    tq("clear", "--all", "--", part, env=env)


def test_a_key_of_bytes_that_are_no_text_is_kept(store, part):
    key = b"\xff\xfe\x80key"
    tq("put", part, key, "x=1", address=store.address)
    assert "1" in tq("get", part, key, address=store.address, data=True).decode(errors="replace")
    tq("get", part, b"\xff\xfe\x81key", address=store.address, status=1)


def test_values_of_no_bytes_are_values(store, part, tmp_path):
    at = {"address": store.address}
    (tmp_path / "empty").touch()
    tq(
        "put",
        part,
        "a",
        "text=",
        f"bytes=@{tmp_path / 'empty'}",
        "none:f32[0]=",
        "two:i8[2,0]=",
        **at,
    )
    got = tq_json("get", part, "a", **at)["a"]
    assert got["text"] == {"encoding": "text", "bytes": 0, "value": ""}
    assert got["bytes"] == {"encoding": "bytes", "bytes": 0}
    assert got["none"] == {"encoding": "tensor", "dtype": "f32", "shape": [0], "values": []}
    assert got["two"] == {"encoding": "tensor", "dtype": "i8", "shape": [2, 0], "values": []}
    tq("get", part, "a", "-o", str(tmp_path / "out"), **at)
    assert (tmp_path / "out" / "a.bytes").stat().st_size == 0


def test_200_megabytes_come_back_as_they_went(daemons, tmp_path):
    store = daemons.store("tcp", unit_capacity="1GiB")
    block = os.urandom(1 << 20)
    want = hashlib.sha256()
    with (tmp_path / "huge").open("wb") as file:
        for i in range(200):
            data = i.to_bytes(8, "little") + block[8:]
            want.update(data)
            file.write(data)
    at = {"address": store.address}
    tq("put", "p", "big", f"f=@{tmp_path / 'huge'}", "note=x", **at)
    tq("get", "p", "big", "--field", "f", "-o", str(tmp_path / "out"), **at)
    with (tmp_path / "out" / "big.f").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").digest() == want.digest()
    tq("clear", "p", "--all", **at)
    assert sum(unit["used_bytes"] for unit in stat(store.address)["units"]) == 0


def test_64_puts_at_once_are_64_rows(store, part):
    started = [
        tq_start("put", part, f"k{i}", f"n:i64={i}", "--tag", f"i={i}", address=store.address)
        for i in range(64)
    ]
    for process in started:
        _, said = process.communicate(timeout=60 * FACTOR)
        assert process.returncode == 0, said
    rows = tq_json("ls", part, address=store.address)
    assert {row["key"]: row["tags"]["i"] for row in rows} == {f"k{i}": i for i in range(64)}
    got = tq_json("get", part, *[f"k{i}" for i in range(64)], address=store.address)
    assert [got[f"k{i}"]["n"]["values"] for i in range(64)] == [[i] for i in range(64)]


def test_64_puts_at_once_of_one_key_are_one_row(store, part):
    started = [
        tq_start("put", part, "same", f"n:i64={i}", address=store.address) for i in range(64)
    ]
    for process in started:
        _, said = process.communicate(timeout=60 * FACTOR)
        assert process.returncode == 0, said
    (row,) = tq_json("ls", part, address=store.address)
    assert row["key"] == "same"
    assert partition(stat(store.address), part)["rows_made"] == 1


def test_a_full_store_refuses_with_figures_after_the_timeout_and_clear_makes_room(
    daemons, tmp_path
):
    store = daemons.store(unit_capacity="16MiB", store_units=1)
    at = {"address": store.address}
    (tmp_path / "part").write_bytes(b"x" * (5 << 20))
    for key in ("a", "b"):
        tq("put", "p", key, f"f=@{tmp_path / 'part'}", **at)
    began = time.monotonic()
    said = tq("put", "p", "c", f"f=@{tmp_path / 'part'}", "--timeout", "1.5", status=4, **at)
    assert time.monotonic() - began > 1.4
    assert "E_FULL" in said
    assert "5242880" in said  # what was wanted, and where
    assert "storage unit 1" in said and "unit.capacity" in said
    assert [row["key"] for row in tq_json("ls", "p", **at)] == ["a", "b"]
    # A waiting put goes on as soon as there is room.
    waiting = tq_start("put", "p", "d", f"f=@{tmp_path / 'part'}", **at)
    time.sleep(0.5)
    assert waiting.poll() is None
    tq("clear", "p", "a", **at)
    _, said = waiting.communicate(timeout=20 * FACTOR)
    assert waiting.returncode == 0, said
    assert [row["key"] for row in tq_json("ls", "p", **at)] == ["b", "d"]


def test_what_can_never_fit_is_refused_at_once(daemons, tmp_path):
    store = daemons.store(unit_capacity="16MiB", store_units=2)
    (tmp_path / "large").write_bytes(b"x" * (9 << 20))  # more than one unit's half
    began = time.monotonic()
    said = tq("put", "p", "a", f"f=@{tmp_path / 'large'}", address=store.address, status=2)
    assert time.monotonic() - began < 5 * FACTOR
    assert "E_TOO_LARGE" in said and "8388608" in said
    assert tq_json("ls", address=store.address) in ([], ["p"])
