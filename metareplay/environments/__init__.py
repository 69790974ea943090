"""Games to learn: Catcher and Flappy Bird, compiled and as Gymnasium environments, and schedules that change them."""
