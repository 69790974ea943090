"""Dictionaries, tuples and sequences of different lengths as inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import metareplay as mr
from metareplay.networks import Structured

LONGEST = 6


class Reader(nn.Module):
    """Means of embedded words, beside a few numbers and a picture in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.of_word, self.top = nn.Embedding(9, 4), nn.Linear(4 + 2 + 3, 2)

    def forward(self, words: Tensor, numbers: Tensor, image: Tensor, mask: Tensor) -> Any:
        assert image.max() <= 1
        mean = (self.of_word(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return type("Output", (), {"logits": self.top(torch.cat([mean, numbers, image], 1))})()


LIKE = {
    "words": torch.zeros(LONGEST, dtype=torch.int64),
    "numbers": torch.zeros(2),
    "image": torch.zeros(3, dtype=torch.uint8),
}


def model() -> Structured:
    torch.manual_seed(1)
    return Structured(Reader(), like=LIKE, mask="mask")


def examples(count: int = 30) -> tuple[list[dict[str, Any]], list[int]]:
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for _ in range(count):
        words = rng.integers(9, size=rng.integers(1, LONGEST + 1))
        found.append({"words": words, "numbers": rng.random(2), "image": rng.integers(256, size=3, dtype=np.uint8)})
    return found, [int(x["words"][0] > 4) for x in found]


def learner() -> mr.Learner:
    return mr.MER(model(), memory=mr.Reservoir(9), lr=0.1, beta=0.5, s=2, k=4)


def test_dictionaries_one_by_one_many_saved_and_loaded(tmp_path: Path) -> None:
    xs, ys = examples()
    many, one = learner(), learner()
    many.observe_many(xs, ys)
    for x, y in zip(xs[:15], ys[:15], strict=True):
        one.observe(x, y)
    one.save(tmp_path / "half.ckpt")
    one = mr.load(tmp_path / "half.ckpt", model())
    one.observe_many(xs[15:], ys[15:])
    assert torch.equal(many.weights.theta, one.weights.theta)
    assert many.predict(xs).shape == (30,)
    assert many.predict_proba(xs).shape == (30, 2)
    assert many.accuracy(xs, ys) >= 0
    wrapper: Any = many.model
    held = wrapper.unpack(many.memory.examples().xs)  # type: ignore[attr-defined]
    assert held["words"].shape == (9, LONGEST)
    assert held["image"].dtype == torch.uint8


def test_a_batch_of_parts_is_the_same_as_a_list() -> None:
    xs, _ = examples()
    wrapper = model()
    parts = {name: [x[name] for x in xs] for name in LIKE}
    assert torch.equal(wrapper.pack(xs), wrapper.pack(parts))
    full = [x for x in xs if len(x["words"]) == LONGEST]
    stacked = {name: torch.stack([torch.as_tensor(x[name]) for x in full]) for name in LIKE}
    assert torch.equal(wrapper.pack(full), wrapper.pack(stacked))
    assert torch.equal(wrapper.pack(wrapper.pack(full)), wrapper.pack(full))
    assert wrapper(full).shape == (len(full), 2)
    assert wrapper.pack([]).shape[0] == 0


def test_a_mask_of_ones_own_is_kept() -> None:
    x = {name: values[0] for name, values in {k: [v] for k, v in examples()[0][0].items()}.items()}
    wrapper = model()
    masked = x | {"mask": [1] + [0] * (LONGEST - 1)}
    assert wrapper.unpack(wrapper.pack([masked]))["mask"].tolist() == [[1, 0, 0, 0, 0, 0]]


def test_tuples_and_single_tensors() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.scale * (one * other)

    pair = Structured(Product(), like=(torch.zeros(3), torch.zeros(3)))
    assert pair((torch.ones(2, 3), 2 * torch.ones(2, 3))).dtype == torch.float64
    assert pair([(torch.ones(2), torch.ones(3))]).tolist() == [[1, 1, 0]]
    trained = mr.Online(pair, lr=0.1, regression=True)
    trained.observe((torch.ones(3), torch.ones(3)), torch.zeros(3))
    assert trained.outputs((torch.ones(2, 3), torch.ones(2, 3))).shape == (2, 3)
    words = Structured(nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, 2)), like=LIKE["words"][:4], pad=8)
    assert words.unpack(words.pack([[1, 2], [3]]))[0].tolist() == [[1, 2, 8, 8], [3, 8, 8, 8]]
    reads = mr.Online(words, classes="grow")
    for text in ([1, 2, 3], [4], [5, 6]):
        reads.observe(text, str(text))
    assert reads.predict_proba([[1], [2, 3]]).shape == (2, 3)


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=5), min_size=1, max_size=5), st.integers(-9, 9))
def test_what_is_packed_comes_out_again(rows: list[list[int]], pad: int) -> None:
    like = {"a": torch.zeros(5, dtype=torch.int64), "b": torch.zeros((), dtype=torch.float64)}
    wrapper = Structured(nn.Linear(1, 1), like=like, pad={"a": pad}, mask="m")
    parts = wrapper.unpack(wrapper.pack([{"a": row, "b": len(row) / 7} for row in rows]))
    assert parts["a"].tolist() == [row + [pad] * (5 - len(row)) for row in rows]
    assert parts["b"].tolist() == [len(row) / 7 for row in rows]
    assert parts["m"].sum(1).tolist() == list(map(len, rows))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": list(range(7))}, r"example 0 has shape \(7,\) for 'words'; it must fit into \(6,\)"),
        ({"words": [0.5]}, "float64 for 'words', but torch.int64 in like"),
        ({"numbers": [1.0, float("nan")]}, "not finite"),
        ({"numbers": "text"}, "cannot become an array of numbers"),
        ({"further": [1]}, "x has a part 'further'"),
        ({"numbers": None}, "cannot become"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    fresh = learner()
    with pytest.raises(mr.InputError, match=message) as caught:
        fresh.observe(examples()[0][0] | change, 1)
    assert "\n" not in str(caught.value)
    assert fresh.seen == 0


def test_parts_that_are_missing_or_of_different_numbers() -> None:
    xs, _ = examples(2)
    with pytest.raises(mr.InputError, match="x has no part 'image'"):
        learner().predict([{"words": [1], "numbers": [1, 2]}])
    parts = {name: [x[name] for x in xs] for name in LIKE}
    with pytest.raises(mr.InputError, match="different numbers of examples"):
        learner().predict(parts | {"words": [[1]]})
    with pytest.raises(mr.InputError, match=r"wrap the model, networks\.Structured"):
        mr.Online(nn.Linear(2, 2)).observe({"x": [1.0, 2.0]}, 1)
    with pytest.raises(mr.InputError, match="pad has 'word', which like does not have"):
        Structured(Reader(), like=LIKE, pad={"word": 1})
    with pytest.raises(mr.InputError, match="mask='m': the first part of like is a single number"):
        Structured(nn.Linear(1, 1), like={"a": torch.zeros(())}, mask="m")
    with pytest.raises(mr.InputError, match="like is empty"):
        Structured(nn.Linear(1, 1), like={})


def test_a_prequential_run_over_dictionaries() -> None:
    record = mr.prequential(learner(), zip(*examples(), strict=True), every=10, block=5)
    assert record.points["examples"] == [10, 20, 30]


def test_a_hugging_face_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=16, num_labels=2)

    def made() -> mr.Learner:
        torch.manual_seed(0)
        bert = transformers.BertForSequenceClassification(config)
        wrapped = Structured(bert, like={"input_ids": torch.zeros(8, dtype=torch.int64)}, mask="attention_mask")
        return mr.ER(wrapped, memory=mr.Reservoir(9), lr=0.05, k=3, classes="grow")

    texts = [[1 + (n + i) % 29 for i in range(1 + n % 8)] for n in range(12)]
    labels = [("short", "middle", "long")[len(text) // 3] for text in texts]
    many, one = made(), made()
    many.observe_many([{"input_ids": text} for text in texts], labels)
    for text, label in zip(texts, labels, strict=True):
        one.observe(text, label)
    assert torch.equal(many.weights.theta, one.weights.theta)
    assert many.labels == ("short", "middle", "long")
    assert set(many.predict(texts)) <= set(labels)
    many.save(tmp_path / "bert.ckpt")
    assert mr.load(tmp_path / "bert.ckpt", made().model).labels == many.labels
