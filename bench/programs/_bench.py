# SPDX-License-Identifier: Apache-2.0
"""What the measuring programs share: how they are driven, how they report, and their helpers.

A program is run by the interpreter of either side and uses only the API that both have. It opens
the store, says that it is ready, and then makes one run for each line "run" on its standard input
(or --runs of them, for use by hand). Each run is answered by one JSON line of metrics: a number,
or a list of samples. Whatever the libraries print goes to standard error.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time


def drive(program_class, description, add_options=None):
    """Run a program: parse its options, make the object, obey the orders, close it.

    program_class(args) opens what it needs; run(number) makes one run and returns its metrics;
    close() ends it.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--runs", type=int, help="make so many runs instead of reading orders")
    parser.add_argument("--conf", type=json.loads, default={}, help="configuration for init, JSON")
    if add_options is not None:
        add_options(parser)
    args = parser.parse_args()

    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    started = time.perf_counter()
    program = program_class(args)
    _say(reply, event="ready", ready_s=time.perf_counter() - started)
    for number in _orders(args.runs):
        metrics = {key: _rounded(value) for key, value in program.run(number).items()}
        _say(reply, event="run", metrics=metrics)
    program.close()
    _say(reply, event="closed")


def _orders(runs):
    if runs is not None:
        yield from range(runs)
        return
    for number, order in enumerate(sys.stdin):
        if order.strip() != "run":
            return
        yield number


def _rounded(value):
    """Seconds to the nanosecond: more digits than that are noise that fills files."""
    return [_rounded(each) for each in value] if isinstance(value, list) else round(value, 9)


def _say(reply, **message):
    reply.write(json.dumps(message) + "\n")
    reply.flush()


def open_store(conf):
    """Make the store, or join the one that TQ_ADDRESS names. Returns (module, client, config)."""
    import transfer_queue as tq

    if "TQ_ADDRESS" in os.environ:
        config = tq.init()
    else:
        config = tq.init(conf)
    return tq, tq.get_client(), config


def timed(function, *args, **kwargs):
    """Call function and return (its result, the seconds that it took)."""
    start = time.perf_counter()
    result = function(*args, **kwargs)
    return result, time.perf_counter() - start


def one_per_row(column, rows):
    """The first element of each of `rows` rows of a column, however the store laid it out."""
    values = column.values() if column.is_nested else column
    return values.reshape(rows, -1)[:, 0]


def used_cpu_s(store_session):
    """The processor time, in seconds, of this program's live processes and of a store elsewhere.

    store_session is the session id (as setsid makes it) of all processes of that store, or None.
    """
    own_group = os.getpgrp()
    ticks = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:
                # The name, in parentheses, may hold anything; the fields follow the last one.
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == own_group or int(fields[3]) == store_session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Crew:
    """Processes that join the store which this process opens.

    They are forked before the store is opened, since forking a running client is not something
    that both sides can do, and importing torch 64 times is not what is measured. Each then calls
    member(rank, shared), which joins and returns a function; that function is called for every
    order and its result is sent back.
    """

    def __init__(self, size, member):
        import transfer_queue  # noqa: F401  (imported once, here, for all members)

        context = multiprocessing.get_context("fork")
        self._pipes = []
        self._members = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_member_main, args=(rank, theirs, ours, member), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._members.append(process)

    def join_store(self, shared=None):
        """Let every member join, once the store is open; returns when all have.

        One after the other: 64 at the same moment is more than the reference's Ray survives.
        """
        address = os.environ.get("TQ_ADDRESS")
        for rank, pipe in enumerate(self._pipes):
            pipe.send((address, shared))
            self._answer_of(rank)

    def send(self, order):
        for pipe in self._pipes:
            pipe.send(order)

    def receive(self):
        return [self._answer_of(rank) for rank in range(len(self._pipes))]

    def _answer_of(self, rank):
        try:
            answer = self._pipes[rank].recv()
        except EOFError:
            raise RuntimeError(f"member {rank} ended early") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        for pipe in self._pipes:
            pipe.close()
        for process in self._members:
            process.join(timeout=10)


def _member_main(rank, pipe, parents_end, member):
    # Only the parent's end being closed everywhere makes this end read end-of-file.
    parents_end.close()
    try:
        address, shared = pipe.recv()
        if address is not None:
            os.environ["TQ_ADDRESS"] = address
        obey = member(rank, shared)
        pipe.send("joined")
        while True:
            pipe.send(obey(pipe.recv()))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(RuntimeError(f"member {rank}: {type(error).__name__}: {error}"))
    # The parent closes the store; on one of the sides a member that closed would end it for all.
    os._exit(0)
