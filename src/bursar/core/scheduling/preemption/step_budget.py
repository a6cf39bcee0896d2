"""A budget of search steps. It counts instead of measuring time, so plans are reproducible."""


class StepBudget:
    """Counts the sets of victims that a round checks."""

    def __init__(self) -> None:
        self.left = 0
        self.taken = 0
        self.ended = False  # whether a search needed more steps than it had

    def reset(self, steps_max: int) -> None:
        """Give the next search its steps."""
        self.left = steps_max

    def take(self) -> bool:
        """Count a step; False if none is left."""
        if self.left == 0:
            self.ended = True
            return False
        self.taken += 1
        self.left -= 1
        return True
