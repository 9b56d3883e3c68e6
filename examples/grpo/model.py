# SPDX-License-Identifier: Apache-2.0
"""A small decoder-only transformer, and the two things that the stages do with it.

`sample` writes responses; `response_logprobs` says how likely given responses are. Prompts all have
PROMPT_TOKENS tokens. Responses differ in length and are padded on the right; attention is causal, so
the padding changes nothing to its left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from task import EOS, PAD, PROMPT_TOKENS, RESPONSE_TOKENS_MAX, VOCABULARY_SIZE


@dataclass(frozen=True)
class ModelConfig:
    layers: int = 2
    width: int = 64
    heads: int = 4


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.feed_norm = nn.LayerNorm(config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.feed_norm(x))


class Transformer(nn.Module):
    """Token ids (rows, length) int64 to logits (rows, length, VOCABULARY_SIZE)."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        config = config or ModelConfig()
        self.token = nn.Embedding(VOCABULARY_SIZE, config.width)
        self.position = nn.Embedding(PROMPT_TOKENS + RESPONSE_TOKENS_MAX, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY_SIZE)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def get_weights(model: nn.Module) -> Tensor:
    """All parameters in one float32 vector: what travels through the store as a policy version."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def set_weights(model: nn.Module, weights: Tensor) -> None:
    """The inverse of `get_weights`; copies."""
    nn.utils.vector_to_parameters(weights.clone(), model.parameters())


def response_logits(model: Transformer, prompts: Tensor, responses: Tensor) -> Tensor:
    """Logits for each response token: (rows, T, VOCABULARY_SIZE).

    prompts (rows, PROMPT_TOKENS) and responses (rows, T), both int64.
    """
    logits = model(torch.cat([prompts, responses[:, :-1]], dim=1))
    # Column p predicts column p + 1: the last prompt column predicts the first response token.
    return logits[:, prompts.shape[1] - 1 :]


def response_logprobs(model: Transformer, prompts: Tensor, responses: Tensor) -> Tensor:
    """Log-probability of each response token: (rows, T) float32, 0 in the padding."""
    logprobs = response_logits(model, prompts, responses).log_softmax(-1)
    return logprobs.gather(2, responses[..., None]).squeeze(2) * (responses != PAD)


@torch.no_grad()
def sample(
    model: Transformer, prompts: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Write one response per prompt, token by token.

    prompts (rows, PROMPT_TOKENS) int64. Returns the responses (rows, T) int64, each ended by EOS or
    cut at RESPONSE_TOKENS_MAX, and the log-probabilities (rows, T) float32 that their tokens had.
    """
    tokens = prompts
    is_open = torch.ones(prompts.shape[0], dtype=torch.bool)
    logprobs: list[Tensor] = []
    while is_open.any() and len(logprobs) < RESPONSE_TOKENS_MAX:
        logits = model(tokens)[:, -1]
        # A sampled PAD could not be told from padding.
        logits[:, PAD] = -torch.inf
        step = logits.log_softmax(-1)
        choice = torch.multinomial(step.exp(), 1, generator=generator)
        logprobs.append(step.gather(1, choice).squeeze(1) * is_open)
        choice = choice.squeeze(1)
        tokens = torch.cat([tokens, torch.where(is_open, choice, PAD)[:, None]], dim=1)
        is_open = is_open & (choice != EOS)
    return tokens[:, prompts.shape[1] :], torch.stack(logprobs, dim=1)
