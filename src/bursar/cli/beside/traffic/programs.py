"""What the jobs of a demonstration run: real programs, which work a little and wait a lot.

A machine with two cores has to bear thirty of them. Each is given to Python as text, because a node
has nothing of ours, and keeps to what agents promise to programs: checkpoints in a folder that
outlives an attempt, a marker when one is whole, a signal to stop, files for progress and result.
"""

import sys
from typing import Final

# Steps of half a second: a few milliseconds of work, the rest is waiting for GPUs that are not
# there. It goes on where its last checkpoint was.
_TRAIN: Final = """
import json, os, signal, sys, time
steps, stops = int(sys.argv[1]), []
rank = os.environ["BURSAR_NODE_RANK"]
folder = os.environ["BURSAR_CHECKPOINT_DIR"]
kept = os.path.join(folder, "step." + rank)
def put(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)
def save(*_):
    put(kept, str(done))
    put(os.path.join(folder, "saved"), "step %d" % done)
try:
    done = int(open(kept).read())
except OSError:
    done = 0
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
where = os.environ["BURSAR_NODE"] + ", GPUs " + os.environ["CUDA_VISIBLE_DEVICES"]
print("attempt", os.environ["BURSAR_ATTEMPT"], "on", where, "from step", done, flush=True)
loss = 4.0 * 0.98 ** done
while done < steps and not stops:
    sum(n * n for n in range(20_000))
    time.sleep(0.5)
    done, loss = done + 1, loss * 0.98
    put(os.environ["BURSAR_PROGRESS"], str(done / steps))
    if done % 10 == 0:
        print("step %d of %d, loss %.3f" % (done, steps, loss), flush=True)
save()
if stops:
    sys.exit("asked to stop: saved at step %d" % done)
put(os.environ["BURSAR_RESULT"], json.dumps([{"name": "loss", "inline": "%.3f" % loss}]))
print("done", flush=True)
"""
# Keeps nothing: whoever ends it has to pay for all of it.
_SWEEP: Final = """
import sys, time
for trial in range(int(sys.argv[1])):
    sum(n * n for n in range(20_000))
    time.sleep(1)
    print("trial", trial, flush=True)
"""


def train(steps: int) -> list[str]:
    """A training that makes checkpoints, of so many half seconds."""
    return [sys.executable, "-I", "-S", "-c", _TRAIN, str(steps)]


def sweep(trials: int) -> list[str]:
    """A search that keeps nothing on its way, of so many seconds."""
    return [sys.executable, "-I", "-S", "-c", _SWEEP, str(trials)]


def broken(after_s: int) -> list[str]:
    """A program with a bug that shows after a while."""
    return ["sh", "-c", f"sleep {after_s}; echo 'KeyError: labels' >&2; exit 3"]
