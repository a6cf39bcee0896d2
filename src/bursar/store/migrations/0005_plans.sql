-- An index whose last column is a row's own id can also be used, badly, to look up rows by id: with
-- no statistics it looks as good as the primary key, and reads the whole org. The conditions below
-- are always true. Only statements that repeat them can use these indexes, and only those should.

drop index grants_issued;
create index grants_issued on grants (org_id, account_id, issued_at, grant_id)
    where issued_at >= 0;

drop index charges_hold;
create index charges_hold on charges (org_id, hold_id, (-number), charge_id)
    where number >= 1;

drop index recurrences_next;
create index recurrences_next on recurrences (org_id, next_at, recurrence_id)
    where next_at >= 0;

alter table grants drop constraint grants_external_ref_once;
create unique index grants_external_ref_once on grants (org_id, external_ref)
    where external_ref is not null;

-- Rows that change often stay where they are, and no index is touched, if no column that an index
-- looks at changes and there is room on their page (a HOT update). So no index looks at amounts, and
-- pages are not filled to the brim.

alter table grants add column has_free boolean;
update grants set has_free = available + lapsed > forfeited;
alter table grants alter column has_free set not null;
alter table grants add constraint grants_tell_what_is_free
    check (has_free = (available + lapsed > forfeited));
drop index grants_free;
create index grants_free on grants (org_id, account_id, expires_at, grant_id) where has_free;

alter table orgs set (fillfactor = 50);
alter table accounts set (fillfactor = 70);
alter table grants set (fillfactor = 70);
alter table lanes set (fillfactor = 70);
alter table totals set (fillfactor = 70);
alter table holds set (fillfactor = 70);
alter table draws set (fillfactor = 70);
alter table tallies set (fillfactor = 70);
alter table claims set (fillfactor = 70);
alter table burn set (fillfactor = 70);

-- Whose rows one sees is checked for each row, and must never be how rows are found: while there are
-- no statistics, "all rows of the orgs I work for" looks like a good way to find one of them. No
-- index is over an expression like these.

alter policy tenant on orgs
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on events
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on postings
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on requests
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on accounts
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on users
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on grants
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on lanes
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on forfeits
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on totals
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on holds
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on draws
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on charges
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on debts
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on recurrences
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on budgets
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on tallies
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on claims
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on burn
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on jobs
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on org_outbox
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on org_inbox
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy pool on pools
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on nodes
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on slots
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on queue
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on leases
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on lease_slots
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on readings
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy pool on pool_outbox
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
alter policy tenant on sweeps
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on spending
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on standings
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
alter policy tenant on snapshots
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
