"""A search without checkpoints; each trial takes a second.

python sweep.py TRIALS
"""

import sys
import time


def main(trials: int) -> None:
    """Run the trials."""
    for trial in range(trials):
        sum(n * n for n in range(20_000))
        time.sleep(1)
        print(f"trial {trial}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
