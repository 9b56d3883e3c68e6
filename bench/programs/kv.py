# SPDX-License-Identifier: Apache-2.0
"""Small key-value operations, one after the other: kv_put or kv_batch_put, then kv_batch_get."""

import time

import torch
from _bench import drive, open_store, timed
from tensordict import TensorDict

PARTITION = "kv"


class SmallValues:
    def __init__(self, args):
        self.calls = args.calls
        self.batch = args.batch
        self.tq, _, _ = open_store(args.conf)

    def run(self, number):
        key_lists = [
            [f"{number}_{call}_{i}" for i in range(self.batch)] for call in range(self.calls)
        ]
        values = torch.full((self.batch, 16), float(number))
        put_call_s = [timed(self.put, keys, values)[1] for keys in key_lists]
        get_call_s = []
        for keys in key_lists:
            start = time.perf_counter()
            got = self.tq.kv_batch_get(keys=keys, partition_id=PARTITION)
            get_call_s.append(time.perf_counter() - start)
            if got.batch_size[0] != self.batch:
                raise AssertionError(f"{self.batch} keys gave {got.batch_size[0]} rows")
        for keys in key_lists:
            self.tq.kv_clear(keys=keys, partition_id=PARTITION)
        keys = self.calls * self.batch
        return {
            "put_keys_per_s": keys / sum(put_call_s),
            "get_keys_per_s": keys / sum(get_call_s),
            "put_call_s": put_call_s,
            "get_call_s": get_call_s,
        }

    def put(self, keys, values):
        if self.batch == 1:
            self.tq.kv_put(key=keys[0], partition_id=PARTITION, fields={"x": values[0]})
        else:
            fields = TensorDict({"x": values}, batch_size=[self.batch])
            self.tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=fields)

    def close(self):
        self.tq.close()


def options(parser):
    parser.add_argument("--batch", type=int, default=1, help="keys in one call")
    parser.add_argument("--calls", type=int, default=200, help="puts, and gets, in one run")


if __name__ == "__main__":
    drive(SmallValues, __doc__, options)
