"""A training with checkpoints; each step takes half a second.

    python train.py STEPS

A step is a few milliseconds of work and a pause. The program follows the job contract of
docs/agent.md: it resumes from its last checkpoint, saves on SIGUSR1, saves and exits on SIGTERM,
and reports its progress.
"""

import json
import os
import signal
import sys
import time


def write_file(path: str, text: str, temporary: str = "") -> None:
    """Write a file atomically, through a temporary file that no other process writes."""
    temporary = temporary or f"{path}.new"
    with open(temporary, "w") as file:
        file.write(text)
    os.replace(temporary, path)


def main(steps: int) -> None:
    """Train, from the last checkpoint if there is one."""
    folder, rank = os.environ["BURSAR_CHECKPOINT_DIR"], os.environ["BURSAR_NODE_RANK"]
    signals = set[int]()
    step_file = f"{folder}/step.{rank}"
    done = 0
    if os.path.exists(step_file):
        with open(step_file) as file:
            done = int(file.read())

    def save() -> None:
        write_file(step_file, str(done))
        # Marks the checkpoint as complete; other processes of a gang write the same file.
        write_file(f"{folder}/saved", f"step {done}", temporary=f"{folder}/saved.{rank}")

    # Handlers can interrupt each other, so they only record the signal.
    for number in signal.SIGUSR1, signal.SIGTERM:
        signal.signal(number, lambda number, _: signals.add(number))
    where = f"{os.environ['BURSAR_NODE']}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}"
    print(f"attempt {os.environ['BURSAR_ATTEMPT']} on {where} from step {done}", flush=True)
    while done < steps and signal.SIGTERM not in signals:
        sum(n * n for n in range(20_000))
        time.sleep(0.5)
        done += 1
        write_file(os.environ["BURSAR_PROGRESS"], str(done / steps))
        if signal.SIGUSR1 in signals:
            signals.discard(signal.SIGUSR1)
            save()
        if done % 10 == 0:
            print(f"step {done} of {steps}, loss {4 * 0.98**done:.3f}", flush=True)
    save()
    if done < steps:
        sys.exit(f"asked to stop: saved at step {done}")
    result = [{"name": "loss", "inline": f"{4 * 0.98**steps:.3f}"}]
    write_file(os.environ["BURSAR_RESULT"], json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
