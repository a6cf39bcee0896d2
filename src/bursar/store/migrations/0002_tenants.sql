-- Who may do what, and whose rows one sees (D9). The role bursar_service is made before this file is
-- applied: roles belong to the whole server. A transaction of the service takes the role and names
-- the orgs it works for (bursar.orgs); no other org's row exists for it.

grant usage on schema public to bursar_service;
grant select, insert, update on
    orgs, accounts, users, grants, lanes, totals, holds, draws, charges, debts, recurrences,
    budgets, tallies, claims, burn
    to bursar_service;
-- What happened stays as it was written: no update, and nowhere a delete or a truncate.
grant select, insert on events, postings, requests, forfeits to bursar_service;

alter table orgs enable row level security;
create policy tenant on orgs to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table events enable row level security;
create policy tenant on events to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table postings enable row level security;
create policy tenant on postings to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table requests enable row level security;
create policy tenant on requests to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table accounts enable row level security;
create policy tenant on accounts to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table users enable row level security;
create policy tenant on users to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table grants enable row level security;
create policy tenant on grants to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table lanes enable row level security;
create policy tenant on lanes to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table forfeits enable row level security;
create policy tenant on forfeits to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table totals enable row level security;
create policy tenant on totals to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table holds enable row level security;
create policy tenant on holds to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table draws enable row level security;
create policy tenant on draws to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table charges enable row level security;
create policy tenant on charges to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table debts enable row level security;
create policy tenant on debts to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table recurrences enable row level security;
create policy tenant on recurrences to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table budgets enable row level security;
create policy tenant on budgets to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table tallies enable row level security;
create policy tenant on tallies to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table claims enable row level security;
create policy tenant on claims to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table burn enable row level security;
create policy tenant on burn to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
