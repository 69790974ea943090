"""Networks of the paper's experiments. Each is a plain nn.Module; a user's own module serves as well."""

from metareplay.networks.by_task import MultiHead, Separate, TaskInputs, TaskModule, separate_mlps, task_input_mlp
from metareplay.networks.cnn import nature_cnn, omniglot_cnn
from metareplay.networks.initial import glorot
from metareplay.networks.mlp import mlp

__all__ = [
    "MultiHead",
    "Separate",
    "TaskInputs",
    "TaskModule",
    "glorot",
    "mlp",
    "nature_cnn",
    "omniglot_cnn",
    "separate_mlps",
    "task_input_mlp",
]
