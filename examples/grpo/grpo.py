# SPDX-License-Identifier: Apache-2.0
"""The learning: a supervised warm-up, the GRPO objective, and the evaluation.

Nothing here knows of tq: the stages bring the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Transformer, response_logits, sample
from task import EOS, PAD, ChainSum, Problem, decode, encode


def prompt_tokens(problems: list[Problem]) -> Tensor:
    """The prompts of `problems`: (rows, PROMPT_TOKENS) int64."""
    return torch.tensor([encode(problem.prompt) for problem in problems])


def answer_tokens(problems: list[Problem]) -> Tensor:
    """The right answers of `problems`, each with its EOS, padded: (rows, T) int64."""
    answers = [torch.tensor(encode(problem.answer) + [EOS]) for problem in problems]
    return torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=PAD)


def warm_up(
    model: Transformer,
    problems: Iterator[Problem],
    steps: int,
    rows: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Teach `model` the format, and some arithmetic, from right answers; `on_step(step, loss)`.

    Label smoothing keeps the policy open: samples of one prompt must differ for GRPO to learn.
    """
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1
    )
    for step in range(1, steps + 1):
        batch = [next(problems) for _ in range(rows)]
        answers = answer_tokens(batch)
        logits = response_logits(model, prompt_tokens(batch), answers)
        loss = F.cross_entropy(
            logits.transpose(1, 2), answers, ignore_index=PAD, label_smoothing=0.2
        )
        update(model, optimizer, loss)
        schedule.step()
        on_step(step, loss.item())


def update(model: Transformer, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the gradient of `loss`, its norm cut at 1."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """How much better each sample is than its group: (rows,) to (rows,), groups consecutive."""
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-4)).flatten()


def grpo_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    is_token: Tensor,
    clip: float = 0.2,
    kl_weight: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """GRPO's clipped objective with its KL penalty: (loss, mean KL to the reference).

    `advantages` (rows,), all else (rows, T). `rollout_logprobs` are those that the tokens had when
    they were sampled, perhaps some policy versions ago; the ratio corrects for that.
    """
    ratio = (logprobs - rollout_logprobs).exp()
    advantages = advantages[:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    # KL(policy || reference), estimated from the samples by a form that is never negative.
    distance = reference_logprobs - logprobs
    kl = distance.exp() - distance - 1
    tokens = is_token.sum()
    kl_mean = (kl * is_token).sum() / tokens
    return -(gain * is_token).sum() / tokens + kl_weight * kl_mean, kl_mean.detach()


def evaluate(model: Transformer, task: ChainSum, problems: list[Problem], seed: int) -> float:
    """The verifier's mean score of one sampled response to each of `problems`."""
    generator = torch.Generator().manual_seed(seed)
    responses, _ = sample(model, prompt_tokens(problems), generator)
    scores = [
        task.score(decode(response), problem.answer)
        for response, problem in zip(responses.tolist(), problems, strict=True)
    ]
    return sum(scores) / len(scores)
