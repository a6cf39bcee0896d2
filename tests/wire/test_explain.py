"""Sentences about jobs: accounts by their names, jobs by their ids, others' veiled (S14, N4)."""

from bursar.wire.explain import AccountRef, named, places, veiled, with_orgs

ORG, ROOT, TEAM, USER, JOB = (f"{n:08}-0000-7000-8000-000000000000" for n in range(5))
WHOSE = f"{ORG}/{JOB} of paid.{ORG}.{ROOT}.{TEAM}.user {USER}: 4 GPUs"
NAMES = {ROOT: "Acme", TEAM: "vision"}


def test_accounts_that_are_spoken_of_are_found_with_their_org() -> None:
    assert {AccountRef(ORG, ROOT, True), AccountRef(ORG, TEAM, False)} == places(
        [WHOSE, "4 GPUs", JOB]
    )


def test_an_org_is_called_as_its_root_account_is_and_once() -> None:
    names = with_orgs(NAMES, places([WHOSE]))

    assert {**NAMES, ORG: "Acme"} == names
    assert f"{JOB} of paid.Acme.vision.user {USER}: 4 GPUs" == named(WHOSE, names)
    assert "paid.Acme has 3 GPUs" == named(f"paid.{ORG} has 3 GPUs", names)


def test_what_has_no_name_keeps_its_id() -> None:
    assert f"paid.{ORG}.{ROOT}.vision" == named(f"paid.{ORG}.{ROOT}.{TEAM}", {TEAM: "vision"})
    assert f"{JOB} waits" == named(f"{JOB} waits", {})


def test_who_is_told_of_others_learns_no_names() -> None:
    assert "another org's job of paid.another org: 4 GPUs" == veiled(WHOSE, JOB)
    assert WHOSE.removeprefix(f"{ORG}/") == veiled(WHOSE, ORG)
