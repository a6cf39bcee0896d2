"""What jobs run: they work for a while, and leave proof of it.

    python -IS job.py FOLDER SECONDS HOW

Each process adds lines to FOLDER/runs: that it starts, and that it ends if it does so by itself. It
holds locks on its job and on its GPUs for as long as anything of it lives, and says so if somebody
else has them: whatever the books say, that is what really ran.

HOW  keeps      makes checkpoints and goes on from the last one
     forgets    begins anew each time
     fails      with 3, at the end
     forks      leaves a process of its own behind, which its guard has to end
     skews      makes checkpoints that seem to be minutes old or young
"""

import fcntl
import os
import signal
import sys
import time

STEP_S = 0.05
MINUTES = 3


def add(folder: str, what: str) -> None:
    """Add a line, whole."""
    env = os.environ
    words = [env[f"BURSAR_{name}"] for name in ("JOB_ID", "ATTEMPT", "FENCE", "NODE")]
    line = " ".join([what, *words, str(os.getpid()), str(time.monotonic_ns() // 1_000)])
    runs = os.open(f"{folder}/runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(runs, f"{line}\n".encode())
    os.close(runs)
    os.write(1, f"{what}\n".encode())


def lock(folder: str, name: str) -> None:
    """Hold a lock until nothing of this job is left; say so if another has it."""
    held = os.open(f"{folder}/locks/{name}", os.O_RDWR | os.O_CREAT, 0o666)
    os.set_inheritable(held, True)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        add(folder, f"taken:{name}")


def step_of(path: str) -> int:
    """How far it was."""
    try:
        with open(path) as file:
            return int(file.read())
    except OSError:
        return 0


def save(path: str, step: int, skew_s: float) -> None:
    """Make a checkpoint, and mark it as complete."""
    with open(f"{path}.new", "w") as file:
        file.write(str(step))
    os.replace(f"{path}.new", path)
    marker = os.path.join(os.path.dirname(path), "saved")
    with open(f"{path}.marker", "w"):
        pass
    if skew_s:
        os.utime(f"{path}.marker", (time.time() + skew_s,) * 2)
    os.replace(f"{path}.marker", marker)


def fork() -> None:
    """Leave a process behind that nobody waits for."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def main(folder: str, seconds: str, how: str) -> int:
    """Work."""
    os.umask(0)  # other jobs, which have other users, use the same files
    asked: set[str] = set()
    signal.signal(signal.SIGUSR1, lambda *_: asked.add("save"))
    signal.signal(signal.SIGTERM, lambda *_: asked.update(("save", "stop")))
    add(folder, "start")
    job, node, rank = (os.environ[f"BURSAR_{name}"] for name in ("JOB_ID", "NODE", "NODE_RANK"))
    lock(folder, f"{job}.{rank}")
    for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
        lock(folder, f"{node}.{gpu}")
    if how == "forks":
        fork()
    keeps = how in ("keeps", "skews")
    path = os.path.join(os.environ["BURSAR_CHECKPOINT_DIR"], f"step.{rank}")
    step, steps = step_of(path) if keeps else 0, int(float(seconds) / STEP_S)
    sign = 1 if int(os.environ["BURSAR_FENCE"]) % 2 else -1
    while step < steps:
        time.sleep(STEP_S)
        step += 1
        if keeps and "save" in asked:
            asked.discard("save")
            save(path, step, MINUTES * 60 * sign if how == "skews" else 0)
        if "stop" in asked:
            add(folder, "stopped")
            return 75
    add(folder, "end")
    return 3 if how == "fails" else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
