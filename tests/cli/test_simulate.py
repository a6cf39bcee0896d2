"""`bursar simulate` as somebody at a terminal meets it."""

import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from bursar.cli.app import app
from bursar.sim.policies import POLICIES

WORLD = """
days: 0.05
fleet: [{gpu_type: H100, nodes: 1, price: 2}]
tenants:
  - {org: acme, gpus: {1: 1, 8: 1}, run_median: 20m, arrivals: {per_hour: 40}}
  - {org: beta, gpus: 4, run_median: 20m, arrivals: {per_hour: 20}}
"""
TRACE = "arrives,runs,gpus,org\n0,60,1,acme\n30,60,8,beta\n"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "world.yaml"
    path.write_text(WORLD)
    return path


def simulate(*words: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def test_policies_stand_side_by_side(world: Path) -> None:
    told = simulate(world, "--policy", "bursar,fifo,srtf")

    assert 0 == told.exit_code, told.output
    assert ["bursar", "fifo", "srtf"] == told.stdout.splitlines()[0].split()
    assert "acme: credits spent (cr)" in told.stdout
    assert "seed 1; the books of all tenants add up" in told.stdout


def test_the_same_seed_prints_the_same_bytes(world: Path) -> None:
    """And another seed others: chance comes from the seed alone (S15)."""
    one, same, other = (simulate(world, "--json", "--seed", seed).stdout for seed in (1, 1, 2))

    assert one == same
    assert one != other
    assert json.loads(one)["clean"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_has_its_figures(world: Path, policy: str) -> None:
    [run] = json.loads(simulate(world, "--json", "--policy", policy).stdout)["runs"]

    assert run["jobs"]["all"] == run["jobs"]["done"] > 10
    assert 0 < run["pool"]["goodput_pct"] <= run["pool"]["utilisation_pct"] <= 100
    assert {"acme", "beta"} == set(run["tenants"])
    assert all(one["credits_spent"] > 0 for one in run["tenants"].values())
    assert 0 < run["fairness"]["jain_of_jobs"] <= 1
    assert 0 <= run["tiers"]["paid"]["started_in_time_pct"] <= 100


def test_what_if_there_were_more_gpus(world: Path) -> None:
    """Before and after, with the very same jobs."""
    told = simulate(world, "--json", "--policy", "fifo", "--add", "H100=16")
    before, after = json.loads(told.stdout)["runs"]

    assert ("before", "after") == (before["variant"], after["variant"])
    assert (8, 24) == (before["gpus"], after["gpus"])
    assert before["jobs"] == after["jobs"]
    assert before["all"]["delay_mean_s"] > 2 * after["all"]["delay_mean_s"]


def test_what_if_a_tenant_had_more_weight(world: Path) -> None:
    world.write_text(WORLD.replace("gpus: 4", "gpus: 1").replace("{1: 1, 8: 1}", "1"))
    told = simulate(world, "--json", "--policy", "drf", "--weight", "paid/beta=50")
    before, after = (run["tenants"]["beta"] for run in json.loads(told.stdout)["runs"])

    assert before["delay_mean_s"] > after["delay_mean_s"]


def test_a_recorded_load(tmp_path: Path, world: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE)
    told = simulate(world, "--json", "--policy", "fifo", "--trace", trace, "--columns", "org=org")
    [run] = json.loads(told.stdout)["runs"]

    assert 2 == run["jobs"]["done"]
    assert 30 == run["tenants"]["beta"]["delay_mean_s"]


def test_the_page_needs_nothing_from_anywhere(tmp_path: Path, world: Path) -> None:
    """Pictures and all figures in one file; a tenant's name is text, whatever it is made of."""
    world.write_text(WORLD.replace("beta", "'</script><b>'"))
    path = tmp_path / "page.html"
    told = simulate(world, "--policy", "fifo,sjf", "--json", "--html", path)
    text = path.read_text()

    assert 3 == text.count("<svg")
    assert 2 * 3 == text.count('class="line"')
    assert "http" not in text
    assert "<b>" not in text
    _, _, rest = text.partition('id="figures">')
    assert json.loads(told.stdout) == json.loads(rest.partition("</script>")[0])


def test_the_example_can_be_had() -> None:
    told = simulate("--example")

    assert 0 == told.exit_code
    assert {"fleet", "tenants"} < set(yaml.safe_load(told.stdout))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "magic"], "no such policy: magic"),
        (["--add", "H100"], "name=number"),
        (["--add", "H100=12"], "no whole ones"),
        (["--weight", "gold=2"], "no tier gold"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_what_cannot_be_done_is_told(world: Path, words: list[str], told: str) -> None:
    result = simulate(world, *words)

    assert 2 == result.exit_code
    assert told in result.stderr


def test_a_file_that_is_no_world_is_told(tmp_path: Path) -> None:
    for text in ("fleet: [", "fleet: []", "tenants: 3"):
        path = tmp_path / "wrong.yaml"
        path.write_text(text)
        result = simulate(path)

        assert 2 == result.exit_code, text
        assert result.stderr.startswith("bursar: ")
