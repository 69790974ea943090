"""Tables and pictures of what training over languages showed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metareplay._core.text import spread
from metareplay.lm.record import LmRecord
from metareplay.plots import new_figure, save_figure


def table(records: Sequence[LmRecord]) -> list[list[str]]:
    """Return a table of all arms as text, with a heading; losses are in nats per byte, over all seeds.

    "learned" is the mean loss on each language right after it was learned, and "mean loss" the one in the end.

    Args:
        records: Records of the same languages.
    """
    languages = records[0].languages
    has_alignment = any(record.cosine is not None for record in records)
    rows = [["arm", "mean loss", "learned", "forgetting", "newest", *languages, "mix and step"]]
    rows[0] += ["cosine"] if has_alignment else []
    for arm in dict.fromkeys(record.arm for record in records):
        of_arm = [record for record in records if record.arm == arm]
        rises = [record.forgetting for record in of_arm]
        each = [spread([record.losses[-1][i] for record in of_arm], 3) for i in range(len(languages))]
        costs = [record.mer_seconds / record.seconds for record in of_arm]
        rows.append(
            [
                arm,
                spread([record.final for record in of_arm], 3),
                "" if arm == "joint" else spread([record.learned for record in of_arm], 3),
                "" if arm == "joint" else spread([rise for rise in rises if rise is not None], 3),
                spread([record.newest for record in of_arm], 3),
                *each,
                f"{100 * float(np.mean(costs)):.1f} %",
            ]
        )
        if has_alignment:
            cosines = [record.cosine for record in of_arm if record.cosine is not None]
            rows[-1].append(spread(cosines, 3) if cosines else "")
    return rows


def plot_losses(records: Sequence[LmRecord], path: Path) -> None:
    """Draw the loss on every language over time, one panel per language: the mean over seeds, and all between them.

    A panel is grey while its language was learned, and has dotted lines where another one began. Colours tell the share
    of replayed rows; arms with a Reptile line are drawn solid, those without it dashed. Losses are on a logarithmic
    scale that has room for all that comes after a language was learned; what came before may be above it.

    Args:
        records: Records of the same languages.
        path: The picture to write.
    """
    languages = records[0].languages
    columns = len(languages) if len(languages) <= 3 else math.isqrt(len(languages) - 1) + 1
    rows = -(-len(languages) // columns)
    figure = new_figure(3.6 * columns + 1.6, 2.6 * rows + 0.3)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    switches = _switches(records[0])
    for number, (one, language) in enumerate(zip(axes, languages, strict=False)):
        one.axvspan(switches[number], switches[number + 1], color="0.93", linewidth=0)
        _draw_arms(one, records, [[at[number] for at in record.losses] for record in records])
        _mark(one, switches)
        one.set_title(language, fontsize=10)
        one.tick_params(labelbottom=number + columns >= len(languages))  # also above an empty place
    for one in axes[len(languages) :]:
        one.set_visible(False)
    later = [at[i] for record in records for i, end in enumerate(record.ends) for at in record.losses[end:]]
    axes[0].set_yscale("log")
    low, high = 0.93 * min(later), 1.08 * max(later)
    steps = [digit * 10.0**power for power in range(-9, 10) for digit in (1, 1.5, 2, 3, 5, 7)]
    marks = [one for one in steps if low <= one <= high]
    axes[0].set_yticks(marks, [f"{one:g}" for one in marks])
    axes[0].set_yticks([], minor=True)
    axes[0].set_ylim(low, high)
    figure.supxlabel("optimizer step", fontsize=10)
    figure.supylabel("loss on text not learned, nats per byte", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    save_figure(figure, path)


def plot_alignment(records: Sequence[LmRecord], path: Path) -> None:
    """Draw how the gradients of new and replayed rows agree over time: the mean over seeds, and all between them.

    Args:
        records: Records of the same languages, at least one of them with `alignment`.
        path: The picture to write.
    """
    shown = [record for record in records if record.alignment is not None]
    figure = new_figure(10, 3.6)
    panels = figure.subplots(1, 2, sharex=True)
    for axes, name in zip(panels, ("cosine", "dot"), strict=True):
        _draw_arms(axes, shown, [(record.alignment or {})[name] for record in shown])
        axes.axhline(0, color="black", linewidth=0.8)
        _mark(axes, _switches(shown[0]))
        axes.set_xlabel("optimizer step")
    panels[0].set_title("cosine of the angle between gradients", fontsize=10)
    panels[1].set_title("dot product of gradients", fontsize=10)
    panels[0].set_ylabel("new and replayed rows\n← interference      transfer →")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    save_figure(figure, path)


def _draw_arms(axes: Any, records: Sequence[LmRecord], values: Sequence[Sequence[float | None]]) -> None:
    """Draw the values of all records over time: a line per arm, and a band from the lowest to the highest seed."""
    for arm in dict.fromkeys(record.arm for record in records):
        of_arm = [record for record in records if record.arm == arm]
        of_seeds = [own for record, own in zip(records, values, strict=True) if record.arm == arm]
        found = np.array(of_seeds, dtype=np.float64)  # NaN for None
        style = _style(of_arm[0])
        axes.plot(of_arm[0].steps, found.mean(axis=0), linewidth=1.3, label=arm, **style)
        if len(of_arm) > 1:
            low, high = found.min(axis=0), found.max(axis=0)
            axes.fill_between(of_arm[0].steps, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)


def _style(record: LmRecord) -> dict[str, Any]:
    arm = record.settings["arm"]
    if arm["is_joint"]:
        return {"color": "black", "linestyle": ":"}
    colours = {0.0: "C3", 0.25: "C0", 0.5: "C2"}
    return {"color": colours.get(arm["share"], "C4"), "linestyle": "-" if arm["has_line"] else "--"}


def _switches(record: LmRecord) -> list[int]:
    """Return the step at which each language began, and the last step."""
    return [0, *(record.steps[end] for end in record.ends)]


def _mark(axes: Any, switches: Sequence[int]) -> None:
    for step in switches[1:-1]:
        axes.axvline(step, color="0.6", linewidth=0.8, linestyle=(0, (1, 2)))
