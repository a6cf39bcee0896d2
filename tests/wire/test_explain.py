"""References in explanations: accounts by name, jobs by id, other orgs anonymous (S14, N4)."""

from bursar.wire.explain import AccountRef, anonymize, find_accounts, insert_names, with_org_names

ORG, ROOT, TEAM, USER, JOB = (f"{n:08}-0000-7000-8000-000000000000" for n in range(5))
HOLDER = f"{ORG}/{JOB} (paid.{ORG}.{ROOT}.{TEAM}.user {USER}): 4 GPUs"
NAMES = {ROOT: "Acme", TEAM: "vision"}


def test_mentioned_accounts_are_found_with_their_org() -> None:
    assert {AccountRef(ORG, ROOT, True), AccountRef(ORG, TEAM, False)} == find_accounts(
        [HOLDER, "4 GPUs", JOB]
    )


def test_an_org_has_the_name_of_its_root_account_and_it_appears_once() -> None:
    names = with_org_names(NAMES, find_accounts([HOLDER]))

    assert {**NAMES, ORG: "Acme"} == names
    assert f"{JOB} (paid.Acme.vision.user {USER}): 4 GPUs" == insert_names(HOLDER, names)
    assert "paid.Acme has 3 GPUs" == insert_names(f"paid.{ORG} has 3 GPUs", names)


def test_accounts_without_a_name_keep_their_id() -> None:
    assert f"paid.{ORG}.{ROOT}.vision" == insert_names(
        f"paid.{ORG}.{ROOT}.{TEAM}", {TEAM: "vision"}
    )
    assert f"{JOB} waits" == insert_names(f"{JOB} waits", {})


def test_a_tenant_sees_no_ids_of_other_orgs() -> None:
    assert "a job of another org (paid.another org): 4 GPUs" == anonymize(HOLDER, JOB)
    assert HOLDER.removeprefix(f"{ORG}/") == anonymize(HOLDER, ORG)
