"""Continual pre-training of small language models over languages, byte by byte: with and without MER."""

from metareplay.lm.arms import ARMS, Arm
from metareplay.lm.llama import SIZES, Llama, Size
from metareplay.lm.record import LmRecord, read_records
from metareplay.lm.text import Language, made_up, read_languages
from metareplay.lm.training import LmSettings, train

__all__ = [
    "ARMS",
    "SIZES",
    "Arm",
    "Language",
    "Llama",
    "LmRecord",
    "LmSettings",
    "Size",
    "made_up",
    "read_languages",
    "read_records",
    "train",
]
