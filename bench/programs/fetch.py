# SPDX-License-Identifier: Apache-2.0
"""get_meta of 32 rows where N rows are ready: each run is a new task that fetches 16 times."""

import torch
from _bench import drive, open_store, timed
from tensordict import TensorDict

CHUNK = 8192


class Fetch:
    def __init__(self, args):
        self.batch = args.batch
        self.fetches = args.fetches
        self.tq, self.client, _ = open_store(args.conf)
        for first in range(0, args.rows, CHUNK):
            rows = min(CHUNK, args.rows - first)
            data = TensorDict({"x": torch.arange(first, first + rows)}, batch_size=[rows])
            self.client.put(data, partition_id="fetch")

    def run(self, number):
        seconds = []
        for _ in range(self.fetches):
            meta, fetch_s = timed(
                self.client.get_meta,
                data_fields=["x"],
                batch_size=self.batch,
                partition_id="fetch",
                task_name=f"task_{number}",
            )
            if meta.size != self.batch:
                raise AssertionError(f"asked for {self.batch} rows, got {meta.size}")
            seconds.append(fetch_s)
        # The first question of a task may build what the later ones use.
        return {"first_s": seconds[0], "fetch_s": seconds[1:]}

    def close(self):
        self.tq.close()


def options(parser):
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--fetches", type=int, default=16, help="in one run")


if __name__ == "__main__":
    drive(Fetch, __doc__, options)
