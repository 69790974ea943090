"""Algorithm 5 with everything at once: several heads, GEM's ring, Adam, against a literal transcription."""

import torch
from torch import Tensor
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws, Purpose


def make_net() -> mr.networks.MultiHead:
    return mr.networks.MultiHead(mr.networks.mlp(5, (7,), 6, seed=1), 6, (3, 2, 4), seed=2).double()


def test_heads_ring_and_adam() -> None:
    generator = torch.Generator().manual_seed(3)
    xs = torch.rand(36, 5, generator=generator, dtype=torch.float64)
    ys = torch.randint(2, (36,), generator=generator)
    tasks = torch.arange(36) // 12
    learner = mr.ERTasks(make_net(), memory=mr.Ring(12, tasks=3), lr=0.05, k=6, optimizer="adam", seed=8)
    learner.observe_many(xs, ys, tasks)

    net, draws = make_net(), Draws(8)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    rings: list[list[int]] = [[], [], []]
    order: list[tuple[int, int]] = []  # (task, place in its ring) in the order first filled
    count = [0, 0, 0]
    for n in range(36):
        task = int(tasks[n])
        picked = draws.integers(Purpose.REPLAY, n, min(5, len(order)), len(order)).tolist() if order else []
        batch = [n, *(rings[order[j][0]][order[j][1]] for j in picked)]
        loss: Tensor = torch.zeros((), dtype=torch.float64)
        for present in {int(tasks[i]) for i in batch}:
            sub = [i for i in batch if int(tasks[i]) == present]
            logits = net.heads[present](net.body(xs[sub]))
            loss = loss + functional.cross_entropy(logits, ys[sub])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        if count[task] < 4:
            order.append((task, count[task]))
            rings[task].append(n)
        else:
            rings[task][count[task] % 4] = n
        count[task] += 1
    for ours, theirs in zip(learner.model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
