# SPDX-License-Identifier: Apache-2.0
"""How soon a waiting consumer has a row that a producer in another process publishes.

The consumer waits in get_meta; with --poll-ms it asks again and again instead, which is what a
user of a store without waiting does; with --stream it iterates a StreamingDataset. wake_s runs
from the call of the producer's put to the consumer's return, so it includes the put (put_s);
after_put_s runs from the put's return, and is 0 where the consumer was first. The row is published
somewhere between the put's call and its return, so the time from there lies between the two.
"""

import time

import torch
from _bench import Crew, drive, open_store
from tensordict import TensorDict

FIELDS = ["x"]


def waiting_consumer(poll_s):
    def member(rank, _config):
        import transfer_queue as tq

        tq.init()
        client = tq.get_client()

        def obey(partition):
            called_ns = time.monotonic_ns()
            while True:
                meta = client.get_meta(
                    data_fields=FIELDS, batch_size=1, partition_id=partition, task_name="train"
                )
                if meta.size > 0:
                    return called_ns, time.monotonic_ns()
                time.sleep(poll_s)

        return obey

    return member


def streaming_consumer(rank, config):
    import transfer_queue as tq

    dataset = tq.StreamingDataset(
        config=config,
        batch_size=1,
        micro_batch_size=1,
        data_fields=FIELDS,
        partition_id="stream",
        task_name="train",
        dp_rank=0,
    )
    rows = iter(dataset)

    def obey(_partition):
        called_ns = time.monotonic_ns()
        next(rows)
        return called_ns, time.monotonic_ns()

    return obey


class Wake:
    def __init__(self, args):
        self.wakes = args.wakes
        self.stream = args.stream
        consumer = streaming_consumer if args.stream else waiting_consumer(args.poll_ms / 1000)
        self.crew = Crew(1, consumer)
        self.tq, self.client, config = open_store(args.conf)
        self.crew.join_store(config if args.stream else None)
        self.row = TensorDict({"x": torch.zeros(1, 4)}, batch_size=[1])

    def run(self, number):
        partition = "stream" if self.stream else f"wake_{number}"
        put_s, wake_s = [], []
        for wake in range(self.wakes):
            meta = self.client.get_meta(
                data_fields=FIELDS, batch_size=1, partition_id=partition, mode="insert"
            )
            self.crew.send(partition)
            # Long enough to be waiting; spread, so that no period of a poller is met in step.
            time.sleep(0.030 + 0.0137 * (wake % 8))
            start_ns = time.monotonic_ns()
            self.client.put(self.row, metadata=meta)
            end_ns = time.monotonic_ns()
            [(called_ns, woken_ns)] = self.crew.receive()
            if called_ns >= start_ns:
                raise AssertionError("the consumer was not waiting when the row was put")
            put_s.append((end_ns - start_ns) / 1e9)
            wake_s.append((woken_ns - start_ns) / 1e9)
            self.client.clear_samples(meta)
        after_put_s = [max(0.0, woken - put) for woken, put in zip(wake_s, put_s, strict=True)]
        return {"wake_s": wake_s, "put_s": put_s, "after_put_s": after_put_s}

    def close(self):
        self.crew.end()
        self.tq.close()


def options(parser):
    parser.add_argument("--wakes", type=int, default=50, help="wake-ups in one run")
    parser.add_argument("--poll-ms", type=float, default=0.0, help="pause between two questions")
    parser.add_argument("--stream", action="store_true", help="consume through StreamingDataset")


if __name__ == "__main__":
    drive(Wake, __doc__, options)
