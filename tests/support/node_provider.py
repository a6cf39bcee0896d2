"""A program that provides nodes, as an operator would write one: each is a file in a folder.

What it is to do wrong is said by files in that folder, too: `fail`, `hang`, `refuse`, `babble`; the
one question that finds `late` makes it `waits`, and goes on when that is gone.
"""

import json
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
question = json.loads(sys.stdin.readline())
with (folder / "asked").open("a") as asked:
    asked.write(json.dumps(question) + "\n")
if (folder / "hang").exists():
    (folder / "hangs").touch()
    time.sleep(600)
if question["action"] == "order" and (folder / "late").exists():
    (folder / "late").rename(folder / "waits")
    while (folder / "waits").exists():
        time.sleep(0.01)
if (folder / "fail").exists():
    sys.exit("there is no cloud today")
if (folder / "babble").exists():
    sys.stdout.write("yes, of course")
    sys.exit()
nodes = folder / "nodes"
if question["action"] == "list":
    sys.stdout.write(json.dumps({"orders": sorted(one.name for one in nodes.iterdir())}))
elif question["action"] == "remove":
    (nodes / question["order"]).unlink(missing_ok=True)
    sys.stdout.write(json.dumps({"state": "removed"}))
elif (folder / "refuse").exists():
    sys.stdout.write(json.dumps({"state": "refused", "reason": "sold out"}))
else:
    (nodes / question["order"]).write_text(question["node"])
    sys.stdout.write(json.dumps({"state": "coming"}))
