"""Literal, slow transcriptions of the paper's pseudocode. They share nothing with the package but the random draws.

Weights are a dict of tensors, memories are Python lists, every line stands where the paper has it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from metareplay._core.draws import Draws, Purpose

Theta = dict[str, Tensor]
Example = tuple[Tensor, int, int]  # x, y, task
Stored = list[Example]


def theta_of(net: nn.Module) -> Theta:
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def gradient(theta: Theta, loss: Callable[[Theta], Tensor]) -> Theta:
    inputs = {name: value.clone().requires_grad_() for name, value in theta.items()}
    found = torch.autograd.grad(loss(inputs), list(inputs.values()))
    return dict(zip(inputs, found, strict=True))


def batch_loss(net: nn.Module, batch: Stored) -> Callable[[Theta], Tensor]:
    xs = torch.stack([x for x, _, _ in batch])
    ys = torch.tensor([y for _, y, _ in batch])
    return lambda theta: functional.cross_entropy(functional_call(net, theta, (xs,)), ys)


def sgd(net: nn.Module, batch: Stored, theta: Theta, alpha: float) -> Theta:
    g = gradient(theta, batch_loss(net, batch))
    return {name: theta[name] - alpha * g[name] for name in theta}


def interpolate(start: Theta, end: Theta, rate: float) -> Theta:
    return {name: start[name] + rate * (end[name] - start[name]) for name in start}


def reservoir(memory: Stored, size: int, n: int, example: Example, draws: Draws) -> None:
    """Algorithm 3; n counts the examples seen before this one."""
    if size > n:
        memory.append(example)  # M[N] <- (x, y)
    else:
        j = int(draws.integers(Purpose.KEEP, n, 1, n + 1)[0])  # randomInteger(min=0, max=N), both ends included
        if j < size:
            memory[j] = example


def draw_indices(memory: Stored, n: int, count: int, draws: Draws) -> list[int]:
    return draws.integers(Purpose.REPLAY, n, count, len(memory)).tolist() if memory else []


def mer(
    net: nn.Module,
    data: Stored,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    s: int,
    k: int,
    size: int,
    seed: int,
) -> tuple[Theta, Stored]:
    """Algorithm 1."""
    draws, theta = Draws(seed), theta_of(net)
    memory: Stored = []
    for n, example in enumerate(data):
        take = min(k - 1, len(memory))
        drawn = draw_indices(memory, n, s * take, draws)
        batches = [[example, *(memory[j] for j in drawn[i * take : (i + 1) * take])] for i in range(s)]
        theta_a0 = theta
        for i in range(s):
            theta_w = [theta]
            for j in range(len(batches[i])):
                theta_w.append(sgd(net, [batches[i][j]], theta_w[j], alpha))
            theta = interpolate(theta_w[0], theta_w[-1], beta)
        theta = interpolate(theta_a0, theta, gamma)
        reservoir(memory, size, n, example, draws)
    return theta, memory


def reptile(
    net: nn.Module, data: Stored, *, alpha: float, beta: float, s: int, k: int, updates: int, seed: int
) -> Theta:
    """Algorithm 2."""
    draws, theta = Draws(seed), theta_of(net)
    for update in range(updates):
        drawn = draws.integers(Purpose.REPLAY, update, s * k, len(data)).tolist()
        batches = [[data[j] for j in drawn[i * k : (i + 1) * k]] for i in range(s)]
        theta_0 = theta
        for i in range(s):
            theta = sgd(net, batches[i], theta, alpha)
        theta = interpolate(theta_0, theta, beta)
    return theta


def er(net: nn.Module, data: Stored, *, alpha: float, k: int, size: int, seed: int) -> tuple[Theta, Stored]:
    """Algorithm 4."""
    draws, theta = Draws(seed), theta_of(net)
    memory: Stored = []
    for n, example in enumerate(data):
        batch = [example, *(memory[j] for j in draw_indices(memory, n, min(k - 1, len(memory)), draws))]
        theta = sgd(net, batch, theta, alpha)
        reservoir(memory, size, n, example, draws)
    return theta, memory


def er_tasks(net: nn.Module, data: Stored, *, alpha: float, k: int, size: int, seed: int) -> tuple[Theta, Stored]:
    """Algorithm 5."""
    draws, theta = Draws(seed), theta_of(net)
    memory: Stored = []
    for n, example in enumerate(data):
        batch = [example, *(memory[j] for j in draw_indices(memory, n, min(k - 1, len(memory)), draws))]

        def loss(weights: Theta, batch: Stored = batch) -> Tensor:
            total = torch.zeros((), dtype=batch[0][0].dtype)
            for task in {t for _, _, t in batch}:
                total = total + batch_loss(net, [e for e in batch if e[2] == task])(weights)
            return total

        g = gradient(theta, loss)
        theta = {name: theta[name] - alpha * g[name] for name in theta}
        reservoir(memory, size, n, example, draws)
    return theta, memory


def mer_one_big_batch(
    net: nn.Module, data: Stored, *, alpha: float, gamma: float, s: int, k: int, size: int, seed: int
) -> tuple[Theta, Stored]:
    """Algorithm 6."""
    draws, theta = Draws(seed), theta_of(net)
    memory: Stored = []
    for n, example in enumerate(data):
        drawn = draw_indices(memory, n, min(s * k - s, len(memory)), draws)
        batch = [*(memory[j] for j in drawn), *([example] * s)]
        theta_0 = theta
        for item in batch:
            theta = sgd(net, [item], theta, alpha)
        theta = interpolate(theta_0, theta, gamma)
        reservoir(memory, size, n, example, draws)
    return theta, memory


def mer_current_rate(
    net: nn.Module, data: Stored, *, alpha: float, gamma: float, s: int, k: int, size: int, seed: int
) -> tuple[Theta, Stored]:
    """Algorithm 7."""
    draws, theta = Draws(seed), theta_of(net)
    memory: Stored = []
    for n, example in enumerate(data):
        drawn = draw_indices(memory, n, min(k - 1, len(memory)), draws)
        batch = [memory[j] for j in drawn]
        index = int(draws.integers(Purpose.PLACE, n, 1, len(batch) + 1)[0])
        batch.insert(index, example)
        theta_0 = theta
        for i, item in enumerate(batch):
            theta = sgd(net, [item], theta, s * alpha if i == index else alpha)
        theta = interpolate(theta_0, theta, gamma)
        reservoir(memory, size, n, example, draws)
    return theta, memory


Transition = tuple[Tensor, int, float, Tensor, bool]  # s, a, r, s', whether it was the final frame of the episode


def dqn_mer(
    net: nn.Module,
    env: Any,
    *,
    frame_limit: int,
    alpha: float,
    beta: float,
    gamma: float,
    steps: int,
    k: int,
    e_q: int,
    discount: float,
    epsilon: Callable[[int], float],
    size: int,
    seed: int,
    together: bool = False,
) -> tuple[Theta, list[Transition]]:
    """Algorithm 8; with `together`, one step on the mean loss of a batch instead, which is DQN with a reservoir."""
    draws, theta = Draws(seed), theta_of(net)
    q: Callable[[Theta, Tensor], Tensor] = lambda weights, s: functional_call(net, weights, (s[None],))[0]  # noqa: E731
    theta_hat = theta
    memory: list[Any] = []
    age = episodes = 0
    while age < frame_limit:
        s = env.reset()
        done = False
        while not done and age < frame_limit:
            p, which = draws.fractions(Purpose.ACTION, age, 1, 2)[0]
            values = q(theta, s)
            a = int(which * len(values)) if p <= epsilon(age) else int(values.argmax())
            s_next, r, final, cut_off = env.step(a)
            done = final or cut_off
            transition = (s, a, r, s_next, final)
            reservoir(memory, size, age, transition, draws)  # type: ignore[arg-type]
            take = min(k - 1, len(memory))
            drawn = draw_indices(memory, age, steps * take, draws)
            batches = [[transition, *(memory[j] for j in drawn[i * take : (i + 1) * take])] for i in range(steps)]

            def loss(batch: list[Transition], theta_hat: Theta = theta_hat) -> Callable[[Theta], Tensor]:
                ys = []
                for _, _, r, s_next, final in batch:
                    y = torch.tensor(r, dtype=s_next.dtype)
                    ys.append(y if final else y + discount * q(theta_hat, s_next).max())
                return lambda weights: torch.stack(
                    [functional.huber_loss(q(weights, s)[a], y) for (s, a, *_), y in zip(batch, ys, strict=True)]
                ).mean()

            theta_a0 = theta
            for i in range(steps):
                theta_w = [theta]
                for item in [batches[i]] if together else [[one] for one in batches[i]]:
                    g = gradient(theta_w[-1], loss(item))
                    theta_w.append({name: theta_w[-1][name] - alpha * g[name] for name in theta})
                theta = interpolate(theta_w[0], theta_w[-1], beta)
            theta = interpolate(theta_a0, theta, gamma)
            s = s_next
            age += 1
            episodes += done
            if done and episodes % e_q == 0:
                theta_hat = theta
    return theta, memory
