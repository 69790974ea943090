"""Load a learner from its checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import Tensor, nn

from metareplay._core.archive import part
from metareplay._core.checks import instance, path_of, shortened, shown
from metareplay._core.folder_lock import was_held
from metareplay.errors import CheckpointError, InputError
from metareplay.learners.checkpoint import fill, plain
from metareplay.learners.checkpoint_checks import check_model, model_state, read_checkpoint
from metareplay.learners.heads import other_head
from metareplay.learners.input_checks import one_line
from metareplay.learners.kinds import LEARNERS, Q_LEARNERS
from metareplay.learners.learner import Learner
from metareplay.learners.losses import named_loss
from metareplay.learners.table_learner import SOURCE, TableLearner
from metareplay.memories import MEMORIES, DiskReservoir, Memory

Kind = TypeVar("Kind", bound=TableLearner)


@overload
def load(path: str | Path, model: nn.Module, kind: None = None, **options: Any) -> Learner: ...
@overload
def load(path: str | Path, model: nn.Module, kind: type[Kind], **options: Any) -> Kind: ...
def load(path: str | Path, model: nn.Module, kind: type[Any] | None = None, **options: Any) -> Any:
    """Load the learner saved at `path`; it continues on `model`, whose weights are replaced.

    Parameters that were frozen when it was saved are frozen again. If anything is wrong, the model is left as it was.

    Args:
        path: What `Learner.save` wrote.
        model: A model with the same parameters as the saved one. Its head may be larger, and of a learner with
            classes="grow" it may have any size.
        kind: The class of the learner, if it is one of your own; type checkers also like to know that of others.
        options: Options that replace saved ones: the engine for instance, or a loss or memory of your own, which a file
            cannot hold.
    """
    path = path_of("path", path)
    instance("model", model, nn.Module, "a torch.nn.Module")
    about, tensors = read_checkpoint(path)
    saved = part(tensors, "model/")
    head = other_head(saved, model_state(model), model)
    if head is None or not _fits(about, saved, model, head):
        check_model(path, saved, model)
    if "memory" not in options:
        _check_place(path, about["settings"].get("memory"), "memory/mark" in tensors)
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    frozen = about.get("frozen", [])
    if not isinstance(frozen, list):
        raise CheckpointError(f"{path} is damaged (frozen is not a list): use an earlier one")
    learner: TableLearner | None = None
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in frozen)
        learner = made = _make(path, about, model, kind, options)
        fill(made, path, about, tensors)
    except BaseException:
        for parameter, is_trained in trained.items():
            parameter.requires_grad_(is_trained)
        if learner is not None and "memory" not in options and isinstance(learner.own_memory, DiskReservoir):
            learner.own_memory.close()  # it was opened here
        raise
    return made


def _fits(about: dict[str, Any], saved: dict[str, Tensor], model: nn.Module, head: str) -> bool:
    """Return whether the model's head is larger than the saved one, or can grow to its size."""
    larger = len(model_state(model)[f"{head}.weight"]) > len(saved[f"{head}.weight"])
    return larger or about["settings"].get("classes") == "grow"


def _make(
    path: Path, about: dict[str, Any], model: nn.Module, kind: type[TableLearner] | None, options: dict[str, Any]
) -> TableLearner:
    """Make a new learner with the saved settings."""
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, TableLearner)):
        raise InputError(f"kind={shown(kind)}: give a subclass of metareplay.Learner")
    kinds = {one.__name__: one for one in (*LEARNERS, *Q_LEARNERS, *([] if kind is None else [kind]))}
    name, settings = about["learner"], about["settings"] | options
    settings.pop(SOURCE, None)
    if kind is not None and kind.__name__ != name:
        raise CheckpointError(
            f"{path} holds a {shortened(name)}, not a {kind.__name__}: leave kind=... out, or give that class"
        )
    if name not in kinds:
        raise CheckpointError(
            f"{path} holds a {shortened(name)}, which this version does not know: update metareplay, or pass your own "
            f"class, load(path, model, kind={shortened(name)})"
        )
    try:
        if "memory" in about["settings"]:
            settings["memory"] = _memory(path, about["settings"]["memory"], options.get("memory"))
        _find_loss(path, settings)
        return kinds[name](model, **settings)
    except CheckpointError:
        raise
    except Exception as error:  # the settings of a stranger's file may be anything
        raise CheckpointError(f"{path} does not fit: {one_line(error)}") from error


def _find_loss(path: Path, settings: dict[str, Any]) -> None:
    """Replace the name of a loss by the loss itself."""
    if isinstance(settings["loss"], str):
        loss = named_loss(settings["loss"])
        if loss is None:
            name = shortened(settings["loss"])
            raise CheckpointError(
                f"{path} was saved with a loss of your own, {name}: pass it, load(path, model, loss=...)"
            )
        settings["loss"] = loss


def _memory(path: Path, saved: dict[str, Any], given: Memory | None) -> Memory:
    """Make an empty memory like the saved one."""
    if given is not None:
        if plain(given.all_settings()) != saved:
            raise CheckpointError(f"{path} was saved with another memory, {shown(saved)}: leave memory=... out")
        return given
    kind = shortened(str(saved.get("kind")))
    if "augment" in saved:
        raise CheckpointError(
            f"{path} was saved with an augmentation of your own, {shortened(str(saved['augment']))}: pass the memory, "
            f"load(path, model, memory={kind}(...).augmented(...))"
        )
    kinds: dict[str, Callable[..., Memory]] = {kind.__name__: kind for kind in MEMORIES}
    kinds["DiskReservoir"] = DiskReservoir
    if kind not in kinds:
        raise CheckpointError(
            f"{path} was saved with a memory of your own, {kind}: pass it, load(path, model, memory=...)"
        )
    return kinds[kind](**{name: value for name, value in saved.items() if name != "kind"})


def _check_place(path: Path, saved: Any, has_mark: bool) -> None:
    """Refuse to make a memory on disk where none has ever been: files from strangers leave other folders alone."""
    if isinstance(saved, dict) and saved.get("kind") == "DiskReservoir":
        folder = str(saved.get("folder"))
        if not has_mark or not was_held(Path(folder)):
            raise CheckpointError(
                f"{path} does not fit: its rows are in {shown(folder)}, and no reservoir of it is there: put the "
                f"folder back, or use another checkpoint"
            )
