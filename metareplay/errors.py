"""Errors a user can cause: each is one line that says what to do."""


class MetareplayError(ValueError):
    """Something the caller can put right; the message says how."""


class InputError(MetareplayError):
    """An example, option or setting that cannot be used; nothing was learned from it."""


class NonFiniteError(MetareplayError):
    """Learning an example gave a loss or weights that are not finite; that example was undone."""


class CheckpointError(MetareplayError):
    """A checkpoint that is missing, damaged, too new, or of another model."""


class DataError(MetareplayError):
    """A dataset that is missing, damaged, or cannot be fetched."""


class PicturesMissingError(MetareplayError):
    """Raised where a picture cannot be drawn because matplotlib is not installed."""
