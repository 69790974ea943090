"""Deep Q-learning with a replay memory (Mnih et al., 2015), the baseline of the paper's second half."""

from dataclasses import dataclass, field
from typing import final

from metareplay._core.plan import Plan, Rates
from metareplay.learners.q_learner import QLearner
from metareplay.memories.memory import Memory
from metareplay.memories.recent import Recent
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DQN(QLearner):
    """Take one step per frame, on the mean loss of the newest transition and k - 1 from memory.

    Args:
        model: The Q-network: any torch module that gives one value per action.
        memory: M, the memory that holds transitions: `Recent` for the usual DQN, or a `Reservoir`.
        lr: alpha, the rate of the optimizer.
        k: Transitions per batch, the newest included (the paper lists k - 1 = 16).
        optimizer: What takes the steps: "sgd", "adam" or "rmsprop".
        discount: What a reward of the next frame is worth now.
        double: Let the model choose the action that the target network evaluates (double DQN).
        target_every: How often the target network is made equal to the model (E_Q in Algorithm 8).
        target_in: What `target_every` counts: "frames" or, as in Algorithm 8, "episodes".
        warmup: Frames that are only remembered, before learning begins.
        epsilon_start: The share of random actions at the beginning.
        epsilon_end: The share of random actions at the end.
        epsilon_frames: Frames in which the share falls, in a straight line, from the first to the last.
        reward_clip: Limit rewards to the range from -reward_clip to reward_clip; None for no limit.
        seed: Decides every draw.
        loss: The loss of (values, targets), a mean over the batch; None for Huber's.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.

    >>> import torch, metareplay as mr
    >>> agent = mr.DQN(mr.networks.mlp(4, (8,), 3), memory=mr.Recent(100), lr=0.1, warmup=2)
    >>> x = torch.rand(4)
    >>> for _ in range(5):
    ...     action, next_x = agent.act(x), torch.rand(4)
    ...     agent.observe(x, action, reward=1.0, next_x=next_x, terminated=False)
    ...     x = next_x
    >>> agent.seen, len(agent.memory)
    (5, 5)
    """

    memory: Memory = field(default_factory=lambda: Recent(50_000))

    def plan(self, memory: Sampler) -> Plan:
        """Store the transition, then draw one batch."""
        for current in memory.incoming():
            memory.store()
            memory.visit(current, *memory.sample(1, self.k - 1))
        return memory.plan(Rates(memory=self.lr, current=self.lr), together=True)
