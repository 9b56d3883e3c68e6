# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: columns, keys, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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


class Program:
    """A Python program of its own, killed when the test ends."""

    def __init__(self, code, **env):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-u", "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            text=True,
        )

    def hear(self):
        """The next line that it prints; "" once it has ended."""
        return self._process.stdout.readline().strip()

    def say(self, line=""):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def end(self, timeout=30):
        """Closes its input, and waits for it; its exit status and the rest of its output."""
        rest, _ = self._process.communicate(timeout=timeout)
        return self._process.returncode, rest.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()
