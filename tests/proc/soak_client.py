# SPDX-License-Identifier: Apache-2.0
"""One process of a soak, as soak.c is, over the Python package.

soak_client.py produce|consume ADDRESS PARTITION PACE_MS
"""

from __future__ import annotations

import select
import sys

import torch
from tensordict import TensorDict

import transfer_queue as tq
from transfer_queue.errors import DeadlineError

ROWS = 8
BATCHES_AHEAD = 3
WAIT_S = 0.5  # between looks at the standard input


def is_over(ms=0):
    """Has the standard input ended, or does it within so long?"""
    return bool(select.select([sys.stdin], [], [], ms / 1000)[0])


def say(line):
    print(line, flush=True)


def large(number, version):
    """The large cell of a row: its length and every element tell both."""
    length = 5_000 + (number * 7919 + version * 104729) % 95_000
    return torch.arange(length, dtype=torch.int32) + number * 2 + version


def columns(partition, numbers, version):
    small = torch.tensor([[number * 31 + i for i in range(25)] for number in numbers])
    ragged = torch.nested.as_nested_tensor(
        [large(number, version) for number in numbers], layout=torch.jagged
    )
    text = [f"{partition} {number}" for number in numbers]
    return {"small": small, "large": ragged, "text": text}


def produce_batch(partition, first):
    numbers = list(range(first, first + ROWS))
    keys = [f"row-{number}" for number in numbers]
    data = TensorDict(columns(partition, numbers, 0), batch_size=[ROWS])
    tq.kv_batch_put(keys, partition, data)
    again = {"large": columns(partition, numbers[::2], 1)["large"]}
    tq.kv_batch_put(keys[::2], partition, TensorDict(again, batch_size=[ROWS // 2]))
    ids = torch.tensor([[number, 1 - i % 2] for i, number in enumerate(numbers)])
    tq.kv_batch_put(keys, partition, TensorDict({"id": ids}, batch_size=[ROWS]))


def fetched(partition, fields, cnt):
    """Rows that have the fields, or None when there are none in time."""
    try:
        return tq.get_client().get_meta(fields, cnt, partition, task_name="soak", timeout=WAIT_S)
    except DeadlineError:
        return None


def produce(partition, credit, pace_ms):
    batches = ahead = 0
    while not is_over():
        if ahead < BATCHES_AHEAD:
            produce_batch(partition, batches * ROWS)
            ahead += 1
            batches += 1
            if batches == 1:
                say("working")
            is_over(pace_ms)
            continue
        meta = fetched(credit, ["n"], 1)
        if meta is not None:
            tq.get_client().clear_samples(meta)
            ahead -= 1
    return batches


def consume_batch(partition, meta):
    data = tq.get_client().get_data(meta)
    tensors = zip(*(data[name].unbind() for name in ("id", "small", "large")), strict=True)
    for (id_, small, ragged), text in zip(tensors, data["text"], strict=True):
        number, version = id_.tolist()
        good = (
            small.tolist() == [number * 31 + i for i in range(25)]
            and torch.equal(ragged, large(number, version))
            and text == f"{partition} {number}"
        )
        if not good:
            say("bytes differ")
            sys.exit(2)
    tq.get_client().clear_samples(meta)


def consume(partition, credit, _):
    batches = 0
    while not is_over():
        meta = fetched(partition, ["id", "small", "large", "text"], ROWS)
        if meta is None:
            continue
        consume_batch(partition, meta)
        tq.kv_put(f"{batches}", credit, {"n": torch.tensor(1)})
        batches += 1
        if batches == 1:
            say("working")
    return batches


def main():
    side, address, partition, pace_ms = sys.argv[1:]
    torch.set_num_threads(1)
    tq.init({"address": address})
    say("connected")
    side_main = {"produce": produce, "consume": consume}[side]
    batches = side_main(partition, f"{partition}.credit", int(pace_ms))
    say(f"worked {batches}")
    tq.close()


if __name__ == "__main__":
    main()
