-- Rights of the service's role (D9). The role bursar_service exists before this file is applied: roles
-- belong to the whole server. Every transaction of the service takes this role and names the orgs
-- (bursar.orgs) or pools (bursar.pools) that it works for; rows of others do not exist for it.

grant usage on schema public to bursar_service;

-- Rows that change.
grant select, insert, update on
    orgs, accounts, users, totals, burn, grants, lanes, recurrences, holds, draws, charges, debts,
    budgets, tallies, claims, settings, rates, sweeps, user_burn, top_list_entries, alert_checks,
    alert_rearms, webhook_cursors,
    deliveries, jobs, job_routes, arrays, org_outbox, quota_slices
    to bursar_service;
grant select, insert, update on
    pools, pool_policies, pool_slices, pool_usage, pool_outbox, nodes, pool_scaling, pool_orders, queue,
    leases, lease_parts, lease_slots, progress
    to bursar_service;

-- Rows that are written once: the service can neither change nor delete them.
grant select, insert on events, postings, requests, forfeits to bursar_service;
grant select, insert on snapshots, job_steps, org_inbox, pool_events to bursar_service;

-- Rows that are deleted when they are no longer needed, and nodes that have left the pool.
grant select, insert, delete on pool_changes, logs to bursar_service;
grant delete on nodes to bursar_service;

-- Row-level security: the policies of all tables are the same. The expression (org_id || '') keeps a
-- planner without statistics from using the policy to find rows: no index is over such an expression,
-- so the policy is checked for each row that a statement finds by its key.

alter table orgs enable row level security;
create policy tenant on orgs to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table accounts enable row level security;
create policy tenant on accounts to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table users enable row level security;
create policy tenant on users to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table totals enable row level security;
create policy tenant on totals to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table burn enable row level security;
create policy tenant on burn to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table grants enable row level security;
create policy tenant on grants to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table lanes enable row level security;
create policy tenant on lanes to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table forfeits enable row level security;
create policy tenant on forfeits to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table recurrences enable row level security;
create policy tenant on recurrences to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table holds enable row level security;
create policy tenant on holds to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table draws enable row level security;
create policy tenant on draws to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table charges enable row level security;
create policy tenant on charges to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table debts enable row level security;
create policy tenant on debts to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table budgets enable row level security;
create policy tenant on budgets to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table tallies enable row level security;
create policy tenant on tallies to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table claims enable row level security;
create policy tenant on claims to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table events enable row level security;
create policy tenant on events to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table postings enable row level security;
create policy tenant on postings to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table requests enable row level security;
create policy tenant on requests to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table settings enable row level security;
create policy tenant on settings to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table rates enable row level security;
create policy tenant on rates to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table sweeps enable row level security;
create policy tenant on sweeps to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table user_burn enable row level security;
create policy tenant on user_burn to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table top_list_entries enable row level security;
create policy tenant on top_list_entries to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table snapshots enable row level security;
create policy tenant on snapshots to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table alert_checks enable row level security;
create policy tenant on alert_checks to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table alert_rearms enable row level security;
create policy tenant on alert_rearms to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table webhook_cursors enable row level security;
create policy tenant on webhook_cursors to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table deliveries enable row level security;
create policy tenant on deliveries to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table jobs enable row level security;
create policy tenant on jobs to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table job_steps enable row level security;
create policy tenant on job_steps to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table job_routes enable row level security;
create policy tenant on job_routes to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table arrays enable row level security;
create policy tenant on arrays to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table org_outbox enable row level security;
create policy tenant on org_outbox to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table org_inbox enable row level security;
create policy tenant on org_inbox to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table quota_slices enable row level security;
create policy tenant on quota_slices to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

-- A transaction of any org may read the row of the deployment's own org, for its prices: they apply to
-- every org without a price book of its own. It may read that row only, and change nothing.
create policy prices on orgs for select to bursar_service
    using ((org_id || '') = '00000000-0000-0000-0000-000000000000'
           and nullif(current_setting('bursar.orgs', true), '') is not null);

alter table pools enable row level security;
create policy pool on pools to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_changes enable row level security;
create policy pool on pool_changes to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_policies enable row level security;
create policy pool on pool_policies to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_slices enable row level security;
create policy pool on pool_slices to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_usage enable row level security;
create policy pool on pool_usage to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_outbox enable row level security;
create policy pool on pool_outbox to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_events enable row level security;
create policy pool on pool_events to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table nodes enable row level security;
create policy pool on nodes to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_scaling enable row level security;
create policy pool on pool_scaling to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_orders enable row level security;
create policy pool on pool_orders to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table queue enable row level security;
create policy pool on queue to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table leases enable row level security;
create policy pool on leases to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table lease_parts enable row level security;
create policy pool on lease_parts to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table lease_slots enable row level security;
create policy pool on lease_slots to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table progress enable row level security;
create policy pool on progress to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table logs enable row level security;
create policy pool on logs to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
