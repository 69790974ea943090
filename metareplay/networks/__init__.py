"""The networks of the paper's experiments, each a plain `nn.Module`; your own module works just as well."""

from metareplay.networks.by_task import MultiHead, Separate, TaskInputs, TaskModule, separate_mlps, task_input_mlp
from metareplay.networks.cnn import nature_cnn, omniglot_cnn
from metareplay.networks.initial import glorot, torch_default, uniform_by_fan_in
from metareplay.networks.mlp import mlp
from metareplay.networks.structured import Structured

__all__ = [
    "MultiHead",
    "Separate",
    "Structured",
    "TaskInputs",
    "TaskModule",
    "glorot",
    "mlp",
    "nature_cnn",
    "omniglot_cnn",
    "separate_mlps",
    "task_input_mlp",
    "torch_default",
    "uniform_by_fan_in",
]
