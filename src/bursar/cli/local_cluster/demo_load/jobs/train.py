"""A training that makes checkpoints: so many steps of half a second.

    python train.py STEPS

Each step is a few milliseconds of work; the rest is waiting for GPUs that are not there. It keeps
to what an agent promises to programs: it goes on where its last checkpoint was, makes one when it
is asked to (SIGUSR1), saves and leaves when it has to stop (SIGTERM), and tells how far it is.
"""

import json
import os
import signal
import sys
import time


def put(path: str, text: str, aside: str = "") -> None:
    """Have a file in place, whole or not at all; it is written aside, where nobody else writes."""
    aside = aside or f"{path}.new"
    with open(aside, "w") as file:
        file.write(text)
    os.replace(aside, path)


def main(steps: int) -> None:
    """Train, or go on with it."""
    folder, rank = os.environ["BURSAR_CHECKPOINT_DIR"], os.environ["BURSAR_NODE_RANK"]
    asked = set[int]()
    own = f"{folder}/step.{rank}"
    done = 0
    if os.path.exists(own):
        with open(own) as file:
            done = int(file.read())

    def save() -> None:
        put(own, str(done))
        # Tells that a checkpoint is whole; the others of a gang may be doing the same.
        put(f"{folder}/saved", f"step {done}", aside=f"{folder}/saved.{rank}")

    # Handlers can be interrupted by each other: they only take note.
    for number in signal.SIGUSR1, signal.SIGTERM:
        signal.signal(number, lambda number, _: asked.add(number))
    where = f"{os.environ['BURSAR_NODE']}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}"
    print(f"attempt {os.environ['BURSAR_ATTEMPT']} on {where} from step {done}", flush=True)
    while done < steps and signal.SIGTERM not in asked:
        sum(n * n for n in range(20_000))
        time.sleep(0.5)
        done += 1
        put(os.environ["BURSAR_PROGRESS"], str(done / steps))
        if signal.SIGUSR1 in asked:
            asked.discard(signal.SIGUSR1)
            save()
        if done % 10 == 0:
            print(f"step {done} of {steps}, loss {4 * 0.98**done:.3f}", flush=True)
    save()
    if done < steps:
        sys.exit(f"asked to stop: saved at step {done}")
    result = [{"name": "loss", "inline": f"{4 * 0.98**steps:.3f}"}]
    put(os.environ["BURSAR_RESULT"], json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
