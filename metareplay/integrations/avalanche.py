"""Learners as strategies of Avalanche; `pip install 'metareplay[avalanche]'`."""

from collections.abc import Sequence
from typing import Any, final

import torch
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from metareplay._core.checks import instance
from metareplay.errors import InputError
from metareplay.learners import Learner


@final
class LearnerStrategy(SupervisedTemplate):  # type: ignore[misc]  # Avalanche has no types
    """Let a learner learn Avalanche's experiences, and Avalanche's plugins and metrics watch it.

    Each minibatch is predicted first, for the metrics, and then learned, example by example, as the learner does. What
    the learner remembers is its own memory, which fills from the first example on.

    Args:
        learner: The learner, with labels 0, 1, 2, ...
        train_mb_size: How many examples the data loader gives at a time. It does not change what is learned.
        train_epochs: How often each experience is learned.
        eval_mb_size: How many examples are evaluated at a time.
        plugins: Avalanche's plugins.
        evaluator: Avalanche's evaluation plugin, or a function that makes one.
        eval_every: As in Avalanche: -1 to evaluate only when asked, or the number of epochs between evaluations.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        train_mb_size: int = 10,
        train_epochs: int = 1,
        eval_mb_size: int = 256,
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
        eval_every: int = -1,
    ) -> None:
        instance("learner", learner, Learner, "a learner, such as metareplay.MER(...)")
        if learner.regression or learner.labels is not None:
            raise InputError("Avalanche numbers its classes: use a learner without regression and classes=...")
        self.learner = learner
        super().__init__(
            model=learner.model,
            optimizer=torch.optim.SGD(learner.model.parameters(), lr=learner.lr),  # Avalanche wants one; takes no step
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=next(learner.model.parameters()).device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )

    def training_epoch(self, **kwargs: Any) -> None:
        """Learn an experience once.

        Args:
            kwargs: What Avalanche passes on to its plugins.
        """
        for minibatch in self.dataloader:
            self.mbatch = minibatch
            if self._stop_training:
                break
            self._unpack_minibatch()
            self._before_training_iteration(**kwargs)
            self._before_forward(**kwargs)
            with torch.no_grad():
                self.mb_output = self.forward()
                self.loss = self.criterion()
            self._after_forward(**kwargs)
            self._before_update(**kwargs)
            self.learner.observe_many(self.mb_x, self.mb_y, self.mb_task_id)
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)
