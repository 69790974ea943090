"""The graph engine for any module on a CUDA device."""
