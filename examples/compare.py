"""Compare learners on a stream of tasks by the paper's metrics.

RA is the accuracy over all tasks at the end, LA the accuracy on each task just after it was learned, and BTI the
difference: how much was lost (below 0) or gained afterwards.

Run it with: python examples/compare.py
"""

import torch
from torch import Tensor

import metareplay as mr

TASKS, INPUTS, CLASSES = 5, 20, 4


def examples(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points around four centres; every task shuffles the inputs in a way of its own."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(task))
    generator = torch.Generator().manual_seed(1000 * seed + task)
    ys = torch.randint(CLASSES, (count,), generator=generator)
    return (centres[ys] + 0.8 * torch.randn(count, INPUTS, generator=generator))[:, order], ys


def main() -> None:
    """Run every learner on the stream and print the metrics in percent."""
    parts = [examples(task, 200, seed=1) for task in range(TASKS)]
    stream = mr.OwnStream.from_tensors(
        torch.cat([xs for xs, _ in parts]),
        torch.cat([ys for _, ys in parts]),
        tasks=torch.arange(TASKS).repeat_interleave(200),
        test=[examples(task, 500, seed=2) for task in range(TASKS)],
    )
    learners = {
        "Online": mr.Online(mr.networks.mlp(INPUTS, (32,), CLASSES), lr=0.05),
        "ER": mr.ER(mr.networks.mlp(INPUTS, (32,), CLASSES), memory=mr.Reservoir(50), lr=0.05, k=10),
        "MER": mr.MER(mr.networks.mlp(INPUTS, (32,), CLASSES), memory=mr.Reservoir(50), lr=0.05, beta=0.03, s=5, k=10),
    }
    print(f"{'':8}{'RA':>6} {'LA':>6} {'BTI':>6}")
    for name, learner in learners.items():
        record = mr.run(learner, stream)
        print(f"{name:8}{record.ra:6.1f} {record.la:6.1f} {record.bti:6.1f}")


if __name__ == "__main__":
    main()
