"""Deep Q-learning with Meta-Experience Replay: Algorithm 8 of Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from metareplay._core.checks import check_count, check_share
from metareplay._core.plan import Plan, Rates
from metareplay.learners.q_learner import QLearner
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DQNMER(QLearner):
    """Learn the values of actions by steps on single transitions, with Reptile updates within and across batches.

    For each frame, with the transition (x, a, r, x') that has just come:

        offer the transition to the memory
        theta_A <- theta
        for each of s batches B_i, the transition itself and k - 1 from memory:
            theta_W <- theta
            for j = 1 .. k:  theta <- theta - lr * gradient of Huber(y, Q(x, a)) for (x, a, r, x') = B_i[j],
                             where y = r at the end of an episode and r + discount * max_a Q'(x', a) otherwise
            theta <- theta_W + beta (theta - theta_W)
        theta <- theta_A + gamma (theta - theta_A)
        every target_every frames: Q' <- Q

    The defaults of lr, beta, gamma, s, k and the size of the memory are the paper's. The discount, epsilon, the
    `warmup` frames in which nothing is learned, and the renewal of Q' after a fixed number of frames are ours.
    Algorithm 8 renews Q' every E_Q episodes, but does not say how large E_Q is, and a player who never loses never ends
    an episode.

    Args:
        model: The Q-network: any torch module that gives one value per action.
        memory: M, the memory that holds transitions: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the rate of the steps inside a batch.
        beta: Reptile rate within a batch: how far to go along the steps of one batch, 0 < beta <= 1.
        gamma: Reptile rate across the batches of one frame, 0 < gamma <= 1.
        s: Batches per frame.
        k: Transitions per batch, the newest included (the paper lists k - 1 = 16).
        optimizer: What takes the steps: "sgd", "adam" or "rmsprop"; Reptile lines leave its moments alone.
        discount: What a reward of the next frame is worth now.
        double: Let the model, with its weights before the batch, choose the action that the target network evaluates.
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
    >>> agent = mr.DQNMER(mr.networks.mlp(4, (8,), 3), memory=mr.Reservoir(100), lr=0.1, k=5, warmup=2)
    >>> x = torch.rand(4)
    >>> for _ in range(5):
    ...     action, next_x = agent.act(x), torch.rand(4)
    ...     agent.observe(x, action, reward=1.0, next_x=next_x, terminated=False)
    ...     x = next_x
    >>> agent.seen, len(agent.memory)
    (5, 5)
    """

    command_name: ClassVar[str] = "dqn-mer"

    beta: float = 1.0
    gamma: float = 0.3
    s: int = 1

    def __post_init__(self) -> None:
        check_share("beta", self.beta)
        check_share("gamma", self.gamma)
        check_count("s", self.s, "a frame is learned with at least one batch")
        super().__post_init__()

    def rows_per_frame(self) -> int:
        """Return s k."""
        return self.s * self.k

    def plan(self, memory: Sampler) -> Plan:
        """Plan the loops of Algorithm 8; an engine takes the steps and makes the Reptile updates."""
        for current in memory.incoming():
            memory.store()  # the transition is stored before anything is sampled
            for drawn in memory.sample(self.s, self.k - 1):  # for each batch B_1 .. B_s
                memory.visit(current, drawn)  # k steps, then beta's line
        rates = Rates(memory=self.lr, current=self.lr, within=self.beta, across=self.gamma)
        return memory.plan(rates, s=self.s)  # gamma's line follows

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost of a frame: s batches of k."""
        return float(settings["s"] * settings["k"])
