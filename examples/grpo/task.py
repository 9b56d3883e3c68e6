# SPDX-License-Identifier: Apache-2.0
"""The task: sums from reasoning-gym's `chain_sum`, spelled in characters.

A prompt reads ``3-7+1=``, its right answer ``-3``. `encode` and `decode` map such strings to token
ids. Whether a response is right is decided by the task's own verifier, not by a comparison of ours.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, filterfalse, islice

import reasoning_gym

PAD = 0
"""Fills a batch up to its longest response. Never part of a row that travels through the store."""
EOS = 1
"""Ends a response."""
ALPHABET = "0123456789+-="
VOCABULARY_SIZE = 2 + len(ALPHABET)

PROMPT_TOKENS = 6
"""Every prompt has three one-digit terms, two signs, and ``=``."""
RESPONSE_TOKENS_MAX = 5
"""One more than the longest right answer (``-18`` and EOS): a response can be too long."""

_ID_OF = {char: 2 + position for position, char in enumerate(ALPHABET)}


def encode(text: str) -> list[int]:
    """Token ids of `text`. A character outside ALPHABET is a KeyError."""
    return [_ID_OF[char] for char in text]


def decode(tokens: list[int]) -> str:
    """The text of `tokens` up to the first EOS, padding left out."""
    chars = []
    for token in tokens:
        if token == EOS:
            break
        if token != PAD:
            chars.append(ALPHABET[token - 2])
    return "".join(chars)


@dataclass(frozen=True)
class Problem:
    """One question with its right answer."""

    prompt: str
    answer: str


class ChainSum:
    """An endless list of problems; equal seeds give equal lists, in every process."""

    def __init__(self, seed: int) -> None:
        self._dataset = reasoning_gym.create_dataset(
            "chain_sum",
            min_terms=3,
            max_terms=3,
            min_digits=1,
            max_digits=1,
            seed=seed,
            size=1_000_000_000,
        )

    def __getitem__(self, index: int) -> Problem:
        entry = self._dataset[index]
        expression = entry["metadata"]["expression"].replace(" ", "")
        return Problem(prompt=expression + "=", answer=entry["answer"])

    def score(self, response: str, answer: str) -> float:
        """The verifier's score in [0, 1]: 1 for right, a part for right among other text."""
        return float(self._dataset.score_answer(response, {"answer": answer}))


def is_held_out(problem: Problem) -> bool:
    """Whether `problem` is kept for evaluation: one in ten is, chosen by its text."""
    return zlib.crc32(problem.prompt.encode()) % 10 == 0


def held_out_problems(seed: int, size: int) -> list[Problem]:
    """`size` problems that `training_problems` never gives, whatever its seed."""
    task = ChainSum(seed)
    return list(islice(filter(is_held_out, map(task.__getitem__, count())), size))


def training_problems(seed: int) -> Iterator[Problem]:
    """An endless stream of problems to learn from."""
    task = ChainSum(seed)
    return filterfalse(is_held_out, map(task.__getitem__, count()))
