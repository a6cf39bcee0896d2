"""Parts of SQL statements, built from our own names; values are parameters."""

from collections.abc import Mapping


def array_parameters(columns: Mapping[str, str]) -> str:
    """One array parameter per column (name → type); JSON is passed as text."""
    return ", ".join(f"%s::{'text' if kind == 'json' else kind}[]" for kind in columns.values())


def select_list(columns: Mapping[str, str], of: str = "t") -> str:
    """Columns to select; JSON as the text that was written."""
    return ", ".join(
        f"{of}.{name}::text" if kind == "json" else f"{of}.{name}" for name, kind in columns.items()
    )


def lookup(keys: Mapping[str, str], table: str, where: str = "") -> str:
    """SQL for the rows `t` of a table with the keys `k` that are parameters, each looked up by key.

    With a plain join, the planner could read the whole table instead, while it has few rows or is
    thought to; `offset 0` prevents this.
    """
    matches = " and ".join(f"t.{name} = k.{name}" for name in keys)
    return f"""
        unnest({array_parameters(keys)}) as k({", ".join(keys)})
          cross join lateral (
                select * from {table} t where {matches} {where} offset 0) as t
    """


def match_keys(first: str, *others: str) -> str:
    """The condition that rows `t` of a table have the keys of the rows `u` that are parameters.

    An equality of the first column would let the planner run a merge join that reads the whole
    table, while it has few rows or is thought to. Written this way, the index can be used only to
    look up each row. The other columns are compared plainly: PostgreSQL 16 and older may drop such
    conditions on them.
    """
    conditions = [
        f"t.{first} = any(array[u.{first}])",
        *(f"t.{name} = u.{name}" for name in others),
    ]
    return " and ".join(conditions)


def accounts_below(org: str, account: str) -> str:
    """An account and all below it: the body of a recursive query that must be named `below`."""
    return f"""
            select a.org_id, a.account_id from accounts a
             where a.org_id = {org} and a.account_id = {account}
             union all
            select a.org_id, a.account_id from below b
             cross join lateral (
                   select * from accounts t
                    where t.org_id = b.org_id and t.parent = b.account_id offset 0) a"""
