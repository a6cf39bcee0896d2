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


def put(path: str, text: str) -> None:
    """Have a file in place, whole or not at all."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def main(steps: int) -> None:
    """Train, or go on with it."""
    folder, stops = os.environ["BURSAR_CHECKPOINT_DIR"], list[int]()
    own = f"{folder}/step.{os.environ['BURSAR_NODE_RANK']}"
    done = 0
    if os.path.exists(own):
        with open(own) as file:
            done = int(file.read())

    def save(*_: object) -> None:
        put(own, str(done))
        put(f"{folder}/saved", f"step {done}")  # tells that a checkpoint is whole

    signal.signal(signal.SIGUSR1, save)
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    where = f"{os.environ['BURSAR_NODE']}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}"
    print(f"attempt {os.environ['BURSAR_ATTEMPT']} on {where} from step {done}", flush=True)
    while done < steps and not stops:
        sum(n * n for n in range(20_000))
        time.sleep(0.5)
        done += 1
        put(os.environ["BURSAR_PROGRESS"], str(done / steps))
        if done % 10 == 0:
            print(f"step {done} of {steps}, loss {4 * 0.98**done:.3f}", flush=True)
    save()
    if done < steps:
        sys.exit(f"asked to stop: saved at step {done}")
    result = [{"name": "loss", "inline": f"{4 * 0.98**steps:.3f}"}]
    put(os.environ["BURSAR_RESULT"], json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
