"""Errors that a user can put right. Every message is one line that says what was wrong and what to do about it."""


class MetareplayError(ValueError):
    """Base class of all errors that the caller can put right; the message says how."""


class InputError(MetareplayError):
    """Raised for an example, option or setting that cannot be used; nothing has been learned from it."""


class NonFiniteError(MetareplayError):
    """Raised when learning an example gives a loss or weights that are not finite; that example has been undone."""


class CheckpointError(MetareplayError):
    """Raised for a checkpoint that is missing, damaged, of a newer format, or of another model."""


class DataError(MetareplayError):
    """Raised for a dataset that is missing, damaged, or cannot be fetched."""


class DiskError(MetareplayError):
    """Raised where a file cannot be written or deleted, for instance because the disk is full."""


class PicturesMissingError(MetareplayError):
    """Raised where a picture cannot be drawn because matplotlib, plotly or Pillow is not installed."""


class RayMissingError(MetareplayError):
    """Raised where experiments cannot run on a Ray cluster because ray is not installed."""


class GymnasiumMissingError(MetareplayError):
    """Raised where an environment cannot be made because gymnasium is not installed."""


class TrackerMissingError(MetareplayError):
    """Raised where runs cannot be followed because TensorBoard, MLflow, wandb or the live page's server is missing."""
