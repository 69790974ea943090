"""Run every `test_*` of the modules beside this file; print and keep date, device and outcome.

python -m gpu_tests [part of a name ...]      exit code 1: some failed
"""

import gc
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from metareplay.experiments.record import versions

OUT = Path("results/gpu-tests.txt")
KEPT = 2**30  # bytes of GPU memory that a test may keep without a word; cuBLAS keeps some for every stream


def main(words: list[str]) -> int:
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    say(f"GPU tests, {datetime.now(UTC).isoformat(timespec='seconds')}")
    if not torch.cuda.is_available():
        say("torch finds no GPU here: nothing was tested")
        return 1
    about = torch.cuda.get_device_properties(0)
    say(f"{about.name}, {about.total_memory / 2**30:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}")
    found = versions()
    say(", ".join(f"{name} {found[name]}" for name in ("metareplay", "commit", "python") if name in found))
    optional = ("triton", "numba", "scipy", "rich", "typer", "pytest", "hypothesis")
    say(f"triton {version('triton')}" if importlib.util.find_spec("triton") else "no triton")
    missing = [name for name in optional if not importlib.util.find_spec(name)]
    say(f"not installed here: {', '.join(missing) or 'nothing'}")
    passed, failed = 0, 0
    for name, test in _tests():
        if words and not any(word in name for word in words):
            continue
        start, before = time.perf_counter(), torch.cuda.memory_reserved()
        try:
            remark = test()
            passed += 1
            say(f"passed  {name} ({time.perf_counter() - start:.1f} s){f': {remark}' if remark else ''}")
        except BaseException as error:
            failed += 1
            say(f"FAILED  {name} ({time.perf_counter() - start:.1f} s): {type(error).__name__}: {error}")
            print("".join(traceback.format_exc()[-3000:]), flush=True)
            if isinstance(error, KeyboardInterrupt):
                break
        gc.collect()
        torch.cuda.empty_cache()  # a test that fills the GPU leaves nothing for other processes otherwise
        if (kept := torch.cuda.memory_reserved() - before) > KEPT:
            say(f"        {name} keeps {kept / 2**30:.1f} GiB of GPU memory")
    say(f"{passed} passed, {failed} failed")
    if not words:
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text("\n".join(lines) + "\n")
    return int(failed > 0 or passed == 0)


def _tests() -> list[tuple[str, Callable[[], object]]]:
    found: list[tuple[str, Callable[[], object]]] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"gpu_tests.{path.stem}")
        tests = {name: value for name, value in vars(module).items() if name.startswith("test_") and callable(value)}
        found += [(f"{path.stem}.{name}", test) for name, test in tests.items()]
    return found


sys.exit(main(sys.argv[1:]))
