# SPDX-License-Identifier: Apache-2.0
"""The processes: rollout, reward, reference and trainer.

Each is a loop: wait in the store for rows that have the fields it needs and that its task has not
had, read them, add columns. None knows of another; the store decides who may have which rows, and
when. Every fetch is granted whole groups (the store's sampler is GRPOGroupNSampler).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from tensordict import NonTensorStack, TensorDict
from torch import Tensor

import policy
import rows
import transfer_queue as tq
from grpo import group_advantages, grpo_loss, prompt_tokens, update
from model import Transformer, get_weights, response_logprobs, sample, set_weights
from settings import Settings
from task import PAD, ChainSum, decode, training_problems

STATS_PERIOD_S = 0.25

NEEDS = {
    "rollout": rows.with_seals(rows.PROMPT_COLUMNS),
    "reward": rows.with_seals(rows.PROMPT_COLUMNS, rows.RESPONSE_COLUMNS),
    "reference": rows.with_seals(rows.PROMPT_COLUMNS, rows.RESPONSE_COLUMNS),
    "trainer": rows.with_seals(
        rows.PROMPT_COLUMNS, rows.RESPONSE_COLUMNS, rows.REWARD_COLUMNS, rows.REFERENCE_COLUMNS
    ),
}
"""The fields that a row must have before a task can get it."""


@dataclass
class StageStats:
    """What one process moved so far. Published as tags, so that the parent can show it."""

    began: float
    """Clock of time.monotonic(), which all processes of a machine share."""
    seen: float
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    fetches: int = 0
    wait_s: float = 0.0
    """In get_meta, for rows that came."""
    wait_max_s: float = 0.0


class Stage:
    """One process's part in the pipeline: fetches its task's rows, verifies them, counts."""

    def __init__(self, settings: Settings, name: str, task_name: str, batch_size: int) -> None:
        torch.set_num_threads(1)
        # Ctrl-C reaches every process of the terminal; the parent is the one that acts on it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Joins the parent's store: its address is in the environment (TQ_ADDRESS).
        tq.init()
        self.client = tq.get_client()
        self.settings = settings
        self.name = name
        self.task_name = task_name
        self.batch_size = batch_size
        self.stats = StageStats(began=time.monotonic(), seen=time.monotonic())
        self._row_ids: set[int] = set()
        self._published = 0.0

    def __enter__(self) -> Stage:
        self.publish_stats(force=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.publish_stats(force=True)
            # Ends this process's session; the store lives on in the parent.
            tq.close()

    def batches(self) -> Iterator[tuple[tq.BatchMeta, TensorDict]]:
        """Batches of rows as they get ready, until the run is over and no more come."""
        began = time.monotonic()
        while True:
            try:
                meta = self.client.get_meta(
                    NEEDS[self.task_name],
                    self.batch_size,
                    rows.ROWS,
                    task_name=self.task_name,
                    timeout=self.settings.poll_s,
                )
            except TimeoutError:
                if is_over():
                    return
                continue
            waited_s = time.monotonic() - began
            self.stats.wait_s += waited_s
            self.stats.wait_max_s = max(self.stats.wait_max_s, waited_s)
            data = self.client.get_data(meta)
            self._check(data)
            self.stats.fetches += 1
            self.stats.rows_read += meta.size
            self.stats.bytes_read += rows.payload_bytes(data)
            yield meta, data
            self.publish_stats()
            began = time.monotonic()

    def put(
        self, meta: tq.BatchMeta, data: TensorDict, columns: dict[str, Tensor | NonTensorStack]
    ) -> None:
        """Adds `columns`, sealed, to the rows of `meta`, whose ids are in `data`."""
        addition = rows.sealed(data["row_id"], columns)
        self.client.put(addition, metadata=meta)
        self.count_written(addition)

    def count_written(self, written: TensorDict) -> None:
        self.stats.rows_written += len(written)
        self.stats.bytes_written += rows.payload_bytes(written)

    def publish_stats(self, force: bool = False) -> None:
        """Shows the counters to the parent, as tags of a key without fields."""
        now = time.monotonic()
        if force or now - self._published >= STATS_PERIOD_S:
            self.stats.seen = self._published = now
            tq.kv_put(self.name, rows.STATS, tag=asdict(self.stats))

    def _check(self, data: TensorDict) -> None:
        rows.check_seals(data)
        row_ids = data["row_id"].tolist()
        again = self._row_ids.intersection(row_ids)
        if again or len(set(row_ids)) != len(row_ids):
            raise rows.CorruptRowError(f"{self.name} got rows twice: {sorted(again or row_ids)}")
        self._row_ids.update(row_ids)


def is_over() -> bool:
    """Whether the trainer, or the parent, has ended the run."""
    return "over" in tq.kv_list(rows.CONTROL).get(rows.CONTROL, {})


def end_run() -> None:
    tq.kv_put("over", rows.CONTROL, tag={"over": True})


def run_rollout(settings: Settings, worker: int) -> None:
    """Samples responses to prompts, with the newest policy there is."""
    model = Transformer()
    generator = torch.Generator().manual_seed(settings.seed + 100 + worker)
    version = -1
    with Stage(settings, f"rollout-{worker}", "rollout", settings.worker_rows) as stage:
        for meta, data in stage.batches():
            if any("worker" in tags for tags in meta.custom_meta):
                raise rows.CorruptRowError(f"{stage.name} got rows that another rollout has had")
            # Says whose these rows are: should this process die, the parent finds them by it.
            meta.update_custom_meta([{"worker": worker}] * meta.size)
            stage.client.set_custom_meta(meta)

            if policy.newest_version() > version:
                version, weights = policy.read_newest()
                set_weights(model, weights)
                stage.stats.bytes_read += weights.nbytes
            responses, logprobs = sample(model, rows.prompts_of(data), generator)

            # Columns and tags appear together: a row with a response has its policy_version.
            meta.update_custom_meta([{"policy_version": version}] * meta.size)
            is_token = responses != PAD
            stage.put(
                meta,
                data,
                {
                    "response": rows.to_ragged(responses, is_token),
                    "rollout_logprob": rows.to_ragged(logprobs, is_token),
                },
            )


def run_reward(settings: Settings) -> None:
    """Scores responses with the task's own verifier."""
    task = ChainSum(settings.seed)
    with Stage(settings, "reward", "reward", settings.worker_rows) as stage:
        for meta, data in stage.batches():
            responses = rows.to_padded(data["response"]).tolist()
            answers = data.get("answer").tolist()
            scores = [
                task.score(decode(response), answer)
                for response, answer in zip(responses, answers, strict=True)
            ]
            stage.put(meta, data, {"reward": torch.tensor(scores, dtype=torch.float32)})


def run_reference(settings: Settings) -> None:
    """Says how likely the responses were under the policy before GRPO."""
    model = Transformer()
    with Stage(settings, "reference", "reference", settings.worker_rows) as stage:
        set_weights(model, policy.read(policy.FIRST_VERSION))
        for meta, data in stage.batches():
            responses = rows.to_padded(data["response"])
            with torch.no_grad():
                logprobs = response_logprobs(model, rows.prompts_of(data), responses)
            ragged = rows.to_ragged(logprobs, responses != PAD)
            stage.put(meta, data, {"reference_logprob": ragged})


def run_trainer(settings: Settings) -> None:
    """Feeds prompts, trains on complete rows, clears them, publishes new weights."""
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0)
    with Stage(settings, "trainer", "trainer", settings.rows_per_step) as stage:
        set_weights(model, policy.read(policy.FIRST_VERSION))
        feed = Feed(stage)
        for _ in range(settings.steps_ahead):
            feed.put_prompts()
        for step, (meta, data) in enumerate(islice(stage.batches(), settings.steps), start=1):
            groups = [tags["group"] for tags in meta.custom_meta]
            check_groups(groups, settings.group_size)
            kl = train_step(model, optimizer, data, settings)
            stage.client.clear_samples(meta)
            policy.publish(policy.FIRST_VERSION + step, get_weights(model))
            feed.put_prompts()

            ages = [step - 1 - tags["policy_version"] for tags in meta.custom_meta]
            report = {
                "time": time.monotonic(),
                "reward": data["reward"].mean().item(),
                "kl": kl,
                "policy_age": sum(ages) / len(ages),
            }
            tq.kv_put(f"step-{step:04}", rows.HISTORY, tag=report)
        end_run()


class Feed:
    """Puts prompts into the store: each as a group of equal rows, one for each sample."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._problems = training_problems(stage.settings.seed + 1)
        self._groups = 0

    def put_prompts(self) -> None:
        """One step's worth. A put's rows stand together, so groups stay whole."""
        settings = self._stage.settings
        problems = list(islice(self._problems, settings.groups_per_step))
        repeated = [problem for problem in problems for _ in range(settings.group_size)]
        first = self._groups * settings.group_size
        row_ids = torch.arange(first, first + len(repeated))
        data = rows.sealed(
            row_ids,
            {
                "prompt": prompt_tokens(repeated),
                "answer": rows.texts([problem.answer for problem in repeated]),
            },
        )
        data["row_id"] = row_ids
        tq.kv_batch_put(
            keys=[f"row-{row_id}" for row_id in row_ids.tolist()],
            partition_id=rows.ROWS,
            fields=data,
            tags=[{"group": row_id // settings.group_size} for row_id in row_ids.tolist()],
        )
        self._groups += len(problems)
        self._stage.count_written(data)


def check_groups(groups: list[int], size: int) -> None:
    """CorruptRowError unless `groups` is runs of `size` equal numbers, each number in one run."""
    heads = groups[::size]
    if groups != [head for head in heads for _ in range(size)] or len(set(heads)) != len(heads):
        raise rows.CorruptRowError(f"groups are not whole: {groups}")


def train_step(
    model: Transformer, optimizer: torch.optim.Optimizer, data: TensorDict, settings: Settings
) -> float:
    """GRPO on one batch of whole groups. Returns the mean KL to the reference."""
    responses = rows.to_padded(data["response"])
    advantages = group_advantages(data["reward"], settings.group_size)
    for _ in range(settings.updates_per_step):
        loss, kl = grpo_loss(
            response_logprobs(model, rows.prompts_of(data), responses),
            rows.to_padded(data["rollout_logprob"]),
            rows.to_padded(data["reference_logprob"]),
            advantages,
            is_token=responses != PAD,
        )
        update(model, optimizer, loss)
    return kl.item()
