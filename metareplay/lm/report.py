"""Tables and pictures of what training over languages showed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metareplay._core.text import spread
from metareplay.lm.record import LmRecord
from metareplay.plots import new_figure, save_figure


def table(records: Sequence[LmRecord]) -> list[list[str]]:
    """Return a table of all arms as text, with a heading; losses are in nats per byte, over all seeds.

    Args:
        records: Records of the same languages.
    """
    languages = records[0].languages
    rows = [["arm", "mean loss", "forgetting", "newest", *languages, "mix and step"]]
    for arm in dict.fromkeys(record.arm for record in records):
        of_arm = [record for record in records if record.arm == arm]
        rises = [record.forgetting for record in of_arm]
        each = [spread([record.losses[-1][i] for record in of_arm], 3) for i in range(len(languages))]
        costs = [record.mer_seconds / record.seconds for record in of_arm]
        rows.append(
            [
                arm,
                spread([record.final for record in of_arm], 3),
                "" if arm == "joint" else spread([rise for rise in rises if rise is not None], 3),
                spread([record.newest for record in of_arm], 3),
                *each,
                f"{100 * float(np.mean(costs)):.1f} %",
            ]
        )
    return rows


def plot_losses(records: Sequence[LmRecord], path: Path) -> None:
    """Draw the loss on every language over time, one picture per language, averaged over seeds.

    Args:
        records: Records of the same languages.
        path: The picture to write.
    """
    languages = records[0].languages
    figure = new_figure(3.4 * len(languages), 3.2)
    axes = figure.subplots(1, len(languages), sharey=True, squeeze=False)[0]
    for number, (one, language) in enumerate(zip(axes, languages, strict=True)):
        for colour, arm in enumerate(dict.fromkeys(record.arm for record in records)):
            of_arm = [record for record in records if record.arm == arm]
            losses = np.mean([[at[number] for at in record.losses] for record in of_arm], axis=0)
            style = "k--" if arm == "joint" else f"C{colour}"
            one.plot(of_arm[0].steps, losses, style, linewidth=1.2, label=arm)
        ends = [0, *(records[0].steps[end] for end in records[0].ends)]
        one.axvspan(ends[number], ends[number + 1], color="0.92")  # while it was learned
        one.set(title=language, xlabel="step")
    axes[0].set_ylabel("loss, nats per byte")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    save_figure(figure, path)
