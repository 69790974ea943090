"""Heads that grow, structured inputs and targets of any shape on a real GPU: the weights of plain stepping."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr

COUNT = 30
Case = tuple[Callable[[], nn.Module], Any, Any, dict[str, Any]]


class Words(nn.Module):
    """Means of embedded words, with an output like Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.of_word, self.top = nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, words: Tensor, mask: Tensor) -> Any:
        mean = (self.of_word(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return type("Output", (), {"logits": self.top(mean)})()


def cases() -> dict[str, Case]:
    generator = torch.Generator().manual_seed(0)
    xs, images = torch.rand(COUNT, 20, generator=generator), torch.rand(COUNT, 1, 6, 6, generator=generator)
    names = [("a", "b", "c", "d")[n * 4 // COUNT] for n in range(COUNT)]
    words = [{"words": torch.randint(9, (1 + n % 5,), generator=generator)} for n in range(COUNT)]
    like = {"words": torch.zeros(5, dtype=torch.int64)}
    pixels, soft = (images[:, 0] > 0.5).long(), (5 * xs[:, :3]).softmax(1)
    own: dict[str, Any] = {"loss": functional.cross_entropy}
    return {
        "growing": (lambda: mr.networks.mlp(20, (16,), 1, seed=1), xs, names, {"classes": "grow"}),
        "words": (lambda: mr.networks.Structured(_seeded(Words), like, mask="mask"), words, names, {"classes": "grow"}),
        "pixels": (lambda: _seeded(lambda: nn.Conv2d(1, 2, 3, padding=1)), images, pixels, own),
        "soft": (lambda: mr.networks.mlp(20, (16,), 3, seed=1), xs, soft, own),
        "soft, convolutions": (cnn, images, soft, own),
    }


def cnn() -> nn.Module:
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return mr.networks.glorot(nn.Sequential(*layers), seed=2)


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make()


KINDS: dict[str, Callable[..., mr.Learner]] = {
    "mer": lambda net, **o: mr.MER(net, memory=mr.Reservoir(12), lr=0.05, beta=0.3, s=2, k=5, **o),
    "er-adam": lambda net, **o: mr.ER(net, memory=mr.Reservoir(12), lr=0.01, k=5, optimizer="adam", **o),
    "gem": lambda net, **o: mr.GEM(net, memory=mr.Reservoir(12), lr=0.05, **o),
}


def test_the_weights_are_those_of_plain_stepping() -> str:
    found = []
    for (name, (make, xs, ys, options)), (kind, of) in ((c, k) for c in cases().items() for k in KINDS.items()):
        fast, plain = (of(make().cuda(), engine=engine, **options) for engine in ("cuda", "torch"))
        for learner in (fast, plain):
            learner.observe_many(xs[:17], ys[:17])
            learner.observe_many(xs[17:], ys[17:])
        a, b = fast.weights.theta.double(), plain.weights.theta.double()
        difference = float((a - b).norm() / b.norm())
        assert difference < 1e-4, (name, kind, difference)
        found.append(f"{name}/{kind} {fast.chosen_engine.name} {difference:.0e}")
    return "; ".join(found)
