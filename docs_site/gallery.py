"""The gallery: every script of examples/ as a page, with what it prints and draws.

`python -m docs_site.gallery` runs the scripts and keeps what they print and draw in docs/gallery; `python -m
docs_site.gallery drift` runs one of them. A page is made from both whenever the site is built.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SCRIPTS: Final = sorted((ROOT / "examples").glob("*.py"))
KEPT: Final = ROOT / "docs" / "gallery"
CELL: Final = re.compile(r"^# %%\n", re.MULTILINE)
RUN_AND_DRAW: Final = """
import runpy, sys
import matplotlib
matplotlib.use("Agg")
matplotlib.rcParams.update({
    "axes.axisbelow": True, "axes.grid": True, "axes.spines.right": False, "axes.spines.top": False, "figure.dpi": 110,
    "figure.figsize": (7, 3.8), "figure.constrained_layout.use": True, "grid.alpha": 0.25, "legend.frameon": False,
})
from matplotlib import pyplot
pyplot.show = lambda: None
script, picture = sys.argv[1:]
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
if pyplot.get_fignums():
    pyplot.gcf().savefig(picture)
"""


def title(script: Path) -> str:
    """Return the first line of a script's docstring, without its full stop.

    Args:
        script: The script.
    """
    return _docstring(script).splitlines()[0].removesuffix(".")


def page(script: Path) -> str:
    """Return the page of a script: its comments as text, its code, what it printed and what it drew.

    Args:
        script: The script.
    """
    text = script.read_text()
    first, *cells = CELL.split(text[text.index('"""', 3) + 3 :].lstrip("\n"))
    about = _docstring(script).splitlines()[1:]
    lines = [line for line in about if not line.startswith("Run it with: ")]
    parts = [f"# {title(script)}", "\n".join(lines).strip(), *_code(first)]
    for cell in cells:
        words, code = _divided(cell)
        parts += [words, *_code(code)]
    parts += ["## What it prints", f"```text\n{(KEPT / script.stem).with_suffix('.txt').read_text().rstrip()}\n```"]
    if (KEPT / script.stem).with_suffix(".png").exists():
        parts += ["## What it draws", f"![{title(script)}]({script.stem}.png)"]
    parts.append(f"Run it yourself with `python examples/{script.name}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _docstring(script: Path) -> str:
    return ast.get_docstring(ast.parse(script.read_text())) or script.stem


def _divided(cell: str) -> tuple[str, str]:
    """Return the comment that a cell begins with as text, and the rest as it is."""
    lines = cell.splitlines()
    count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:count]), "\n".join(lines[count:])


def _code(code: str) -> list[str]:
    return [f"```python\n{code.strip()}\n```"] if code.strip() else []


def keep(script: Path) -> None:
    """Run a script and keep what it prints and draws.

    Args:
        script: The script.
    """
    kept = KEPT / script.stem
    command = [sys.executable, "-c", RUN_AND_DRAW, str(script), str(kept.with_suffix(".png"))]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    kept.with_suffix(".txt").write_text(ran.stdout)


if __name__ == "__main__":
    for one in SCRIPTS:
        if one.stem in sys.argv[1:] or len(sys.argv) == 1:
            keep(one)
