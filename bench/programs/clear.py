# SPDX-License-Identifier: Apache-2.0
"""clear_samples of R rows of F fields, just written."""

import torch
from _bench import drive, open_store, timed
from tensordict import TensorDict


class Clear:
    def __init__(self, args):
        self.tq, self.client, _ = open_store(args.conf)
        self.fields = [f"field_{i:02d}" for i in range(args.fields)]
        self.data = TensorDict(
            {name: torch.zeros(args.rows, 16) for name in self.fields}, batch_size=[args.rows]
        )

    def run(self, number):
        meta = self.client.put(self.data, partition_id="clear")
        _, clear_s = timed(self.client.clear_samples, meta)
        left = self.client.get_meta(
            data_fields=self.fields,
            batch_size=1,
            partition_id="clear",
            mode="force_fetch",
            task_name="look",
        )
        if left.size != 0:
            raise AssertionError(f"{left.size} rows are left after the clear")
        return {"clear_s": clear_s}

    def close(self):
        self.tq.close()


def options(parser):
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--fields", type=int, default=28)


if __name__ == "__main__":
    drive(Clear, __doc__, options)
