"""A learner of the user's own, with an objective that fills a column: it learns, saves, loads, resumes and runs."""

import inspect
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import der_plus_plus
import pytest
import torch
from der_plus_plus import DERPlusPlus
from every_learner import assert_same_state, state
from small_runs import Call, rotations
from torch import Tensor
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws
from metareplay.learners.table_learner import source_of

FILE = Path(der_plus_plus.__file__)


def learner(**options: float) -> DERPlusPlus:
    net = mr.networks.mlp(6, (8,), 3, seed=1).double()
    return DERPlusPlus(net, memory=mr.Reservoir(9), lr=0.1, k=4, seed=5, **options)  # type: ignore[arg-type]


def examples(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    xs = torch.rand(count, 6, generator=generator, dtype=torch.float64)
    return xs, torch.randint(3, (count,), generator=generator)


def transcription(alpha: float, xs: Tensor, ys: Tensor) -> mr.networks.TaskModule | torch.nn.Module:
    """DER++ line by line: the memory is a list of (x, y, logits)."""
    from transcriptions import draw_indices, reservoir

    net, draws = mr.networks.mlp(6, (8,), 3, seed=1).double(), Draws(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    memory: list[tuple[Tensor, int, int]] = []
    stored: dict[int, Tensor] = {}
    for n, (x, y) in enumerate(zip(xs, ys, strict=True)):
        with torch.no_grad():
            stored[n] = net(x[None])[0]
        batch = [(x, int(y), n), *(memory[j] for j in draw_indices(memory, n, min(3, len(memory)), draws))]
        optimizer.zero_grad()
        outputs = net(torch.stack([one for one, _, _ in batch]))
        moved = functional.mse_loss(outputs, torch.stack([stored[number] for _, _, number in batch]))
        loss = functional.cross_entropy(outputs, torch.tensor([label for _, label, _ in batch])) + alpha * moved
        loss.backward()
        optimizer.step()
        reservoir(memory, 9, n, (x, int(y), n), draws)
    return net


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_it_equals_its_transcription(alpha: float) -> None:
    ours, (xs, ys) = learner(alpha=alpha), examples()
    ours.observe_many(xs, ys)
    for one, other in zip(ours.model.parameters(), transcription(alpha, xs, ys).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_it_is_written_in_under_forty_lines() -> None:
    lines = inspect.getsource(der_plus_plus).splitlines()
    assert sum(bool(line.strip()) for line in lines[lines.index("@final") :]) < 40


def test_the_stored_outputs_travel_with_the_examples() -> None:
    ours, (xs, ys) = learner(), examples()
    first = ours.outputs(xs[:5])
    ours.observe_many(xs[:5], ys[:5])
    held = ours.memory.held()
    torch.testing.assert_close(held["logits"][0], first[0])
    assert held["logits"].shape == (5, 3)
    assert not torch.equal(held["logits"], ours.outputs(xs[:5]))


def test_one_by_one_is_the_same_as_many_at_once() -> None:
    (xs, ys), one_by_one, at_once = examples(), learner(), learner()
    for x, y in zip(xs, ys, strict=True):
        one_by_one.observe(x, int(y))
    at_once.observe_many(xs, ys)
    assert_same_state(state(one_by_one), state(at_once))


@pytest.mark.parametrize("when", [0, 1, 17])
def test_saved_and_loaded_it_goes_on_bit_for_bit(when: int, tmp_path: Path) -> None:
    (xs, ys), ours, whole = examples(), learner(alpha=0.2), learner(alpha=0.2)
    whole.observe_many(xs, ys)
    ours.observe_many(xs[:when], ys[:when])
    ours.save(tmp_path / "der.ckpt")
    loaded = mr.load(tmp_path / "der.ckpt", learner().model, kind=DERPlusPlus)
    assert loaded.settings() == ours.settings()
    loaded.observe_many(xs[when:], ys[when:])
    assert_same_state(state(loaded), state(whole))


def test_without_its_class_one_line_says_what_to_pass(tmp_path: Path) -> None:
    learner().save(tmp_path / "der.ckpt")
    with pytest.raises(mr.CheckpointError, match=r"holds a DERPlusPlus.*kind=DERPlusPlus"):
        mr.load(tmp_path / "der.ckpt", learner().model)
    with pytest.raises(mr.CheckpointError, match="holds a DERPlusPlus, not a MER"):
        mr.load(tmp_path / "der.ckpt", learner().model, kind=mr.MER)


def test_a_run_of_it_can_be_stopped_and_resumed(tmp_path: Path) -> None:
    def run() -> mr.Run:
        ours = DERPlusPlus(mr.networks.mlp(784, (8,), 10, seed=1), memory=mr.Reservoir(8), lr=0.1, k=3)
        return mr.Run(ours, rotations(), checkpoint=tmp_path / "run.ckpt")

    for step in run().steps():
        if step.seen > 20:
            break
    stopped = run()
    list(stopped.steps())
    (tmp_path / "run.ckpt").unlink()
    whole = run()
    list(whole.steps())
    assert stopped.record().weights == whole.record().weights
    assert stopped.record().engine == "torch"


def test_the_compiled_engine_says_why_it_cannot_learn_it() -> None:
    with pytest.raises(mr.InputError, match="engine 'cpu' needs a supervised objective"):
        DERPlusPlus(mr.networks.mlp(6, (8,), 3), engine="cpu")


def test_it_appears_in_run_with_its_options(call: Call) -> None:
    words = ("--memory", "8", "--tasks", "2", "--examples", "5", "--k", "3", "--lr", "0.1", "--alpha", "0.25", "--json")
    answer = call("run", f"{FILE}:DERPlusPlus", "rotations", *words)
    assert answer.code == 0, answer.err
    record = json.loads(answer.out)
    assert (record["learner"], record["settings"]["alpha"], record["examples"]) == ("DERPlusPlus", 0.25, 10)
    again = call("run", f"{FILE}:DERPlusPlus", "rotations", *words)
    assert json.loads(again.out) == record  # from its record
    helped = call("run", f"{FILE}:DERPlusPlus", "--help")
    assert "--alpha" in helped.out
    assert "distance to the stored outputs" in " ".join(helped.out.split())


def test_another_class_of_the_same_name_is_another_run(call: Call, tmp_path: Path) -> None:
    text = FILE.read_text()
    found = []
    for folder, alpha in (("one", "self.alpha * moved"), ("two", "2 * self.alpha * moved")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "mine.py"
        path.write_text(
            text.replace("self.alpha * moved", alpha).replace("class DERPlusPlus(", f"class ER(  # {folder}\n    ")
        )
        words = ("--memory", "8", "--tasks", "2", "--examples", "5", "--k", "3", "--lr", "0.1", "--json")
        answer = call("run", f"{path}:ER", "rotations", *words)
        assert answer.code == 0, answer.err
        found.append(json.loads(answer.out))
    assert found[0]["key"] != found[1]["key"]
    assert found[0]["weights"] != found[1]["weights"]


class Twice(mr.ReplayLearner):
    """Draws two batches per example, as DER++ does, with as many visits as it is told."""

    visits = 2
    drawn: list[list[int]]

    def plan(self, memory: mr.Sampler) -> mr.Plan:
        for current in memory.incoming():
            batches = [*memory.sample(1, 3), *memory.sample(1, 5)]
            self.drawn = [batch.tolist() for batch in batches]
            for batch in batches[: self.visits]:
                memory.visit(current, batch)
            memory.store()
        return memory.plan(mr.Rates(memory=self.lr, current=self.lr), s=2)


def test_further_draws_for_an_example_are_other_draws() -> None:
    many, one_by_one = (Twice(mr.networks.mlp(6, (8,), 3, seed=1), memory=mr.Reservoir(30)) for _ in range(2))
    xs, ys = examples()
    many.observe_many(xs, ys)
    for x, y in zip(xs, ys, strict=True):
        one_by_one.observe(x, int(y))
    assert torch.equal(many.weights.theta, one_by_one.weights.theta)
    assert many.drawn[0] != many.drawn[1][:3]


def test_a_plan_that_visits_too_little_is_refused() -> None:
    learner = Twice(mr.networks.mlp(6, (8,), 3, seed=1), memory=mr.Reservoir(30))
    learner.visits = 1
    with pytest.raises(mr.InputError, match="2 batches for each of 40 examples, but 40 batches were visited"):
        learner.observe_many(*examples())
    assert learner.seen == 0


def test_layers_cannot_change_under_stored_outputs() -> None:
    with pytest.raises(mr.InputError, match="stores the column 'logits'"), learner().reshaping():
        pass


class Counting(mr.Objective):
    """Keeps a count of the losses it was asked for; forgets its column if told to."""

    stores = ("weight",)

    def __init__(self, column: str) -> None:
        self.count, self.column = torch.zeros(()), column

    def arriving(self, model: torch.nn.Module, examples: mr.Columns) -> dict[str, Tensor]:
        del model, examples
        return {self.column: torch.ones(1)}

    def loss(self, model: torch.nn.Module, examples: mr.Columns) -> Tensor:
        self.count += 1
        return functional.cross_entropy(model(examples["x"]) * examples["weight"], examples["y"])

    def state(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.count = state["count"].clone()


class Counted(mr.ReplayLearner):
    column = "weight"

    def make_objective(self) -> Counting:
        return Counting(self.column)

    def plan(self, memory: mr.Sampler) -> mr.Plan:
        for current in memory.incoming():
            memory.visit(current)
            memory.store()
        return memory.plan(mr.Rates(memory=self.lr, current=self.lr))


def test_what_the_objective_keeps_is_undone_and_saved(tmp_path: Path) -> None:
    ours, (xs, ys) = Counted(mr.networks.mlp(6, (8,), 3, seed=1), memory=mr.Reservoir(9)), examples(5)
    ours.observe_many(xs.float(), ys)
    with pytest.raises(mr.NonFiniteError):
        ours.observe(torch.full((6,), 3e38), 1)
    assert (ours.seen, ours.objective.state()["count"].item()) == (5, 5)
    ours.save(tmp_path / "counted.ckpt")
    loaded = mr.load(tmp_path / "counted.ckpt", mr.networks.mlp(6, (8,), 3), kind=Counted)
    assert loaded.objective.state()["count"] == 5


def test_an_objective_that_forgets_its_column_is_named() -> None:
    class Forgetful(Counted):
        column = "wait"

    with pytest.raises(mr.InputError, match=r"Counting\.arriving gave no 'weight'"):
        Forgetful(mr.networks.mlp(6, (8,), 3), memory=mr.Reservoir(9)).observe(torch.rand(6), 1)


def test_the_text_of_a_class_is_read_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 may fail to parse source in two threads at the same time."""
    reading, most = [0], [0]

    def read(_: object) -> str:
        reading[0] += 1
        most[0] = max(most[0], reading[0])
        time.sleep(0.01)
        reading[0] -= 1
        return "text"

    monkeypatch.setattr(inspect, "getsource", read)
    kinds = [type(f"Own{number}", (mr.Online,), {"__module__": "mine"}) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(source_of, kinds + kinds))
    assert most == [1]
    assert all(one == found[0] for one in found)
