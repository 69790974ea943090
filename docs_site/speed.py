"""The table of speeds in the README and on the start page, made from what `metareplay bench` has written.

`python -m docs_site.speed` writes it into both pages.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "index.md")
BENCHES: Final = {"one CPU core": "bench-cpu.json", "one H200 GPU": "bench-cuda.json"}
SHOWN: Final = {  # the settings that are shown, by their names in the benches, with words for readers
    "MER, Rotations, 5120 memories, k=101, s=10": "MER on MNIST Rotations, MLP 784-100-100-10",
    "MER, Many Permutations, 5120, k=6, s=10": "MER on Many Permutations, the same MLP",
    "MER, 784-400-400-10, 5120, k=101, s=10": "MER with an MLP of 784-400-400-10",
    "MER 5120, Omniglot, 50 heads, GroupNorm, k=26, s=5": "MER on Omniglot, a CNN with 50 heads",
    "Nature DQN CNN, 17 steps per frame": "DQN-MER, the CNN for Atari games",
}
BLOCK: Final = re.compile(r"(<!-- speed table:.*?-->\n)(.*?)(<!-- end of the speed table -->)", re.DOTALL)


def speed_table(results: Path = ROOT / "results") -> str:
    """Return a Markdown table: what one step costs with ours and with a torch loop on the same machine.

    Args:
        results: The folder with the outputs of the benches.
    """
    lines = ["| what | where | torch, µs per step | ours | times faster |", "|---|---|---:|---:|---:|"]
    for place, name in BENCHES.items():
        timings: list[dict[str, Any]] = json.loads((results / name).read_text())["timings"]
        for one in timings:
            if one["name"] in SHOWN:
                numbers = f"{one['torch']:,.0f} | {one['ours']:.1f} | {one['ratio']:.0f}"
                lines.append(f"| {SHOWN[one['name']]} | {place} | {numbers} |")
    return "\n".join(lines)


def with_speed_table(page: str) -> str:
    """Return a page with its table of speeds made anew.

    Args:
        page: The page, with the two comments between which the table belongs.
    """
    return BLOCK.sub(lambda found: f"{found[1]}\n{speed_table()}\n\n{found[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_speed_table(path.read_text()))
