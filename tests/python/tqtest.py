# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: columns, keys, and other processes."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import torch
from tensordict import NonTensorStack, TensorDict

import transfer_queue as tq


def rows(**columns):
    """A TensorDict of these columns."""
    first = next(iter(columns.values()))
    size = first.size(0) if isinstance(first, torch.Tensor) else len(first)
    return TensorDict(
        {
            name: NonTensorStack(*column) if isinstance(column, list) else column
            for name, column in columns.items()
        },
        batch_size=[size],
    )


def ragged(*lengths, dtype=torch.float32, inner=()):
    """A jagged tensor whose rows have these lengths; every element of a row is its number."""
    return torch.nested.as_nested_tensor(
        [torch.full((length, *inner), i, dtype=dtype) for i, length in enumerate(lengths)],
        layout=torch.jagged,
    )


def keys_of(cnt, prefix="k"):
    return [f"{prefix}{i}" for i in range(cnt)]


def put_get(partition, column):
    """A column after a put and a get."""
    data = rows(x=column)
    keys = keys_of(data.batch_size[0])
    tq.kv_batch_put(keys, partition, data)
    return tq.kv_batch_get(keys, partition).get("x")


def tqd_path():
    """The tqd that was installed with the package."""
    return Path(sysconfig.get_path("scripts")) / "tqd"


class Program:
    """A Python program of its own, which print()s lines and reads them from sys.stdin.

    It runs in a child of a fork server that has imported torch and the package and nothing more,
    so that it starts in an instant; `is_fresh` starts an interpreter instead, whose exit handlers
    run at its end.
    """

    def __init__(self, code, *, is_fresh=False, **env):
        code, env = textwrap.dedent(code), {**os.environ, **env}
        ours, theirs = socket.socketpair()
        if is_fresh:
            command = [sys.executable, "-W", "ignore", "-u", "-c", code]
            self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=env)
            self.pid = self._process.pid
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch", "tensordict", "transfer_queue"])
            self._process = context.Process(target=_run, args=(code, env, theirs), daemon=True)
            self._process.start()
            self.pid = self._process.pid
        theirs.close()
        self._lines = ours.makefile("r")
        self._socket = ours

    def hear(self):
        """The next line that it prints; "" once it has ended."""
        return self._lines.readline().strip()

    def say(self, line=""):
        self._socket.sendall(line.encode() + b"\n")

    def kill(self):
        self._process.kill()
        self._wait(30)

    def end(self, timeout=30):
        """Closes its input, and waits for it; its exit status and the rest of its output."""
        self._socket.shutdown(socket.SHUT_WR)
        rest = self._lines.read().strip()
        return self._wait(timeout), rest

    def _wait(self, timeout):
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait(timeout)
        self._process.join(timeout)
        return self._process.exitcode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._lines.close()
        self._socket.close()


def _run(code, env, end):
    """The child of the fork server: the program, with the socket as its standard streams."""
    os.environ.clear()
    os.environ.update(env)
    with (
        open(os.dup(end.fileno())) as sys.stdin,
        open(os.dup(end.fileno()), "w", buffering=1) as sys.stdout,
    ):
        exec(compile(code, "program", "exec"), {"__name__": "program"})
