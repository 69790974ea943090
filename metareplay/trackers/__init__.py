"""Trackers: followers that write how runs are going where people already look, in TensorBoard, MLflow or W&B."""

from metareplay.trackers.mlflow import MLflow
from metareplay.trackers.tensorboard import TensorBoard
from metareplay.trackers.weights_and_biases import WeightsAndBiases

__all__ = ["MLflow", "TensorBoard", "WeightsAndBiases"]
