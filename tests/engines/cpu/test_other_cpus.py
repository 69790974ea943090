"""The compiled engine on CPUs that this machine may not be like: without AVX-512, and without any AVX.

numba reads the CPU from the environment when it is imported, so each CPU needs a process of its own. NUMBA_CPU_NAME
alone would keep the features of this machine, AVX-512 among them; with empty NUMBA_CPU_FEATURES LLVM takes those of the
CPU that is named.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
# The engine takes long to compile, so one learner is tested on each of the two: haswell (AVX2) and generic (SSE2).
CHOSEN = {
    "haswell": "test_simd or test_factors or float64 and EWC or test_checkpoints_move and torch-cpu-sgd-DQNMER",
    "generic": "test_simd and not float64 or float32 and MER or test_checkpoints_move and torch-cpu-adam-DQN",
}
AVX512 = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512cd,+avx2,+fma"
COMPILE_ONLY = """
import numpy as np
from numba import njit, typeof
from metareplay.engines.cpu.simd import load, store_where

@njit
def pack(out, bits, matrix):
    return store_where(out, 0, 0, bits, load(matrix, 0, 0))

for dtype in (np.float32, np.float64, np.uint32):
    matrix = np.zeros((1, 16), dtype)
    pack.compile((typeof(matrix), typeof(1), typeof(matrix)))
    print(pack.inspect_asm(pack.signatures[-1]))
"""

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the CPUs named here are x86")


def run(arguments: list[str], cpu: str, features: str, cache: Path) -> subprocess.CompletedProcess[str]:
    names = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(cache)}
    command, environment = [sys.executable, *arguments], {**os.environ, **names}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CHOSEN)
def test_same_weights_without_avx512(cpu: str, tmp_path: Path) -> None:
    names = ("test_simd.py", "test_factors.py", "test_against_torch.py", "test_convolutions.py")
    files = [str(FOLDER / name) for name in names]
    done = run(["-m", "pytest", "-p", "no:cacheprovider", "-k", CHOSEN[cpu], *files], cpu, "", tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_avx512_is_used_where_numba_compiles_for_it(tmp_path: Path) -> None:
    """Compiled only, so that this machine need not have it."""
    done = run(["-c", COMPILE_ONLY], "skylake-avx512", AVX512, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for instruction in ("vcompressps", "vcompresspd", "vpcompressd"):
        assert instruction in done.stdout
