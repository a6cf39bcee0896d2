"""`bursar simulate faults` as somebody at a terminal meets it."""

import json

import pytest
from typer.testing import CliRunner, Result

from bursar.cli.app import app
from bursar.sim.faults import campaign
from tests.sim.faults.planted import BUGS, planted

BUG = BUGS["credits do not bound a run"]  # the first seed finds it


def simulate_faults(*words: object) -> Result:
    return CliRunner().invoke(app, ["simulate", "faults", *map(str, words)])


def test_counts_of_events_are_printed() -> None:
    told = simulate_faults("--seeds", 4)

    assert 0 == told.exit_code, told.output
    assert ["event", "count", "per", "seed"] == told.stdout.split("\n")[0].split()
    assert "attempts placed" in told.stdout
    assert "4 seeds, " in told.stdout
    assert "0 seeds violated an invariant" in told.stdout


def test_the_same_seeds_print_the_same_bytes() -> None:
    one, same, other = (
        simulate_faults("--json", "--seeds", 2, "--first", first).stdout for first in (5, 5, 6)
    )

    assert one == same
    assert one != other
    assert 2 == json.loads(one)["seeds"]
    assert [] == json.loads(one)["broken"]


def test_trace_prints_every_step_of_a_seed() -> None:
    told = simulate_faults("--seed", 3, "--trace")

    assert 0 == told.exit_code
    assert "deliver" in told.stdout
    assert "Report(node=" in told.stdout
    assert "1 seeds, " in told.stdout
    assert len(told.stdout.splitlines()) > 100


def test_violated_invariant_is_printed_with_its_last_steps_and_the_command_to_reproduce_it() -> (
    None
):
    with planted(BUG):
        told = simulate_faults("--seeds", 1)
        kept = json.loads(simulate_faults("--seeds", 1, "--json").stdout)["broken"][0]["steps"]

    assert 1 == told.exit_code
    assert "seed 0: IS9: " in told.stdout
    assert "to reproduce: bursar simulate faults --seed 0 --trace" in told.stdout
    assert 30 == len(kept)
    assert all(step[:40].rstrip() in told.stdout for step in kept)


def test_unexpected_exception_is_reported_too() -> None:
    with planted(BUGS["a leader does not notice ends"]):
        told = simulate_faults("--seeds", 3, "--json")

    assert 1 == told.exit_code
    assert json.loads(told.stdout)["broken"]


def test_run_with_too_few_faults_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SEEDS_MIN", 1)
    monkeypatch.setitem(campaign.EVENTS_PER_100_SEEDS, "crash", 100_000)
    told = simulate_faults("--seeds", 1)

    assert 3 == told.exit_code
    assert "too few: crash: " in told.stdout
    assert "not valid: too few faults" in told.stdout


def test_several_processes_print_the_same_bytes() -> None:
    """Broken or not, in the order of the seeds."""
    one, two = (simulate_faults("--json", "--seeds", 25, "--jobs", jobs).stdout for jobs in (1, 2))

    assert one == two
    assert 25 == json.loads(two)["seeds"]
