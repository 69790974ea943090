"""Both games in plain Python, as slow and as literal as possible, to hold the compiled ones against.

`choose` stands for the random generator: it picks one of a sequence of numbers.
"""

import math
from collections.abc import Callable, Sequence

from metareplay._core.draws import Draws, Purpose

Choose = Callable[[Sequence[int]], int]
DT = 1000 / 30


def split_mix(seed: int) -> Choose:
    """SplitMix64 in Python's whole numbers, picking one of a sequence with each number."""
    key, drawn = Draws(seed).key(Purpose.GAME), 0

    def choose(options: Sequence[int]) -> int:
        nonlocal drawn
        drawn += 1
        word = (key + drawn * 0x9E3779B97F4A7C15) % 2**64
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) % 2**64
        word ^= word >> 31
        return options[int((word >> 11) / 2**53 * len(options))]

    return choose


def truncated(position: float) -> int:
    return int(position)


def rounded(position: float) -> int:
    """Halves go away from zero."""
    whole = math.floor(abs(position))
    if abs(position) - whole >= 0.5:
        whole += 1
    return whole if position >= 0 else -whole


class SlowCatcher:
    """The rules of Catcher, with the integer centres of paddle and pellet."""

    def __init__(self, size: int, speed: float, rounding: str, choose: Choose) -> None:
        self.size, self.speed, self.choose = size, speed, choose
        self.int = truncated if rounding == "truncate" else rounded
        self.fs, self.pw, self.ph = round(0.06 * size), round(0.2 * size), round(0.04 * size)
        self.accel = 0.021 * size
        self.reset()

    def reset(self) -> None:
        self.lives, self.v = 3, 0.0
        self.px, self.py = self.int(self.size / 2 - self.pw / 2), self.size - self.ph - 3
        self.caught = 0
        self.spawn()

    def spawn(self) -> None:
        self.fx = self.choose(range(2 * self.fs, self.size - 2 * self.fs, self.fs))
        self.fy = -self.choose(range(self.fs, self.size // 2, self.fs))

    def overlap(self) -> bool:
        ax, ay = self.px - self.pw // 2, self.py - self.ph // 2
        bx, by = self.fx - self.fs // 2, self.fy - self.fs // 2
        paddle = {(x, y) for x in range(ax, ax + self.pw) for y in range(ay, ay + self.ph)}
        return any((x, y) in paddle for x in range(bx, bx + self.fs) for y in range(by, by + self.fs))

    def tick(self, action: int) -> tuple[float, bool]:
        reward = 0.0
        if self.fy >= self.size:
            reward -= 1
            self.lives -= 1
            self.spawn()
        if self.overlap():
            reward += 1
            self.caught += 1
            self.spawn()
        a = {0: -self.accel, 1: self.accel, 2: 0.0}[action]
        self.v = (self.v + a) * 0.9
        n = self.px + self.v
        if n <= 0:
            n, self.v = 0, 0.0
        if n + self.pw >= self.size:
            n, self.v = self.size - self.pw, 0.0
        self.px = self.int(n)
        self.fy = self.int(self.fy + self.speed * DT)
        if self.lives == 0:
            reward -= 5
        return reward, self.lives == 0

    def numbers(self) -> list[float]:
        return [self.px, self.v, self.fx, self.fy]

    def picture(self) -> list[list[int]]:
        rows = [[0] * self.size for _ in range(self.size)]
        for y in range(self.ph):
            for x in range(self.pw):
                rows[self.py + y][self.px + x] = 255
        for y in range(self.fs):
            for x in range(self.fs):
                if 0 <= self.fy + y < self.size:
                    rows[self.fy + y][self.fx + x] = 148
        return rows


class SlowFlappyBird:
    """The rules of Flappy Bird; a pipe is a list [x, gap_start]."""

    def __init__(self, gap: int, choose: Choose) -> None:
        self.gap, self.choose = gap, choose
        self.vel = 0
        self.reset()

    def reset(self) -> None:
        self.y, self.flapped, self.thrust, self.passed = 256, True, False, 0
        self.pipes = [[x, self.new_gap()] for x in (340.0, 484.0, 628.0)]

    def new_gap(self) -> int:
        low, high = int(self.gap / 4), int(512 * 0.79 * 0.6 - self.gap / 2)
        return self.choose(range(low, high + 1))

    def tick(self, action: int) -> tuple[float, bool]:
        reward, dead = 0.0, False
        if action == 0 and not self.y <= -48:
            self.vel, self.flapped = 0, True
        for pipe in self.pipes:
            x, gap_start = pipe
            rects_overlap = int(x) - 26 < 74 and int(x) + 26 > 40
            outside = self.y <= gap_start or self.y + 24 > gap_start + self.gap
            if rects_overlap and x - 46 <= 57 < x + 26 and outside:
                dead = True
            if x - 26 <= 57 < x - 22:
                reward += 1
                self.passed += 1
            if x < -52:
                pipe[0], pipe[1] = 397.6, self.new_gap()
        if self.y >= 380.48 or self.y <= 0:
            dead = True
        if self.vel < 10 and not self.thrust:
            self.vel += 1
        if self.flapped and not self.thrust:
            self.thrust = True
            self.vel -= 9
        else:
            self.thrust = self.flapped = False
        self.y += self.vel
        for pipe in self.pipes:
            pipe[0] -= 4
        return reward - 5 * dead, dead

    def numbers(self) -> list[float]:
        ahead = sorted((x + 26 - 57, gap_start) for x, gap_start in self.pipes if x + 26 > 57)[:2]
        return [self.y, self.vel, *(value for x, top in ahead for value in (x, top, top + self.gap))]

    def picture(self) -> list[list[int]]:
        def shade(x: int, y: int) -> int:
            if 57 <= x < 91 and self.y <= y < self.y + 24:
                return 235
            if y >= 404:
                return 213
            for centre, top in self.pipes:
                if int(centre) - 26 <= x < int(centre) + 26 and not top <= y < top + self.gap:
                    return 165
            return 38

        return [[shade(x, y) for x in range(288)] for y in range(512)]
