"""A small model like Llama: RMSNorm, rotary positions, causal attention, SwiGLU, and bytes for tokens."""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.checks import check_count, check_room, instance, shown, whole
from metareplay._core.fields import check_fields
from metareplay.errors import InputError
from metareplay.networks.initial import checked_seed

BYTES: Final = 256  # the vocabulary


@final
@dataclass(frozen=True)
class Size:
    """Say how large a model is.

    Args:
        width: Numbers per position.
        layers: How many blocks of attention and SwiGLU there are.
        heads: How many heads each attention has.
    """

    width: int
    layers: int
    heads: int

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        check_fields(self)
        for name in ("width", "layers", "heads"):
            check_count(name, getattr(self, name), "there is one at least")
        if self.width % (2 * self.heads):
            raise InputError(f"width={shown(self.width)}: use a multiple of twice the number of heads, {self.heads}")
        check_room("width", self.width, 16 * self.width**2 * self.layers)


SIZES: Final = {
    "mini": Size(width=64, layers=2, heads=4),
    "11m": Size(width=320, layers=9, heads=5),
    "30m": Size(width=512, layers=10, heads=8),
    "50m": Size(width=640, layers=10, heads=10),
}


@final
class Llama(nn.Module):
    """Predict the next byte at every position.

    Args:
        size: How large the model is.
        context: The largest number of positions.
        seed: Decides the first weights.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, size: Size, context: int, seed: int) -> None:
        super().__init__()
        instance("size", size, Size, "a Size, for instance SIZES['mini']")
        check_count("context", context, "the model sees one byte at least")
        check_room("context", context, 8 * whole("context", context) * size.width)
        context = whole("context", context)
        self.embedding = nn.Embedding(BYTES, size.width)
        self.blocks = nn.ModuleList(_Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        half = size.width // size.heads // 2
        angles = torch.outer(torch.arange(context), 10_000.0 ** -(torch.arange(half) / half))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        generator = torch.Generator().manual_seed(checked_seed(seed))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte, of shape (rows, positions, 256).

        Args:
            tokens: Bytes as whole numbers, of shape (rows, positions).
        """
        x = self.embedding(tokens)
        length = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cosine[:length], self.sine[:length])
        return functional.linear(self.norm(x), self.embedding.weight)

    def compile_blocks(self) -> None:
        """Let `torch.compile` compile the blocks when they are next called, once for each shape of their input."""
        for block in self.blocks:
            block.compile(dynamic=False)  # since torch 2.5 they share what is compiled

    def loss(self, rows: Tensor) -> Tensor:
        """Return the mean loss, in nats per byte, of predicting each byte of some rows from those before it.

        Args:
            rows: Bytes, one more per row than there are positions.
        """
        tokens = rows.long()
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@final
class _Block(nn.Module):
    """Attention and SwiGLU, each after an RMSNorm and added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 8 * 8
        self.heads = heads
        self.before_attention, self.before_mixing = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, length, width = x.shape
        three = self.queries_keys_values(self.before_attention(x)).view(rows, length, 3, self.heads, -1)
        queries_keys, values = three.permute(2, 0, 3, 1, 4).split([2, 1])
        queries, keys = _rotated(queries_keys, cosine, sine)
        found = functional.scaled_dot_product_attention(queries, keys, values.squeeze(0), is_causal=True)
        x = x + self.attended(found.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_and_up(self.before_mixing(x)).chunk(2, dim=-1)
        mixed: Tensor = x + self.down(functional.silu(gate) * up)
        return mixed


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn pairs of numbers by angles that grow with the position."""
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1).to(x.dtype)
