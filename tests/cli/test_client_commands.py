"""The commands of the ledger, as somebody at a terminal or a script meets them."""

import csv
import io
import json
import os
import pty
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from bursar.cli import output
from bursar.cli.app import app
from bursar.cli.commands.account import draw_tree
from bursar.cli.commands.grant import parse_grant_policy
from bursar.cli.commands.statement import join_statement_pages
from bursar.cli.commands.top import format_age
from bursar.cli.lazy_groups import COMMANDS
from bursar.cli.problems import exit_code
from bursar.client import ApiResponse, Client
from bursar.wire.problems import PROBLEMS
from tests.support.api_service import PROGRAM, RANDOM_ID, Process
from tests.support.databases import new_state
from tests.support.patience import eventually
from tests.support.scripted_server import Reply, problem, scripted

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
VARIABLES = ("BURSAR_URL", "BURSAR_KEY", "BURSAR_ORG", "BURSAR_STATE", "NO_COLOR", "TERM")


@dataclass(frozen=True)
class Running:
    """A service, and its state folder."""

    state: Path
    process: Process


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`bursar up`, for all tests of this file."""
    with new_state() as state:
        process = Process("up", state, tmp_path_factory.mktemp("service"))
        try:
            yield Running(state, process)
        finally:
            process.stop()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of this machine's user, and clocks as in Berlin."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BURSAR_STATE", str(tmp_path / "nothing-here"))
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@dataclass
class Shell:
    """Somebody who types commands."""

    environment: dict[str, str]
    org: str = ""
    account: str = ""  # the root

    def run(self, *words: str, told: str | None = None) -> Result:
        return CliRunner().invoke(app, list(words), env=self.environment, input=told)

    def says(self, *words: str) -> str:
        """What a command prints that does what it is asked."""
        result = self.run(*words)
        assert 0 == result.exit_code, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.says(*words, "-o", "json"))

    def fails(self, code: int, *words: str) -> str:
        """What a command that fails says: on standard error alone."""
        result = self.run(*words)
        assert code == result.exit_code, result.output
        assert "" == result.stdout
        return result.stderr


@pytest.fixture
def operator(running: Running) -> Shell:
    """An operator, with an org of this test's own."""
    process = running.process
    shell = Shell({"BURSAR_URL": process.url, "BURSAR_KEY": process.admin_key})
    org = shell.json("org", "create", "acme", "--tier", "paid")
    shell.org, shell.account = org["id"], org["account_id"]
    shell.environment["BURSAR_ORG"] = shell.org
    return shell


@pytest.fixture
def funded(operator: Shell) -> Shell:
    """An operator whose org has 100 credits and a price."""
    operator.says("grant", "create", operator.account, "100", "--kind", "paid")
    operator.says("price", "set", "H100=2.5")
    return operator


# A tour


def test_credits_are_issued_held_charged_and_settled(operator: Shell) -> None:
    """The whole way of a credit, in commands."""
    team = operator.json("account", "create", "research", "--parent", operator.account)["id"]
    grant = operator.json(
        *("grant", "create", team, "50", "--kind", "promo", "--expires-in", "90d"),
        *("--policy", "gpu_types=H100,A100", "--policy", "max_share=50%"),
    )
    assert ["A100", "H100"] == grant["policy"]["gpu_types"]
    assert 500_000 == grant["policy"]["max_share_ppm"]
    ends, begins = (datetime.fromisoformat(grant[name]) for name in ("expires_at", "issued_at"))
    assert abs((ends - begins).total_seconds() - 90 * 86_400) < 3_600
    operator.says("grant", "create", operator.account, "1000", "--kind", "paid", "--ref", "inv-1")
    operator.says("price", "set", "H100=2.5", "A100=1.25")

    asked = ("--run", "2h", "--gpu-type", "H100", "--gpu-count", "8")
    quoted = operator.json("quote", team, *asked)
    assert (40_000_000, []) == (quoted["held_micros"], quoted["problems"])
    hold = operator.json("hold", "open", team, *asked, "--ttl", "1h")
    assert (40_000_000, "open") == (hold["open_micros"], hold["state"])
    id = hold["id"]
    assert 16_666 == operator.json("hold", "charge", id, "--run-total", "3s")["amount_micros"]
    assert "exceeds_hold_age" in operator.fails(2, "hold", "charge", id, "--run-total", "30m")
    assert 40_983_334 == operator.json("hold", "extend", id, "--add", "1")["open_micros"]
    assert 39_483_334 == operator.json("hold", "refund", id, "1.5")["open_micros"]
    settled = operator.json("hold", "settle", id, "12.5")
    assert ("closed", 12_500_000) == (settled["state"], settled["charged_micros"])
    assert 12_483_334 == settled["charge"]["amount_micros"]
    assert "closed" == operator.json("hold", "show", id)["state"]
    assert [id] == [one["id"] for one in operator.json("hold", "list")["items"]]

    balance = operator.json("balance", team, "--for", "gpu_type=H100")
    assert 12_500_000 == balance["used_micros"]
    before = operator.json("balance", team, "--at", "1h ago")
    assert 0 == before["owned"]["available_micros"]


def test_released_hold_refunds_everything(funded: Shell) -> None:
    id = funded.json("hold", "open", funded.account, "10")["id"]

    assert "100.00 cr" not in funded.says("balance", funded.account).splitlines()[2]
    assert 10_000_000 == funded.json("hold", "release", id)["refunded_micros"]
    assert 100_000_000 == funded.json("balance", funded.account)["spendable_micros"]


def test_grants_are_extended_revoked_and_voided(operator: Shell) -> None:
    def issued(*more: str) -> str:
        words = ("grant", "create", operator.account, "5", "--kind", "grant")
        return str(operator.json(*words, *more)["id"])

    first, second, third = issued("--expires-at", "2126-01-01"), issued(), issued()
    assert 3 == len(operator.json("grant", "list", operator.account)["items"])
    assert "2125-12-31T23:00:00.000000Z" == operator.json("grant", "show", first)["expires_at"], (
        "midnight in Berlin"
    )
    later = operator.json("grant", "extend", first, "--expires-at", "2127-01-01T00:00:00Z")
    assert "2127-01-01T00:00:00.000000Z" == later["expires_at"]
    assert operator.json("grant", "extend", first, "--never")["expires_at"] is None
    taken = operator.json("grant", "revoke", second)
    assert (5_000_000, False) == (taken["revoked_micros"], taken["voided"])
    assert operator.json("grant", "void", third)["voided"]
    operator.fails(2, "grant", "extend", first)
    operator.fails(2, "grant", "extend", first, "--never", "--expires-in", "1d")
    assert (
        "month"
        == operator.json(
            *("grant", "create", operator.account, "12", "--kind", "grant"),
            *("--every", "month", "--roll-over", "3"),
        )["every"]
    )


def test_budgets_are_set_changed_listed_and_dropped(funded: Shell) -> None:
    first = funded.json(
        *("budget", "set", "10", "--every", "month", "--account", funded.account),
        *("--threshold", "80%", "--threshold", "99.5%"),
    )
    assert ([800_000, 995_000], True) == (first["thresholds_ppm"], first["hard"])
    refused = funded.fails(4, "hold", "open", funded.account, "11")
    assert re.search(r"headroom +10\.00 cr\n", refused)
    assert re.search(r"period end +20\d\d-\d\d-01 \d\d:00:00 CE", refused)
    id = first["id"]
    changed = funded.run("budget", "set", "20", "--id", id, "-o", "json")
    assert {**first, "limit_micros": 20_000_000} == json.loads(changed.stdout), changed.output
    assert "changed: limit 10.00 cr → 20.00 cr\n" == changed.stderr
    changed = funded.run("budget", "set", "--id", id, "--soft", "--threshold", "50%")
    assert ["changed: hard yes → no", "changed: thresholds 80%, 99.5% → 50%"] == (
        changed.stderr.splitlines()
    )
    assert "20.00 cr" in funded.says("budget", "show", id)
    assert id == funded.json("budget", "delete", id)["id"]
    assert [] == funded.json("budget", "list")["items"]
    rolling = funded.json(
        *("budget", "set", "5", "--every", "rolling", "--window", "30d", "--soft"),
        *("--account", funded.account, "--each-user"),
    )
    assert (2_592_000, False, True) == (
        rolling["rolling_seconds"],
        rolling["hard"],
        rolling["each_user"],
    )
    assert "--window" in funded.fails(2, "budget", "set", "5", "--every", "rolling")


def test_change_of_a_budget_keeps_what_another_request_changes_meanwhile(
    funded: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`budget set --id` sends what it names, not what it has read before (B3)."""
    budget = ("budget", "set", "10", "--every", "month", "--account", funded.account)
    id = funded.json(*budget)["id"]
    get = Client.get

    def get_before_another_change(self: Client, path: str, *rest: Any) -> ApiResponse:
        """What a client reads; another client then sets the limit."""
        answer = get(self, path, *rest)
        body = {name: it for name, it in answer.body.items() if name in ("account_id", "every")}
        self.post("/v1/budgets", {**body, "id": id, "limit_micros": 30_000_000})
        return answer

    monkeypatch.setattr(Client, "get", get_before_another_change)
    changed = funded.json("budget", "set", "--id", id, "--soft")

    assert (30_000_000, False) == (changed["limit_micros"], changed["hard"])


def test_change_of_a_budget_names_what_changes(funded: Shell) -> None:
    assert "--threshold" in funded.fails(2, "budget", "set", "--id", RANDOM_ID)
    cannot = funded.fails(2, "budget", "set", "5", "--id", RANDOM_ID, "--account", RANDOM_ID)
    assert "cannot change" in cannot
    assert "budget" in funded.fails(3, "budget", "set", "5", "--id", RANDOM_ID)


def test_quotas_are_set_changed_and_dropped(operator: Shell) -> None:
    account = ("--account", operator.account)
    id = operator.json("quota", "set", *account, "--gpus", "16", "--gpu", "H100=8")["id"]

    assert {"H100": 8} == operator.json("quota", "list")["items"][0]["gpus_max_by_type"]
    operator.says("quota", "set", *account, "--id", id, "--jobs-running", "4")
    changed = operator.json("quota", "show", id)
    assert (None, 4) == (changed["gpus_max"], changed["jobs_running_max"])
    assert id == operator.json("quota", "delete", id)["id"]
    assert [] == operator.json("quota", "list")["items"]
    assert "H100=8" in operator.fails(2, "quota", "set", *account, "--gpu", "H100")


def eventually_told(operator: Shell, webhook: str) -> int:
    """The number of an event that a webhook was told of."""
    operator.says("user", "create")
    found: list[int] = []

    def told() -> bool:
        items = operator.json("webhook", "deliveries", webhook)["items"]
        found.extend(one["number"] for one in items)
        return bool(found)

    eventually(told, "the webhook is told of the user")
    return found[0]


def test_webhooks_are_created_listed_and_deleted(operator: Shell) -> None:
    words = ("webhook", "create", "http://127.0.0.1:9/in", "--event", "*", "-o", "json")
    made = operator.run(*words)
    webhook = json.loads(made.stdout)
    assert webhook["secret"].startswith("whsec_")
    assert "not shown again" in made.stderr
    id = webhook["id"]
    assert [id] == [one["id"] for one in operator.json("webhook", "list")["items"]]
    assert operator.json("webhook", "show", id)["secret"] is None
    assert operator.json("webhook", "rotate", id, "--overlap", "1h")["secret"] != webhook["secret"]
    number = eventually_told(operator, id)
    assert number == operator.json("webhook", "resend", id, str(number))["number"]
    operator.fails(3, "webhook", "resend", id, "999999")
    assert id == operator.json("webhook", "delete", id)["id"]


def test_keys_are_created_rotated_and_revoked(funded: Shell, running: Running) -> None:
    """A key may do what its scopes say, for its account; whoever made it sees it once."""
    words = ("key", "create", "ci", "--scope", "read", "--scope", "spend")
    made = funded.run(*words, "--account", funded.account, "--expires-in", "90d", "-o", "json")
    assert "not shown again" in made.stderr
    key = json.loads(made.stdout)
    tenant = Shell({"BURSAR_URL": running.process.url, "BURSAR_KEY": key["key"]})

    assert 100_000_000 == tenant.json("balance", funded.account)["spendable_micros"]
    assert 1 == len(tenant.json("account", "list")["items"]), "no --org is needed"
    assert "scope" in tenant.fails(7, "grant", "create", funded.account, "1", "--kind", "paid")
    assert all(
        "key" not in one or one["key"] is None for one in funded.json("key", "list")["items"]
    )
    new = funded.json("key", "rotate", key["id"], "--overlap", "0s")["key"]
    assert new != key["key"]
    tenant.environment["BURSAR_KEY"] = new
    tenant.says("balance", funded.account)
    funded.says("key", "revoke", key["id"])
    assert "unauthenticated" in tenant.fails(7, "balance", funded.account)


def test_users_spend_and_are_ranked(funded: Shell) -> None:
    user = funded.json("user", "create")["id"]
    hold = funded.json("hold", "open", funded.account, "5", "--user", user)
    assert user == hold["user_id"]
    assert user in funded.says("user", "list")
    funded.says("hold", "settle", hold["id"], "5")
    top = funded.run("top", "users", "--by", "used")
    assert 0 == top.exit_code
    assert top.stderr.startswith(("as of 20", "not counted yet"))
    funded.says("top", "accounts", "--by", "available", "--limit", "3")


def test_ranking_shows_its_age() -> None:
    assert "as of 2026-10-05 14:30:00 CEST" == format_age("2026-10-05T12:30:00.000000Z")
    assert "not counted yet" in format_age("1970-01-01T00:00:00.000000Z")


def test_statement_adds_up_and_usage_is_grouped(funded: Shell) -> None:
    team = funded.json("account", "create", "vision", "--parent", funded.account)["id"]
    funded.says("price", "set", "H100=3000")
    hold = funded.json("hold", "open", team, "--run", "1m", "--gpu-type", "H100")
    funded.says("hold", "settle", hold["id"], "--run-total", "3s")

    statement = funded.json("statement", funded.account, "--for", "today", "--all")
    assert 100_000_000 == sum(
        line["amount_micros"] for line in statement["items"] if line["from_compartment"] is None
    )
    assert funded.json("balance", funded.account)["owned"] == statement["closing"]
    paged = funded.run("statement", funded.account, "--for", "today", "--limit", "1")
    assert "more results: use --after" in paged.stderr
    assert 1 == paged.stdout.count("GrantIssued")
    whole = funded.says("statement", funded.account, "--for", "today", "--all")
    assert whole.splitlines()[-1].split() == paged.stdout.splitlines()[-1].split()
    assert "closing of the lines shown" in paged.stdout
    assert "of the lines shown" not in whole
    rows = list(
        csv.DictReader(
            io.StringIO(
                funded.says("usage", "--for", "today", "--by", "team,gpu_type", "-o", "csv")
            )
        )
    )
    assert [("vision", "H100", "2500000", "3000")] == [
        (one["account_name"], one["gpu_type"], one["charged_micros"], one["gpu_ms"]) for one in rows
    ]
    assert "2.50 cr" in funded.says("usage", "--for", "this month", "--by", "day").splitlines()[-1]
    assert "team" in funded.fails(2, "usage", "--by", "nonsense")
    assert "last month" in funded.fails(2, "usage", "--for", "someday")


def test_all_pages_of_a_statement_are_joined() -> None:
    pages = [
        {"opening": 1, "items": ["a", "b"], "closing": 2, "next": "x"},
        {"opening": 2, "items": ["c"], "closing": 3, "next": None},
    ]
    whole = {"opening": 1, "items": ["a", "b", "c"], "closing": 3, "next": None}

    assert whole == join_statement_pages(pages)


def test_account_tree_is_drawn() -> None:
    def account(name: str, id: str, parent: str | None) -> dict[str, Any]:
        return {"id": id, "name": name, "parent_id": parent}

    items = [
        account("acme", "1", None),
        account("vision", "4", "2"),
        account("research", "2", "1"),
        account("audio\x1b[31m", "3", "2"),
        account("zoo", "5", "1"),
    ]
    want = """\
acme              1
├─ research       2
│  ├─ audio?[31m  3
│  └─ vision      4
└─ zoo            5"""

    assert want.replace("?", "\N{REPLACEMENT CHARACTER}") == draw_tree({"items": items})


# How it is shown


def test_answer_is_printed_in_four_formats(funded: Shell) -> None:
    """JSON is the body as the service sent it; YAML says the same; CSV has its values."""
    grants = ("grant", "list", funded.account)
    body = funded.says(*grants, "-o", "json")
    told = json.loads(body)

    assert json.dumps(told, separators=(",", ":")) + "\n" == body
    assert told == yaml.safe_load(funded.says(*grants, "-o", "yaml"))
    [row] = csv.DictReader(io.StringIO(funded.says(*grants, "-o", "csv")))
    assert str(told["items"][0]["amount_micros"]) == row["amount_micros"]
    assert told["items"][0]["issued_at"] == row["issued_at"]
    assert ("", "100000000") == (row["expires_at"], row["owned.available_micros"])
    heading, line = funded.says(*grants).splitlines()
    assert ["ID", "KIND", "AMOUNT", "AVAILABLE", "HELD", "SPENT", "EXPIRES"] == heading.split()
    assert [told["items"][0]["id"], "paid", "100.00", "cr"] == line.split()[:4]
    assert line.endswith("never")


def test_empty_csv_has_a_heading(operator: Shell) -> None:
    assert operator.says("hold", "list", "-o", "csv").startswith("id,account_id,")
    assert "none\n" == operator.says("hold", "list")


def test_csv_contains_no_spreadsheet_formulas(operator: Shell) -> None:
    """A name that a spreadsheet would run as a formula is only text."""
    operator.says("account", "create", "=1+1", "--parent", operator.account)
    names = [
        one["name"]
        for one in csv.DictReader(io.StringIO(operator.says("account", "list", "-o", "csv")))
    ]

    assert ["acme", "'=1+1"] == names
    assert "=1+1" in operator.says("account", "list").split()


def test_times_are_local_for_people_and_utc_for_programs(operator: Shell) -> None:
    words = ("grant", "create", operator.account, "1", "--kind", "grant", "--expires-at")
    id = operator.json(*words, "2126-07-01T12:00:00Z")["id"]

    assert "2126-07-01 14:00:00 CEST" in operator.says("grant", "show", id)
    assert "2126-07-01T12:00:00.000000Z" in operator.says("grant", "show", id, "-o", "yaml")


def test_next_page_follows_the_last_item(operator: Shell) -> None:
    for name in "abc":
        operator.says("account", "create", name, "--parent", operator.account)
    first = operator.run("account", "list", "--limit", "3")
    after = re.search(r"more results: use --after (\S+), or --all", first.stderr)

    assert 4 == first.stdout.count("\n")
    assert after is not None
    assert 2 == operator.says("account", "list", "--after", after[1]).count("\n")
    whole = operator.json("account", "list", "--all")
    assert (4, None) == (len(whole["items"]), whole["next"])
    assert operator.json("account", "list") == whole


def ran(shell: Shell, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The script itself, in a process of its own."""
    environment = {**os.environ, **shell.environment, **more}
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def on_a_terminal(shell: Shell, *words: str, **more: str) -> str:
    """What the script says to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **shell.environment, "TERM": "xterm", **more}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other end is gone
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode in (0, 3)
    return said.decode().replace("\r\n", "\n")


def test_output_without_a_terminal_has_no_colour(funded: Shell) -> None:
    """No colours in files and pipes; none on a terminal either, if NO_COLOR is set."""
    words = ("grant", "list", funded.account)
    piped = ran(funded, *words)

    assert "\x1b" not in piped.stdout + piped.stderr
    assert "\x1b[1mID" in on_a_terminal(funded, *words)
    assert piped.stdout == on_a_terminal(funded, *words, NO_COLOR="1")
    assert "\x1b[1;31mbursar:" in on_a_terminal(funded, "hold", "show", RANDOM_ID)
    assert "\x1b" not in ran(funded, "hold", "show", RANDOM_ID).stderr


def test_control_characters_are_not_sent_to_a_terminal() -> None:
    assert "a\N{REPLACEMENT CHARACTER}[2Jb" == output.format_value("name", "a\x1b[2Jb")


def test_columns_line_up_with_wide_characters() -> None:
    rows = [{"name": "研究", "amount_micros": 1}, {"name": "é", "amount_micros": 1_500_000}]
    want = "NAME       AMOUNT\n研究  0.000001 cr\né         1.50 cr"

    assert want == output.render_table(("name", "amount_micros"), rows)


# What is typed


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (["regions=eu,us"], {"regions": ["eu", "us"]}),
        (["max_share=12.5%"], {"max_share_ppm": 125_000}),
        (["max_share_ppm=7"], {"max_share_ppm": 7}),
        (["refundable=no"], {"refundable": False}),
        (
            ['{"job_kinds": ["train"]}', "refundable=yes"],
            {"job_kinds": ["train"], "refundable": True},
        ),
    ],
)
def test_grant_policies_are_parsed(given: list[str], want: Mapping[str, Any]) -> None:
    assert want == parse_grant_policy(given)


@pytest.mark.parametrize(
    "words",
    [
        ("grant", "create", RANDOM_ID, "12,5", "--kind", "paid"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "gold"),
        ("grant", "create", RANDOM_ID, "1"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "paid", "--policy", "color=red"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "paid", "--policy", "regions"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "paid", "--expires-in", "soon"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "paid", "--expires-at", "soon"),
        ("grant", "create", RANDOM_ID, "1", "--kind", "paid", "--roll-over", "1"),
        ("hold", "open", "no-id", "1"),
        ("hold", "open", RANDOM_ID),
        ("hold", "open", RANDOM_ID, "1", "--run", "1h"),
        ("hold", "open", RANDOM_ID, "--run", "1h"),
        ("budget", "set", "5", "--every", "day"),
        ("budget", "set", "5", "--every", "rolling", "--account", RANDOM_ID),
        ("quota", "set", "--gpus", "3"),
        ("grant", "extend", RANDOM_ID),
        ("hold", "charge", RANDOM_ID),
        ("hold", "extend", RANDOM_ID),
        ("hold", "extend", RANDOM_ID, "--ttl", "1h", "--until", "today"),
        ("price", "set"),
        ("price", "set", "H100"),
        ("price", "set", "--file", "no-such-file.json"),
        ("balance", RANDOM_ID, "--at", "now", "--for", "gpu_type=H100"),
        ("account", "list", "-o", "xml"),
        ("account", "lst"),
    ],
    ids=" ".join,
)
def test_contradicting_options_are_refused_before_any_call(words: tuple[str, ...]) -> None:
    """Usage is refused before anybody is called, with status 2."""
    with scripted() as server:
        said = Shell({"BURSAR_URL": server.url, "BURSAR_KEY": "bsr_x"}).fails(2, *words)

    assert "Error: " in said or "bursar: " in said
    assert [] == server.asked


def test_amounts_are_sent_in_micro_credits() -> None:
    with scripted(Reply(200, {"hold_id": "h"})) as server:
        shell = Shell({"BURSAR_URL": server.url, "BURSAR_KEY": "bsr_x"})
        shell.says("hold", "refund", RANDOM_ID, "0.1")

    assert b'{"amount_micros":100000}' == server.asked[0].body


def test_rates_are_read_from_a_file(operator: Shell, tmp_path: Path) -> None:
    rates = [
        {"gpu_type": "H100", "micros_per_gpu_hour": 3_000_000, "region": "eu"},
        {"gpu_type": "H100", "micros_per_gpu_hour": 2_000_000},
    ]
    file = tmp_path / "rates.json"
    file.write_text(json.dumps({"rates": rates}))
    operator.says("price", "set", "--file", str(file))
    lines = list(csv.DictReader(io.StringIO(operator.says("price", "list", "-o", "csv"))))

    assert {("3000000", "eu"), ("2000000", "")} == {
        (one["micros_per_gpu_hour"], one["region"]) for one in lines if one["book"] == "org"
    }


def test_prices_that_are_not_named_stay(operator: Shell) -> None:
    """`price set` changes what it names, and shows what changed; removing takes --replace."""

    def set_prices(*words: str) -> tuple[list[str], dict[str, int]]:
        result = operator.run("price", "set", *words, "-o", "json")
        assert 0 == result.exit_code, result.output
        version = json.loads(result.stdout)
        rates = {rate["gpu_type"]: rate["micros_per_gpu_hour"] for rate in version["rates"]}
        return result.stderr.splitlines(), rates

    set_prices("H100=2.5", "A100=1", "--cache-hit-ppm", "1000")
    assert (
        ["changed: A100 1.00 cr → 1.20 cr", "added: L4 0.50 cr"],
        {"H100": 2_500_000, "A100": 1_200_000, "L4": 500_000},
    ) == set_prices("A100=1.2", "L4=0.5")
    assert 1_000 == operator.json("price", "list")["items"][-1]["cache_hit_ppm"]
    assert (
        ["removed: H100 2.50 cr", "removed: A100 1.20 cr"],
        {"L4": 500_000},
    ) == set_prices("L4=0.5", "--replace")


def test_operator_without_an_org_sets_prices_of_the_deployment(operator: Shell) -> None:
    """And is told so; a list shows in which book a price is (B1)."""
    del operator.environment["BURSAR_ORG"]
    said = operator.run("price", "set", "L4=0.5")
    assert 0 == said.exit_code, said.output
    assert "the deployment's prices" in said.stderr
    [line] = csv.DictReader(io.StringIO(operator.says("price", "list", "-o", "csv")))
    assert ("L4", "500000", "deployment") == (
        line["gpu_type"],
        line["micros_per_gpu_hour"],
        line["book"],
    )

    of_the_org = operator.run("price", "set", "L4=0.4", "--org", operator.org)
    assert (0, "") == (of_the_org.exit_code, of_the_org.stderr)
    listed = operator.says("price", "list", "-o", "csv", "--org", operator.org)
    books = [line["book"] for line in csv.DictReader(io.StringIO(listed))]
    assert ["deployment", "org"] == books


# What is said when it fails


def test_refusal_shows_figures_remedy_code_and_request(funded: Shell) -> None:
    said = funded.fails(4, "hold", "open", funded.account, "250.5")

    assert said.startswith("bursar: Not enough credits\n")
    found = dict(line.split(maxsplit=1) for line in said.splitlines()[1:])
    assert ("250.50 cr", "100.00 cr", "150.50 cr") == (
        found["requested"],
        found["spendable"],
        found["missing"],
    )
    assert "issue credits" in found["remedy"]
    assert "insufficient_credits" == found["code"]
    assert re.fullmatch("[0-9a-f]{16}", found["request"])
    assert re.fullmatch(r"cli-\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}", found["key"])


def test_dry_run_exits_as_the_hold_would_and_holds_nothing(funded: Shell) -> None:
    refused = funded.run("hold", "open", funded.account, "250.5", "--dry-run")
    assert 4 == refused.exit_code
    assert "insufficient_credits" in refused.stdout
    assert "accepted" in funded.says("hold", "open", funded.account, "10", "--dry-run")
    assert [] == funded.json("hold", "list")["items"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, ("hold", "show", RANDOM_ID)),
        (3, ("grant", "list", RANDOM_ID)),
        (3, ("key", "revoke", RANDOM_ID)),
        (3, ("org", "show", RANDOM_ID)),
    ],
)
def test_unknown_id_is_reported(operator: Shell, code: int, words: tuple[str, ...]) -> None:
    said = operator.fails(code, *words)

    assert "remedy" in said
    assert "request" in said


def test_conflict_is_reported(operator: Shell) -> None:
    words = ("grant", "create", operator.account, "1", "--kind", "paid", "--ref", "inv-7")
    grant = operator.json(*words)["id"]

    assert grant in operator.fails(5, *words)


def test_field_is_named_as_on_the_command_line(operator: Shell) -> None:
    said = operator.fails(2, "org", "create", "")
    assert said.startswith("bursar: name: ")
    assert "--help" in said

    said = operator.fails(2, "key", "create", "k", "--scope", "read")
    assert said.startswith("bursar: account: required")


def test_quote_lists_its_problems_in_json(funded: Shell) -> None:
    refused = funded.run("quote", funded.account, "250.5", "-o", "csv")

    assert 4 == refused.exit_code
    [line] = csv.DictReader(io.StringIO(refused.stdout))
    assert ["insufficient_credits"] == [one["code"] for one in json.loads(line["problems"])]


def test_operator_is_asked_to_name_the_org(operator: Shell) -> None:
    operator.environment.pop("BURSAR_ORG")

    assert "--org" in operator.fails(2, "user", "list")
    assert "" != operator.says("user", "list", "--org", operator.org)


def test_a_wrong_key_is_not_allowed(operator: Shell) -> None:
    operator.environment["BURSAR_KEY"] = "bsr_wrong"

    assert "bursar login" in operator.fails(7, "org", "list")


def test_unreachable_service_is_reported_with_the_key_for_a_retry() -> None:
    shell = Shell({"BURSAR_URL": "http://127.0.0.1:1", "BURSAR_KEY": "bsr_x"})
    said = shell.fails(6, "user", "create", "--idempotency-key", "mine")

    assert "http://127.0.0.1:1 does not answer" in said
    assert "bursar up" in said
    assert "--idempotency-key mine" in said


def test_every_problem_has_an_exit_status() -> None:
    """Of those that are documented; and none is mistaken for success or a failed check."""
    codes = {code: exit_code(code, kind.status) for code, kind in PROBLEMS.items()}

    assert {2, 3, 4, 5, 6, 7} >= set(codes.values())
    assert (
        4 == codes["insufficient_credits"] == codes["budget_exceeded"] == codes["debt_outstanding"]
    )
    assert 3 == codes["hold_unknown"]
    assert 5 == codes["key_reused"] == codes["hold_closed"] == codes["changed_since"]
    assert 6 == codes["busy"] == codes["rate_limited"] == codes["internal_error"]
    assert 7 == codes["forbidden"] == codes["unauthenticated"]
    assert 2 == codes["invalid_request"]


# Trying again


def test_the_same_key_has_one_effect(operator: Shell) -> None:
    words = ("grant", "create", operator.account, "1", "--kind", "grant")
    first = operator.says(*words, "--idempotency-key", "k1", "-o", "json")
    second = operator.run(*words, "--idempotency-key", "k1", "-o", "json")

    assert first == second.stdout
    assert "original response" in second.stderr
    assert 1 == len(operator.json("grant", "list", operator.account)["items"])
    assert "key_reused" in operator.fails(
        *(5, "grant", "create", operator.account, "2", "--kind", "grant", "--idempotency-key", "k1")
    )


def test_printed_key_repeats_the_same_request() -> None:
    """With relative times too: the key says since when they count."""
    words = ("grant", "create", RANDOM_ID, "1", "--kind", "grant", "--expires-in", "90d")
    broken = Reply(500, problem("internal_error", 500))
    with scripted(broken, broken, broken) as server:
        shell = Shell({"BURSAR_URL": server.url, "BURSAR_KEY": "bsr_x"})
        said = shell.fails(6, *words)
        again = re.search(r"--idempotency-key (\S+)", said)
        assert again is not None
        shell.fails(6, *words, "--idempotency-key", again[1])
        shell.fails(6, *words)

    first, second, third = server.asked
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert third.headers["idempotency-key"] != first.headers["idempotency-key"]
    assert third.body != first.body


# Where the service is


def test_login_saves_a_key_readable_by_the_user_only(running: Running, tmp_path: Path) -> None:
    """Whatever the file was before, and however lax the umask is."""
    shell = Shell({})
    path = tmp_path / "config" / "bursar" / "profile.json"
    path.parent.mkdir(parents=True)
    path.write_text("old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        told = shell.run("login", running.process.url, told=running.process.admin_key + "\n")
    finally:
        os.umask(before)

    assert 0 == told.exit_code, told.output
    assert running.process.admin_key not in told.output
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path] == list(path.parent.iterdir()), "nothing is left beside it"
    assert "items" in shell.json("org", "list")


def test_login_creates_a_folder_for_the_user_only(running: Running, tmp_path: Path) -> None:
    told = Shell({}).run("login", running.process.url, told=running.process.admin_key)

    assert 0 == told.exit_code, told.output
    assert 0o700 == stat.S_IMODE((tmp_path / "config" / "bursar").stat().st_mode)


def test_key_of_an_org_can_log_in(funded: Shell, running: Running) -> None:
    words = ("key", "create", "ci", "--scope", "read", "--account", funded.account)
    key = funded.json(*words)["key"]
    told = Shell({}).run("login", running.process.url, told=key)

    assert 0 == told.exit_code, told.output
    assert "a key of an org" in told.stdout
    assert 100_000_000 == Shell({}).json("balance", funded.account)["spendable_micros"]


@pytest.mark.parametrize(
    ("url", "key", "code", "words"),
    [
        ("ftp://example.com", "bsr_x", 2, "is not a URL"),
        ("http://example.com", "bsr_x", 2, "--plain-http"),
        ("https://ann:pass@example.com", "bsr_x", 2, "a path only"),
        ("http://127.0.0.1:1", "hello", 2, "begin with bsr_"),
        ("http://127.0.0.1:1", "bsr_x", 6, "does not answer"),
        (None, "bsr_x", 2, "no service runs on this machine"),
    ],
)
def test_failed_login_saves_nothing(
    tmp_path: Path, url: str | None, key: str, code: int, words: str
) -> None:
    told = Shell({}).run("login", *(() if url is None else (url,)), told=key)

    assert code == told.exit_code, told.output
    assert words in told.stderr
    assert not (tmp_path / "config").exists()


def test_wrong_key_is_not_saved(running: Running, tmp_path: Path) -> None:
    told = Shell({}).run("login", running.process.url, told="bsr_wrong")

    assert 7 == told.exit_code, told.output
    assert not (tmp_path / "config").exists()


def test_profile_readable_by_others_is_not_used(running: Running, tmp_path: Path) -> None:
    shell = Shell({})
    shell.run("login", running.process.url, told=running.process.admin_key)
    path = tmp_path / "config" / "bursar" / "profile.json"
    path.chmod(0o640)

    assert "chmod 600" in shell.fails(2, "org", "list")
    path.chmod(0o600)
    path.write_text("{")
    assert "bursar login" in shell.fails(2, "org", "list")


def test_key_is_sent_to_its_own_service_only(running: Running) -> None:
    """A profile's key does not go wherever BURSAR_URL points."""
    shell = Shell({})
    shell.run("login", running.process.url, told=running.process.admin_key)
    with scripted() as server:
        shell.environment["BURSAR_URL"] = server.url
        assert "no key is configured for" in shell.fails(2, "org", "list")
        assert [] == server.asked
    shell.environment["BURSAR_URL"] = running.process.url + "/"
    shell.says("org", "list")


def test_local_service_is_found_without_configuration(running: Running) -> None:
    """`bursar up` leaves its URL beside the operators' first key."""
    shell = Shell({"BURSAR_STATE": str(running.state)})

    assert "items" in shell.json("org", "list")
    told = shell.run("login", told=running.process.admin_key)
    assert 0 == told.exit_code, told.output
    assert running.process.url in told.stdout


def test_missing_configuration_is_reported_with_a_remedy() -> None:
    said = Shell({}).fails(2, "org", "list")

    assert "no service is configured" in said
    assert "bursar login URL" in said
    assert "no key is configured for" in Shell({"BURSAR_URL": "http://127.0.0.1:1"}).fails(
        2, "org", "list"
    )


def test_stopped_service_is_not_found(tmp_path: Path) -> None:
    with new_state() as state:
        process = Process("up", state, tmp_path)
        assert process.url == json.loads((state / "api.json").read_text())["url"]
        process.stop()

        assert not (state / "api.json").exists()
        assert "no service" in Shell({"BURSAR_STATE": str(state)}).fails(2, "org", "list")


# Help and completion


def imported(*words: str) -> set[str]:
    """The packages that a command imports."""
    code = (
        "import sys\nsys.argv = ['bursar', *sys.argv[1:]]\nfrom bursar.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "packages = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*packages, len(sys.modules), file=sys.stderr)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert "Usage: bursar" in told.stdout
    return set(told.stderr.split())


@pytest.mark.parametrize("words", [("--help",), ("hold", "--help"), ("hold", "open", "--help")])
def test_help_imports_no_http_client(words: tuple[str, ...]) -> None:
    """What makes help slow is what it imports: nothing but the tree of commands itself."""
    slow = {"httpx2", "rich", "yaml", "pydantic", "fastapi", "psycopg", "uvicorn", "email", "ssl"}
    found = imported(*words)

    assert set() == slow & found
    assert int(next(name for name in found if name.isdecimal())) < 250


def test_every_command_is_in_the_help_and_has_its_own() -> None:
    listed = Shell({}).says("--help")
    for name, help in COMMANDS.items():
        assert f"  {name} " in listed
        assert help.split(".")[0][:40] in listed
        assert "Usage: " in Shell({}).says(name, "--help")


@pytest.mark.parametrize(
    ("shell", "environment", "want"),
    [
        ("bash", {"COMP_WORDS": "bursar ho", "COMP_CWORD": "1"}, {"hold"}),
        ("bash", {"COMP_WORDS": "bursar hold re", "COMP_CWORD": "2"}, {"release", "refund"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "bursar hold re"}, {"release", "refund"}),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "bursar hold re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            {"release", "refund"},
        ),
    ],
)
def test_shells_complete_commands(shell: str, environment: dict[str, str], want: set[str]) -> None:
    script = ran(Shell({}), "completion", shell).stdout
    assert "_BURSAR_COMPLETE" in script
    told = ran(Shell({}), **environment, _BURSAR_COMPLETE=f"complete_{shell}")

    assert want == set(re.findall(r"(?m)^(?:_arguments .*\(\()?\"?([a-z]+)", told.stdout))


# What is written about it


def test_cli_page_has_every_command_and_exit_status() -> None:
    """docs/cli.md leaves no command and no exit status out."""
    page = PAGE.read_text()

    assert [] == [name for name in COMMANDS if f"`bursar {name}" not in page]
    told = {int(number) for number in re.findall(r"(?m)^\| (\d) \|", page)}
    assert set(range(8)) == told
