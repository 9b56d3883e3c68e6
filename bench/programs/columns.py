# SPDX-License-Identifier: Apache-2.0
"""Put and get a block of rows as F fields: put, get_data, and an untimed check and clear."""

import torch
from _bench import drive, one_per_row, open_store, timed
from tensordict import TensorDict


class Columns:
    def __init__(self, args):
        self.rows = args.rows
        width = args.row_bytes // args.fields // 4
        self.tq, self.client, _ = open_store(args.conf)
        self.columns = {f"field_{i:02d}": torch.randn(args.rows, width) for i in range(args.fields)}
        self.data = TensorDict(self.columns, batch_size=[args.rows])

    def run(self, number):
        for column in self.columns.values():
            column[:, 0] = number
        meta, put_s = timed(self.client.put, self.data, partition_id="columns")
        got, get_s = timed(self.client.get_data, meta)
        self.check(got, number)
        del got
        self.client.clear_samples(meta)
        return {"put_s": put_s, "get_s": get_s}

    def check(self, got, number):
        """Every row of every run by its first element; all bytes in the first run."""
        for name, column in self.columns.items():
            if not bool((one_per_row(got[name], self.rows) == number).all()):
                raise AssertionError(f"run {number}: {name} holds rows of another run")
            if number == 0:
                values = got[name].values() if got[name].is_nested else got[name]
                if not torch.equal(values.reshape(column.shape), column):
                    raise AssertionError(f"{name} came back changed")

    def close(self):
        self.tq.close()


def options(parser):
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--fields", type=int, default=8)
    parser.add_argument("--row-bytes", type=int, default=256 * 1024, help="over all fields")


if __name__ == "__main__":
    drive(Columns, __doc__, options)
