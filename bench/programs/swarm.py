# SPDX-License-Identifier: Apache-2.0
"""Many processes at once, each putting keys and getting them back, P pairs in a run."""

import time

import torch
from _bench import Crew, drive, open_store, used_cpu_s
from tensordict import TensorDict

PARTITION = "swarm"


def swarm_member(pairs, batch):
    def member(rank, _shared):
        import transfer_queue as tq

        tq.init()
        tq.get_client()
        values = torch.full((batch, 16), float(rank))

        def put_and_get(keys):
            if batch == 1:
                tq.kv_put(key=keys[0], partition_id=PARTITION, fields={"x": values[0]})
            else:
                fields = TensorDict({"x": values}, batch_size=[batch])
                tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=fields)
            got = tq.kv_batch_get(keys=keys, partition_id=PARTITION)
            if got.batch_size[0] != batch:
                raise AssertionError(f"{batch} keys gave {got.batch_size[0]} rows")

        def obey(number):
            pair_s = []
            keys_used = []
            for pair in range(pairs):
                keys = [f"{number}_{rank}_{pair}_{i}" for i in range(batch)]
                start = time.perf_counter()
                put_and_get(keys)
                pair_s.append(time.perf_counter() - start)
                keys_used += keys
            return pair_s, keys_used

        return obey

    return member


class Swarm:
    def __init__(self, args):
        self.store_session = args.store_session
        self.crew = Crew(args.processes, swarm_member(args.pairs, args.batch))
        self.tq, _, _ = open_store(args.conf)
        self.crew.join_store()

    def run(self, number):
        cpu_before = used_cpu_s(self.store_session)
        start = time.perf_counter()
        self.crew.send(number)
        answers = self.crew.receive()
        elapsed = time.perf_counter() - start
        cpu_s = used_cpu_s(self.store_session) - cpu_before
        pair_s = [seconds for mine, _ in answers for seconds in mine]
        keys = [key for _, mine in answers for key in mine]
        for first in range(0, len(keys), 1024):
            self.tq.kv_clear(keys=keys[first : first + 1024], partition_id=PARTITION)
        return {
            "pairs_per_s": len(pair_s) / elapsed,
            "keys_per_s": 2 * len(keys) / elapsed,
            "cpu_s_per_key": cpu_s / (2 * len(keys)),
            "pair_s": pair_s,
            "worst_pair_s": max(pair_s),
        }

    def close(self):
        self.crew.end()
        self.tq.close()


def options(parser):
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=20, help="put and get pairs of each process")
    parser.add_argument("--batch", type=int, default=1, help="keys in one call")
    parser.add_argument(
        "--store-session", type=int, help="session id of a store outside this program, for its CPU"
    )


if __name__ == "__main__":
    drive(Swarm, __doc__, options)
