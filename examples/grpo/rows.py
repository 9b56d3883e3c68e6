# SPDX-License-Identifier: Apache-2.0
"""What is in the store: the rows that the stages build together, and their seals.

One partition, `ROWS`, holds one row per response. Each stage adds its columns to rows that others
began:

    trainer    row_id, prompt, answer             tag group
    rollout    response, rollout_logprob          tags worker, policy_version
    reward     reward
    reference  reference_logprob

Beside each column set stands a **seal**: a checksum over the row's id and the set's values. A reader
that finds every seal right knows that each value belongs to this row, and is what was written.

Four small partitions hold what is not rows: `POLICY` the weights, one key per version; `STATS` and
`HISTORY` tags alone, for the terminal and the plot; `CONTROL` the key that ends the run.
"""

from __future__ import annotations

import logging
import zlib
from itertools import pairwise

import torch
from tensordict import NonTensorStack, TensorDict
from torch import Tensor

from task import PAD, PROMPT_TOKENS

# torch 2.13 warns, once in each process that makes a jagged tensor, about a call of its own.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

ROWS = "rows"
POLICY = "policy"
STATS = "stats"
HISTORY = "history"
CONTROL = "control"

PROMPT_COLUMNS = ["prompt", "answer"]
RESPONSE_COLUMNS = ["response", "rollout_logprob"]
REWARD_COLUMNS = ["reward"]
REFERENCE_COLUMNS = ["reference_logprob"]

SEAL_OF = {
    "prompt_seal": PROMPT_COLUMNS,
    "response_seal": RESPONSE_COLUMNS,
    "reward_seal": REWARD_COLUMNS,
    "reference_seal": REFERENCE_COLUMNS,
}


class CorruptRowError(AssertionError):
    """A row that was read is not as it was written, or was read twice."""


def with_seals(*column_sets: list[str]) -> list[str]:
    """The fields to ask for: the row's id, these column sets, and their seals."""
    names = ["row_id"]
    for seal, columns in SEAL_OF.items():
        if columns in column_sets:
            names += [*columns, seal]
    return names


def sealed(row_ids: Tensor, columns: dict[str, Tensor | NonTensorStack]) -> TensorDict:
    """One of the column sets above, with its seal: what a stage puts for the rows `row_ids`."""
    (seal,) = [name for name, names in SEAL_OF.items() if names == list(columns)]
    return TensorDict(
        {**columns, seal: _checksums(row_ids, list(columns.values()))}, batch_size=[len(row_ids)]
    )


def check_seals(data: TensorDict) -> None:
    """CorruptRowError unless each seal in `data` fits its columns and its row's id."""
    for seal, names in SEAL_OF.items():
        if seal not in data.keys():  # noqa: SIM118
            continue
        wrong = data[seal] != _checksums(data["row_id"], [data.get(name) for name in names])
        if wrong.any():
            row_ids = data["row_id"][wrong].tolist()
            raise CorruptRowError(f"{seal} does not fit {names} in the rows {row_ids}")


def _checksums(row_ids: Tensor, columns: list[Tensor | NonTensorStack]) -> Tensor:
    """CRC-32 over each row's id and its values: (rows,) int64."""
    rows = zip(row_ids.tolist(), *map(_bytes_by_row, columns), strict=True)
    checksums = []
    for row_id, *values in rows:
        checksum = zlib.crc32(row_id.to_bytes(8, "little"))
        for value in values:
            checksum = zlib.crc32(value, checksum)
        checksums.append(checksum)
    return torch.tensor(checksums, dtype=torch.int64)


def _bytes_by_row(column: Tensor | NonTensorStack) -> list[bytes]:
    if not isinstance(column, Tensor):
        return [value.encode() for value in column.tolist()]
    if column.is_nested:
        values = column.values().numpy()
        ends = column.offsets().tolist()
        return [values[begin:end].tobytes() for begin, end in pairwise(ends)]
    return [row.tobytes() for row in column.numpy()]


def to_ragged(padded: Tensor, is_token: Tensor) -> Tensor:
    """A padded (rows, T) tensor as a jagged one of the values where `is_token`."""
    values = [row[mask] for row, mask in zip(padded, is_token, strict=True)]
    return torch.nested.as_nested_tensor(values, layout=torch.jagged)


def to_padded(ragged: Tensor) -> Tensor:
    """The inverse of `to_ragged`: (rows, longest), with PAD, which is 0, after each row."""
    return ragged.to_padded_tensor(PAD)


def prompts_of(data: TensorDict) -> Tensor:
    """The prompts as (rows, PROMPT_TOKENS): the store gives any column of vectors back jagged."""
    return data["prompt"].values().view(-1, PROMPT_TOKENS)


def texts(values: list[str]) -> NonTensorStack:
    """A column of strings."""
    return NonTensorStack(*values)


def payload_bytes(data: TensorDict) -> int:
    """Bytes of the values in `data`."""
    total = 0
    for _, column in data.items():
        if not isinstance(column, Tensor):
            total += sum(len(value.encode()) for value in column.tolist())
        elif column.is_nested:
            total += column.values().nbytes
        else:
            total += column.nbytes
    return total
