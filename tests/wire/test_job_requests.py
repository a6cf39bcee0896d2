"""The digest of a job request, by which a retry is recognised."""

from typing import Any

import pytest
from pydantic import Field

from bursar.core.validation import check_text
from bursar.wire.jobs import (
    DIGEST_FIELDS_MAX,
    FIELD_DIGITS,
    GpuRequest,
    JobRequest,
    _tag,
    first_difference,
)

ASK: dict[str, Any] = {
    "account_id": "01890000-0000-7000-8000-000000000001",
    "command": ["run", "x"],
    "gpus": {"types": ["H100", "A100"]},
    "max_run_seconds": 60,
}
RICH: dict[str, Any] = {
    **ASK,
    "user_id": "01890000-0000-7000-8000-000000000002",
    "gpus": {"types": ["H100"], "count": 16, "topology": {"nodes": 2, "within": "rack"}},
    "likely_run_seconds": 30,
    "tier": "paid",
    "priority_class": 3,
    "preemptible": False,
    "requeues_max": 0,
    "checkpoint": {"interval_seconds": 600},
    "memory_mib": 1,
    "cpu_milli": 2,
    "regions": ["eu", "us"],
    "node_labels": ["fast"],
    "job_kind": "train",
    "labels": {"b": "ü", "a": "\n"},
    "env": {"B": "2", "A": "1"},
    "max_cost_micros": 10,
    "hold": "rolling",
    "rolling_seconds": 60,
    "cache": {"max_age_seconds": 5, "key": "k"},
    "pool": "main",
}
ARRAY: dict[str, Any] = {**ASK, "array": {"count": 3, "at_once": 2}}


def digest(ask: dict[str, Any], **more: Any) -> str:
    return JobRequest.model_validate({**ask, **more}).digest


class LaterGpus(GpuRequest):
    """The GPUs of a later version's request."""

    generation: int | None = None


class LaterRequest(JobRequest):
    """A request of a later version, which has more fields."""

    gpus: LaterGpus
    shell: str | None = None
    retries: int = 4
    mounts: list[str] = Field(default_factory=list)


@pytest.mark.parametrize("ask", [ASK, RICH, ARRAY])
def test_fields_that_a_later_version_adds_do_not_change_digests(ask: dict[str, Any]) -> None:
    """A retry after an upgrade is a retry, if it does not set the new fields (L7)."""
    later = LaterRequest.model_validate(ask)

    assert digest(ask) == later.digest
    for change in ({"shell": "sh"}, {"retries": 5}, {"mounts": ["/data"]}):
        assert digest(ask) != LaterRequest.model_validate({**ask, **change}).digest
    newer = {**ask, "gpus": {**ask["gpus"], "generation": 9}}
    assert digest(ask) != LaterRequest.model_validate(newer).digest


def test_default_that_is_named_does_not_change_a_digest() -> None:
    """A request that is sent again may name the defaults."""
    defaults = {"requeues_max": 10, "env": {}, "hold": "full", "cache": None, "preemptible": True}
    gpus = {**ASK["gpus"], "count": 1, "topology": None}

    assert digest(ASK) == digest(ASK, **defaults, gpus=gpus, dry_run=False)
    assert digest(ASK) == digest(ASK, id="01890000-0000-7000-8000-000000000009")


FROZEN = {
    "least": (
        ASK,
        "e48cd7b343283c01a2edd6fe14b320d6eb98900023036160a4639e2252eeb409:fba14aad48725c37b48e9326",
    ),
    "all": (
        RICH,
        "faa1725ab32f8ed11ffe1466289b1a9019ef63159117acc0c558bc5391cc3838:"
        "fba14abe70cb7be597ad4872997e0d2f99495c36a1d07320a98cb7211637"
        "5a9763ca65e18e9326352fb77b4e61986166cde830b42e9b9f3f2ca88f21"
        "6c832678aadf395289",
    ),
    "array": (
        ARRAY,
        "f8709e91b33e25acdc599a12cd2c591e9f21f2b105a516d0f4333281de62b16e:"
        "fba14aeb7bf8ad48725c37b48e9326",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_digests_stay_as_they_are(name: str) -> None:
    """Stored digests are compared with those of retries, also after an upgrade (L7)."""
    ask, frozen = FROZEN[name]

    assert frozen == digest(ask)


@pytest.mark.parametrize("name", sorted(RICH.keys() - ASK.keys()))
def test_field_that_differs_is_named(name: str) -> None:
    without = {key: value for key, value in RICH.items() if key != name}

    assert name == first_difference(digest(RICH), digest(without))
    assert name == first_difference(digest(without), digest(RICH))


def test_first_field_that_differs_is_the_first_in_the_order_of_fields() -> None:
    """Fields that this version does not know have no name."""
    assert first_difference(digest(ASK), digest(ASK)) is None
    assert "command" == first_difference(digest(ASK), digest(ASK, command=["y"], env={"A": "1"}))
    later = LaterRequest.model_validate({**ASK, "shell": "sh", "mounts": ["/data"]})
    assert first_difference(digest(ASK), later.digest) is None
    assert "env" == first_difference(digest(ASK, env={"A": "1"}), later.digest)


def test_each_field_has_a_tag_of_its_own_and_all_fit_into_a_text() -> None:
    assert len(JobRequest.model_fields) == len({_tag(name) for name in JobRequest.model_fields})
    check_text("digest", digest(RICH))
    check_text("digest", "x" * (65 + DIGEST_FIELDS_MAX * FIELD_DIGITS))
