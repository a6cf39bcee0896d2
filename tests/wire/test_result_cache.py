"""What decides the result of a job, as a digest (S13)."""

from typing import Any

import pytest

from bursar.wire.jobs import JobRequest
from bursar.wire.result_cache import DECIDING_FIELDS, digest_result_inputs

ASK: dict[str, Any] = {
    "account_id": "01890000-0000-7000-8000-000000000001",
    "command": ["run", "x"],
    "gpus": {"types": ["H100", "A100"]},
    "max_run_seconds": 60,
    "cache": {"max_age_seconds": 5},
}


def digest(**more: Any) -> str | None:
    return JobRequest.model_validate({**ASK, **more}).result_digest


def test_every_field_is_listed_as_part_of_the_result_or_not() -> None:
    """A new field of a request must be put into one of the two lists."""
    indifferent = {
        *("account_id", "user_id", "max_run_seconds", "likely_run_seconds", "tier"),
        *("priority_class", "preemptible", "requeues_max", "checkpoint", "job_kind", "labels"),
        *("max_cost_micros", "hold", "rolling_seconds", "cache", "array", "id", "dry_run"),
    }
    assert set() == set(JobRequest.model_fields) - set(DECIDING_FIELDS) - indifferent
    assert set() == indifferent & set(DECIDING_FIELDS)


def test_order_counts_in_commands_and_not_in_sets() -> None:
    assert digest() == digest(gpus={"types": ["A100", "H100"], "count": 1})
    assert digest(regions=["a", "b"]) == digest(regions=["b", "a", "a"])
    assert digest() != digest(command=["x", "run"])
    assert digest(command=["run x"]) != digest(command=["run", "x"])


def test_fields_of_a_digest_cannot_be_confused() -> None:
    """A text in one field never has the digest of the same text in another field."""
    keyed = digest(cache={"max_age_seconds": 9, "key": "k"})
    assert keyed not in (None, digest())
    assert keyed == digest(cache={"max_age_seconds": 0, "key": "k"})
    assert digest_result_inputs({"command": ["a"]}, "b") != digest_result_inputs(
        {"command": ["a", "b"]}, None
    )


def test_job_without_cache_has_no_digest() -> None:
    """Its stored form has no field `cache`, as before the field existed."""
    ask = JobRequest.model_validate({**ASK, "cache": None})
    assert ask.result_digest is None
    assert "cache" not in ask.stored_form


def test_jobs_of_an_array_have_no_digest() -> None:
    with pytest.raises(ValueError, match="one by one"):
        digest(array={"count": 3})
