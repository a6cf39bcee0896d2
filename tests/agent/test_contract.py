"""The program in docs/agent.md does what the page says: it saves, stops, resumes, and leaves a
result."""

import json
import re
from pathlib import Path

from bursar.agent.clock import running_time
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MINUTE
from tests.support.agent_node import Bench, order, python
from tests.support.patience import eventually

PAGE = Path(__file__).parents[2] / "docs" / "agent.md"


def test_program_of_the_page_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    bench = Bench(tmp_path)
    first = bench.run(order(1, *python(source, "1000000"), checkpoint_every_ms=100))
    bench.printed(first, "from step 0 on")
    eventually(lambda: bench.processes.table()[first].saved_ms, "a checkpoint on the way")
    bench.processes.stop(first, running_time() + 10 * MINUTE)
    stopped = bench.ended(first)
    assert (Exit.STOPPED, 75) == (stopped.exit, stopped.exit_code)
    assert 0 < stopped.saved_ms <= stopped.run_ms
    step = int((tmp_path / "checkpoints" / "acme" / "job" / "step").read_text())
    assert step > 0

    second = bench.run(order(2, *python(source, str(step + 5))))
    done = bench.ended(second)

    assert f"from step {step} on\n" == bench.log(second)
    assert Exit.DONE is done.exit
    assert done.result is not None
    assert [str(step + 5)] == [one["inline"] for one in json.loads(done.result)]
