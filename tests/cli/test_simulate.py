"""`bursar simulate` as somebody at a terminal meets it."""

import json
import re
from gzip import compress
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from bursar.cli.app import app
from bursar.cli.simulate import ROWS, TENANT_ROWS, TIER_ROWS
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


def test_policies_are_compared_side_by_side(world: Path) -> None:
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


def test_what_if_with_more_gpus(world: Path) -> None:
    """Before and after, with the very same jobs."""
    told = simulate(world, "--json", "--policy", "fifo", "--add", "H100=16")
    before, after = json.loads(told.stdout)["runs"]

    assert ("before", "after") == (before["variant"], after["variant"])
    assert (8, 24) == (before["gpus"], after["gpus"])
    assert before["jobs"] == after["jobs"]
    assert before["all"]["delay_mean_s"] > 2 * after["all"]["delay_mean_s"]


def test_what_if_with_more_weight_for_a_tenant(world: Path) -> None:
    world.write_text(WORLD.replace("gpus: 4", "gpus: 1").replace("{1: 1, 8: 1}", "1"))
    told = simulate(world, "--json", "--policy", "drf", "--weight", "paid/beta=50")
    before, after = (run["tenants"]["beta"] for run in json.loads(told.stdout)["runs"])

    assert before["delay_mean_s"] > after["delay_mean_s"]


def test_pool_policy_can_be_simulated_before_it_is_set(tmp_path: Path, world: Path) -> None:
    """The file says what `bursar pools policy set` reads; the rest of it is of no matter."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        "version: 3\ntiers: {paid: {queue_max: 1, weight: 2}}\npolicy: {half_life: 5}\n"
    )
    plain = simulate(world, "--policy", "bursar", "--json")
    told = simulate(world, "--policy", "bursar", "--json", "--rules", rules)

    assert (0, 0) == (plain.exit_code, told.exit_code), told.output
    rules.write_text("tiers: {gold: {weight: 2}}")
    wrong = simulate(world, "--rules", rules)
    assert 2 == wrong.exit_code
    assert "unknown key: gold" in wrong.output


def test_recorded_load_is_simulated(tmp_path: Path, world: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE)
    told = simulate(world, "--json", "--policy", "fifo", "--trace", trace, "--columns", "org=org")
    [run] = json.loads(told.stdout)["runs"]

    assert 2 == run["jobs"]["done"]
    assert 30 == run["tenants"]["beta"]["delay_mean_s"]


def test_assumptions_about_a_trace_are_printed(tmp_path: Path, world: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE)
    plain = simulate(world, "--policy", "fifo", "--trace", trace)
    saving = simulate(
        world, "--policy", "fifo", "--trace", trace,
        "--checkpoint-every", "10s", "--checkpoint-cost", "1s",
    )  # fmt: skip

    assert "trace: 2 jobs that arrive over 30 s\n" in plain.stdout
    limit = "all jobs have no limit in the trace; their limit is 2 times their run time\n"
    assert f"assumed: {limit}" in plain.stdout
    assert "assumed: no job saves checkpoints; a preempted job begins again\n" in plain.stdout
    assert 0 == saving.exit_code, saving.output
    assert "checkpoints" not in saving.stdout
    assert "assumed:" not in simulate(world, "--policy", "fifo").stdout, "nothing is recorded"


def test_longest_delay_stands_beside_the_longest_wait(tmp_path: Path, world: Path) -> None:
    """A job that starts at once and is preempted later waits for nothing and is delayed."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("arrives,runs,gpus\n0,600,8\n10,60,8\n")
    told = simulate(world, "--policy", "srtf", "--trace", trace)
    figures = {line[:34].strip(): line[34:].strip() for line in told.stdout.splitlines()}

    assert "0.00" == figures["longest wait to a first start (s)"]
    assert "70.00" == figures["longest queueing delay (s)"]


OF_EACH = ("Who had which GPU", "Shares over time", "Queue by tier")
TITLES = (
    *OF_EACH, "Queue length", "GPUs in use", "All jobs", "Tier paid", "Utilisation",
    "Queueing delay, mean", "paid: started in time", "paid: waited too long",
)  # fmt: skip


def test_html_report_loads_nothing_from_the_network(tmp_path: Path, world: Path) -> None:
    """Pictures and all figures in one file; a tenant's name is text, whatever it is made of."""
    world.write_text(WORLD.replace("beta", "'</script><b>'"))
    path = tmp_path / "page.html"
    told = simulate(world, "--policy", "fifo,sjf", "--json", "--html", path)
    text = path.read_text()

    for title in TITLES:
        assert text.count(f"<figcaption>{title}</figcaption>") == (2 if title in OF_EACH else 1)
    assert 2 == text.count('src="data:image/png;base64,'), "a picture of the GPUs of each run"
    assert "http" not in text
    assert "<b>" not in text
    _, _, rest = text.partition('id="figures">')
    assert json.loads(told.stdout) == json.loads(rest.partition("</script>")[0])


def test_built_in_scenarios_are_printed() -> None:
    for words in ([], ["day"], ["overload"]):
        told = simulate(*words, "--example")

        assert 0 == told.exit_code
        assert {"fleet", "tenants"} < set(yaml.safe_load(told.stdout))
        assert ("admission" in told.stdout) == (words == ["overload"])


def test_what_if_shows_before_after_and_change(tmp_path: Path, world: Path) -> None:
    page = tmp_path / "page.html"
    told = simulate(world, "--policy", "fifo", "--add", "H100=16", "--html", page)
    lines = {line[:40].strip(): line[40:].split() for line in told.stdout.splitlines()}

    assert ["fifo", "before", "fifo", "after", "change"] == told.stdout.splitlines()[0].split()
    assert ["8", "24", "+200", "%"] == lines["GPUs"]
    assert "After: +16 H100 GPUs." in page.read_text()
    assert 'class="line dashed"' in page.read_text(), "what was before"


def test_svg_chart_is_written(tmp_path: Path, world: Path) -> None:
    """One that stands alone, reads as XML, and is of the last run."""
    path = tmp_path / "plot.svg"
    simulate(world, "--policy", "fifo,bursar", "--svg", path)
    picture = ElementTree.fromstring(path.read_text())

    assert "{http://www.w3.org/2000/svg}svg" == picture.tag
    words = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0].startswith("bursar: ")
    assert "paid" in words
    assert 16_000 > path.stat().st_size


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "magic"], "no such policy: magic"),
        (["--add", "H100"], "NAME=NUMBER"),
        (["--add", "H100=12"], "not a number of whole nodes"),
        (["--weight", "gold=2"], "no tier gold"),
        (["--trace", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--policy", ","], "no policy given; available: bursar"),
        (["--weight", "paid/acme=0"], "paid/acme=0: weight"),
        (["--weight", "paid/nobody=2"], "there is no paid/nobody"),
        (["--columns", "gpus=n"], "requires --trace"),
        (["--checkpoint-every", "10m"], "requires --trace"),
        (["--html", "no/such/folder/page.html"], "no/such/folder: no such folder"),
        (["--svg", "no/such/folder/plot.svg"], "no/such/folder: no such folder"),
    ],
)
def test_impossible_simulation_is_refused(world: Path, words: list[str], told: str) -> None:
    result = simulate(world, *words)

    assert 2 == result.exit_code
    assert told in result.stderr


def test_invalid_scenario_file_is_refused(tmp_path: Path) -> None:
    for text in (b"fleet: [", b"fleet: []", b"tenants: 3", b"\xff\xfe", b""):
        path = tmp_path / "wrong.yaml"
        path.write_bytes(text)
        result = simulate(path)

        assert 2 == result.exit_code, text
        assert result.stderr.startswith("bursar: ")


def test_invalid_trace_file_is_refused(tmp_path: Path, world: Path) -> None:
    """Cut short, no text, or too wide: with its name, and no row of the program."""
    table = b"arrives,runs,gpus\n0,60,1\n"
    wide = table + b"0,60,1," + b"x" * 200_000
    for name, given in (
        ("a.csv.gz", compress(table)[:25]),
        ("b.csv", b"\xff\xfe"),
        ("c.csv", wide),
    ):
        path = tmp_path / name
        path.write_bytes(given)
        result = simulate(world, "--trace", path)

        assert 2 == result.exit_code, name
        assert result.stderr.startswith(f"bursar: {path}: "), name


def test_trace_may_begin_with_a_byte_order_mark(tmp_path: Path, world: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("\ufeff" + TRACE)

    assert 0 == simulate(world, "--trace", path, "--policy", "fifo").exit_code


def test_simulation_of_the_readme_runs() -> None:
    """Its commands are taken, and what it shows of them has rows that are printed.

    The figures are those of the day that it names: they change with the scheduler.
    """
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    _, _, section = readme.partition("## Simulator\n")
    shown = re.findall(r"```\n(\$ bursar simulate.*?)```", section.partition("\n## ")[0], re.DOTALL)
    known = {name + (f" ({unit})" if unit else "") for name, unit, _ in (*ROWS, *TIER_ROWS)}
    known |= {name + (f" ({unit})" if unit else "") for name, unit, _ in TENANT_ROWS}

    assert shown
    for block in shown:
        command, _, *rows = block.strip().splitlines()
        assert 0 == simulate(*command.split()[3:], "--example").exit_code
        names = [re.split(r"\s{2,}", row)[0] for row in rows if row and "  " in row]
        assert names
        assert [] == [name for name in names if re.sub(r"^\w+: ", "", name) not in known]
