"""A report shows what the records say, whatever else is in the folder."""

import builtins
import json
import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_report import GAME, LANGUAGES, PREQUENTIAL, RUN, SWEEP, page_of, run
from small_runs import ALIGNED, Call

import metareplay as mr
from metareplay._core.text import spread
from metareplay.errors import PicturesMissingError
from metareplay.experiments import Experiment, Metrics, pack
from metareplay.paper.tables import table_1
from metareplay.reports.reading import FAMILIES, read
from metareplay.runners import Failure

EVIL = "<script>alert(1)</script>"
percent = st.floats(0, 100, allow_nan=False)
matrices = st.lists(st.lists(percent, min_size=6, max_size=6), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def _small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plotting library's five megabytes are left out; one test and the browser tests have them."""
    monkeypatch.setattr("metareplay.reports.page._library", lambda: "// drawn elsewhere")


@given(matrices)
def test_numbers_are_those_of_the_records(tmp_path_factory: pytest.TempPathFactory, seeds: list[list[float]]) -> None:
    folder = tmp_path_factory.mktemp("runs")
    records = [run(seed, accuracy=np.array(values).reshape(3, 2)) for seed, values in enumerate(seeds)]
    for record in records:
        record.write(folder)
    page = page_of(folder)
    heads, row = page.tables["Streams of tasks"]
    shown = dict(zip(heads, row, strict=True))
    for name in ("ra", "la", "bti", "fti"):
        assert shown[name.upper()] == spread([getattr(record, name) for record in records])
    assert (shown["learner"], shown["memory"], shown["seeds"]) == ("mer", "5 | reservoir", str(len(seeds)))
    [details] = page.data["details"].values()
    names = [column[0] for column in details["seeds"]["columns"]]
    ras = [line[names.index("RA")][0] for line in details["seeds"]["rows"]]
    assert ras == [f"{record.ra:.2f}" for record in records]
    mean = np.mean([record.accuracy for record in records], axis=0)
    first, _, after, last = details["charts"][0]["ends"]
    np.testing.assert_allclose(last, mean[-1], atol=0.0501)
    np.testing.assert_allclose(after, np.diag(mean[1:]), atol=0.0501)
    np.testing.assert_allclose(first, mean[0], atol=0.0501)


def test_settings_are_apart_and_seeds_together(tmp_path: Path) -> None:
    other = RUN.settings | {"lr": 0.3}
    pack([run(0), run(1), run(0, settings=other), run(0, engine="cpu", settings=RUN.settings)], tmp_path / "some.jsonl")
    rows = page_of(tmp_path).tables["Streams of tasks"][1:]
    assert sorted(row[-3] for row in rows) == ["1", "2"]


def test_seeds_that_shuffle_heads_are_together(tmp_path: Path) -> None:
    for seed, (first, second) in enumerate([(9, 2), (2, 9)]):
        run(seed, model=f"Heads( (0): Linear(4, {first}) (1): Linear(4, {second}) )").write(tmp_path)
    assert [row[-3] for row in page_of(tmp_path).tables["Streams of tasks"][1:]] == ["2"]


def test_a_measured_matrix_is_drawn_in_full(tmp_path: Path) -> None:
    accuracy = np.arange(12.0).reshape(4, 3)
    run(accuracy=accuracy).write(tmp_path)
    [details] = page_of(tmp_path).data["details"].values()
    assert details["charts"][0]["rows"] == accuracy.tolist()
    assert details["charts"][1]["kind"] == "over time"


def test_transfer_and_interference_are_drawn(tmp_path: Path) -> None:
    ALIGNED.write(tmp_path)
    page = page_of(tmp_path)
    heads, row = page.tables["Streams of tasks"]
    assert row[heads.index("dot")] == "-0.125"
    [details] = page.data["details"].values()
    drawn = details["charts"][-1]
    assert "-0.125; 21 % of the products are above 0" in drawn["told"]
    assert drawn["marks"] == [10]
    assert drawn["panels"][0]["lines"][0]["name"] == "mean"


def test_every_kind_of_result_is_shown(tmp_path: Path) -> None:
    for seed in (0, 1):
        replace(PREQUENTIAL, seed=seed, settings=PREQUENTIAL.settings | {"seed": seed}).write(tmp_path)
        replace(GAME, seed=seed, settings=GAME.settings | {"seed": seed}).write(tmp_path)
        replace(LANGUAGES, settings=LANGUAGES.settings | {"seed": seed}).save(tmp_path / "lm" / f"{seed}.json")
    page = page_of(tmp_path)
    heads, row = page.tables["Prequential runs"]
    assert (row[heads.index("accuracy")], row[heads.index("kappa")] if "kappa" in heads else "-") == (
        "60.00 ± 0.00",
        "-",
    )
    heads, row = page.tables["Games"]
    assert row[heads.index("score")] == spread([GAME.final_mean] * 2, 1)
    assert row[heads.index("lost")] == spread([float(GAME.forgetting[1])] * 2, 1)
    heads, row = page.tables["Language models"]
    assert row[heads.index("mean loss")] == spread([LANGUAGES.final] * 2, 3)
    assert row[heads.index("forgetting")] == "0.500 ± 0.000"
    game = page.data["details"]["games-1"]["charts"][0]
    assert game["marks"] == [100]
    assert [panel.get("shades") for panel in game["panels"]] == [[[100, 200]], [[0, 100]]]
    assert game["panels"][0]["lines"][0]["y"] == [1, 4, 7]


def test_a_sweep_is_ranked(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    page = page_of(tmp_path)
    assert page.summaries == ["mer on rotations | 2 settings; the best has validation accuracy 81.00 ± 1.41"]
    details = page.data["details"]["sweep-1"]
    assert [row[1] for row in details["table"]["rows"]] == [["0.1", 0.1], ["0.3", 0.3]]
    assert details["charts"][0]["rows"] == [[0.1, 81], [0.3, None]]
    assert details["command"] == SWEEP["command"]
    assert "<p>0 runs in 0 settings, 1 sweep.\n" in page.source


def test_settings_are_compared_without_a_sweep(tmp_path: Path) -> None:
    for number, lr in enumerate((0.1, 0.2, 0.3, 0.4)):
        accuracy = np.full((3, 2), 10.0 * number)
        run(settings=RUN.settings | {"lr": lr}, accuracy=accuracy).write(tmp_path)
    table = page_of(tmp_path).data["details"]["sweep-1"]["table"]
    assert [row[1][1] for row in table["rows"]] == [0.4, 0.3, 0.2, 0.1]


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    cell = next(one for one in table_1().cells if one.model == "Online" and one.published is not None)
    made = cell.experiment.identity
    accuracy = np.full((made.stream["tasks"] + 1, made.stream["tasks"]), math.nan)
    accuracy[0] = accuracy[-1] = 50.0
    each = np.arange(len(accuracy) - 1)
    accuracy[each, each] = accuracy[each + 1, each] = 50.0
    parts: dict[str, Any] = {
        "learner": made.learner,
        "settings": made.settings,
        "model": made.model,
        "stream": made.stream,
    }
    run(accuracy=accuracy, **parts).write(tmp_path)
    page = page_of(tmp_path)
    heads, row = page.tables["Streams of tasks"]
    assert cell.published is not None
    printed = f"{cell.published.mean:.2f} ± {cell.published.std:.2f}"
    assert row[heads.index(cell.metric.upper())] == f"{50 if cell.metric != 'bti' else 0:.2f} | ({printed})"


def test_the_command_repeats_the_runs(call: Call) -> None:
    sizes = ("--tasks", "2", "--examples", "10", "--test-examples", "10", "--records", "runs", "--engine", "torch")
    assert call("run", "mer", "rotations", *sizes, "--memory", "5", "--seeds", "2", "--full-matrix").code == 0
    assert call("run", "online", "permutations", *sizes, "--lr", "0.2", "--prequential", "--every", "5").code == 0
    before = sorted(path.name for path in Path("runs").glob("*.json"))
    details = page_of(Path("runs")).data["details"]
    assert len(details) == 2
    for one in details.values():
        words = shlex.split(one["command"])
        assert words[0] == "metareplay"
        assert call(*words[1:], "--records", "runs").code == 0
    assert sorted(path.name for path in Path("runs").glob("*.json")) == before


def test_a_run_that_no_command_gives_has_none(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    assert [one["command"] for one in page_of(tmp_path).data["details"].values()] == [None]


def test_hostile_texts_are_shown_as_text(tmp_path: Path) -> None:
    named = {"stream": f"</script>{EVIL}", "tasks": 2, "seed": 0}
    run(learner=EVIL, stream=named, model=EVIL, settings={"seed": 0, EVIL: EVIL}).write(tmp_path / "a")
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP | {"name": EVIL, "command": EVIL, "chosen_by": EVIL}))
    failure = Failure.of(Experiment(tasks=2), EVIL)
    replace(failure, label=EVIL, settings={"options": {EVIL: EVIL}}).write(tmp_path)
    (tmp_path / f"{EVIL.replace('/', '')}.json").write_text('{"format": 1, "key": "<b>"}')
    replace(LANGUAGES, arm=EVIL, languages=[EVIL, "<b>"]).save(tmp_path / "lm.json")
    page = page_of(tmp_path)
    assert page.tags.count("script") == 3
    assert "b" not in page.tags
    assert page.tables["Streams of tasks"][1][0] == EVIL
    assert page.tables["Failed runs"][1][:3] == [f"{EVIL} | {EVIL} {EVIL}", "error", EVIL]
    assert "<script>alert" not in page.source
    assert page.data["details"]["sweep-1"]["command"] == EVIL


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    content = RUN.write(tmp_path / "one").read_text()
    (tmp_path / "cut.json").write_text(content[:100])
    (tmp_path / "changed.json").write_text(content.replace('"examples": 20', '"examples": 21'))
    (tmp_path / "future.json").write_text(json.dumps(RUN.to_json() | {"format": 99}))
    (tmp_path / "strange.json").write_text(json.dumps(RUN.to_json() | {"kind": "dance"}))
    (tmp_path / "lines.jsonl").write_text("{}\nno\n")
    (tmp_path / "run.failed").write_text("{}")
    (tmp_path / "other.json").write_text('{"speed": 3}')
    page = page_of(tmp_path)
    broken = dict(page.tables["Unreadable records"][1:])
    assert set(broken) == {
        "cut.json",
        "changed.json",
        "future.json",
        "strange.json",
        "lines.jsonl, line 2",
        "run.failed",
    }
    assert broken["future.json"] == "a record of format 99: this version reads format 1"
    assert "'dance'" in broken["strange.json"]
    assert "checksum" in broken["changed.json"]
    assert page.tables["Streams of tasks"][1][-3] == "1"
    assert "2 other JSON files" in page.summaries[-1]


@given(
    st.sampled_from([RUN.to_json(), PREQUENTIAL.to_json(), GAME.to_json(), asdict(LANGUAGES), SWEEP]),
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.just(10**400) | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
@settings(max_examples=40)
def test_no_document_stops_the_report(
    tmp_path_factory: pytest.TempPathFactory, parts: dict[str, Any], path: list[int], value: Any
) -> None:
    """One value in it, or in one of its dictionaries and lists, is another one."""
    folder = tmp_path_factory.mktemp("runs")
    changed = part = json.loads(json.dumps(parts))
    for number in path:
        keys: list[Any] = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = keys[number % len(keys)]
        if number == path[-1] or not isinstance(part[key], dict | list) or not part[key]:
            part[key] = value
            break
        part = part[key]
    (folder / "changed.json").write_text(json.dumps(changed))
    replace(RUN, learner="ER").write(folder)
    page = page_of(folder)
    found = read([folder])
    assert found.runs + len(found.broken) + len(found.others) + len(found.sweeps) == 2
    assert page.tags.count("script") == 3


def test_of_two_records_of_a_run_the_latest_counts(tmp_path: Path) -> None:
    new = run(accuracy=np.full((3, 2), 50.0), date="2027-01-01T00:00:00+00:00")
    new.write(tmp_path / "a")
    RUN.write(tmp_path / "b")
    page = page_of(tmp_path)
    assert page.tables["Streams of tasks"][1][3] == "50.00"
    assert "1 record was found more than once; the latest one is used." in page.source


def test_large_matrices_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metareplay.reports.page.MOST_CELLS", 100)
    run(accuracy=np.arange(240.0).reshape(16, 15)).write(tmp_path)
    chart = page_of(tmp_path).data["details"]["streams-1"]["charts"][0]
    assert chart["at"] == [0, 3, 6, 9, 12, 15]
    assert chart["rows"][1][0] == 45
    assert "One row out of 3 is shown" in chart["told"]


def test_an_empty_folder_is_one_clear_line(call: Call) -> None:
    Path("nothing").mkdir()
    answer = call("report", "nothing")
    assert answer.code == 2
    assert answer.err.startswith("metareplay: no records in nothing: give a folder")
    assert len(answer.err.splitlines()) == 1
    assert "elsewhere does not exist" in call("report", "elsewhere").err


def test_the_command_writes_the_page(call: Call) -> None:
    run(0).write("runs")
    (Path("runs") / "cut.json").write_text("{")
    answer = call("report", "runs", "--out", "page.html", "--title", "Mine & yours")
    assert answer.code == 0
    assert "cut.json is left out: damaged: it is not a whole JSON document" in answer.err
    assert "report: page.html (runs: 1, sweeps: 0, failures: 0" in answer.err
    assert "<title>Mine &amp; yours</title>" in Path("page.html").read_text()


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    RUN.write(tmp_path)
    real = builtins.__import__

    def without_plotly(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_plotly)
    with pytest.raises(PicturesMissingError, match=r"^a report needs plotly.*pip install 'metareplay\[report\]'$"):
        mr.report(tmp_path, tmp_path / "report.html")


def test_the_page_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    RUN.write(tmp_path)
    page = page_of(tmp_path)
    assert 'id="library">/**' in page.source
    assert "Plotly" in page.source
    assert Metrics.of(RUN.accuracy).ra == 75.0
    assert len(FAMILIES) == 4
