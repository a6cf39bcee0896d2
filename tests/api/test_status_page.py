"""The dashboard at `/`: served without a key, because it contains no data (K22, K28, K29)."""

import re
from base64 import b64encode
from hashlib import sha256

import httpx2
import pytest

from tests.support.api_service import Caller, Process


@pytest.fixture(scope="module")
def answer(service: Process) -> httpx2.Response:
    """The page, requested without a key."""
    return httpx2.get(service.url + "/")


def part(answer: httpx2.Response, name: str) -> str:
    found = re.findall(rf"<{name}>(.*?)</{name}>", answer.text, re.DOTALL)
    assert 1 == len(found)
    return str(found[0])


def test_dashboard_is_served_without_a_key(answer: httpx2.Response) -> None:
    assert 200 == answer.status_code
    assert "text/html; charset=utf-8" == answer.headers["content-type"]
    assert answer.text.startswith("<!doctype html>")
    assert "set-cookie" not in answer.headers


def test_dashboard_policy_allows_only_its_own_script_and_style(answer: httpx2.Response) -> None:
    """One policy, which names script and style by what they are, and lets it talk to us alone."""
    [policy] = answer.headers.get_list("content-security-policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for name, rule in (("script", "script-src"), ("style", "style-src")):
        digest = b64encode(sha256(part(answer, name).encode()).digest()).decode()
        assert f"'sha256-{digest}'" == rules[rule]

    assert "'none'" == rules["default-src"]
    assert "'self'" == rules["connect-src"]
    assert "'none'" == rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"]
    assert "DENY" == answer.headers["x-frame-options"]
    assert "no-referrer" == answer.headers["referrer-policy"]


def test_dashboard_loads_nothing_and_inserts_no_html(
    answer: httpx2.Response,
) -> None:
    """What tenants have chosen (names, labels, commands) is text, wherever it is shown."""
    assert not re.findall(r"https?://|//cdn|@import|url\(|src=", answer.text)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "on="):
        assert way not in part(answer, "script")
    assert not re.findall(r"\sstyle=|\son[a-z]+=", answer.text.replace(part(answer, "script"), ""))


def test_dashboard_calls_only_described_operations(
    answer: httpx2.Response, operator: Caller
) -> None:
    """Each address that it asks is described."""
    described = {
        re.sub(r"\{[^}]*\}", "{}", path.removeprefix("/v1"))
        for path, methods in operator.get("/openapi.json").json()["paths"].items()
        if "get" in methods
    }
    script = re.sub(r"\s+", " ", part(answer, "script"))
    asked = set()
    for call in re.findall(r"(?:ask|maybe)\((\"/[^)]*)\)", script):
        path = re.sub(r'" \+ [\w.]+ \+ "', "{}", call).strip().strip('"')
        asked.add(re.sub(r'[?"].*', "", path))

    assert {"/pools", "/orgs", "/jobs", "/pools/{}/nodes", "/jobs/{}/why"} <= asked
    assert set() == asked - described


def test_other_responses_keep_the_strictest_policy(service: Process) -> None:
    for path in ("/healthz", "/v1/pools", "/index.html", "/status/page.js"):
        told = httpx2.get(service.url + path)
        assert ["default-src 'none'; frame-ancestors 'none'"] == told.headers.get_list(
            "content-security-policy"
        )
