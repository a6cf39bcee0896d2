-- How many elements have not begun yet is counted at each submission under a quota of jobs that wait: by
-- the arrays that go on, not by all that an org has ever had.
create index arrays_going_on on arrays (org_id, job_id) where not closed;

-- An account with all below it is walked down from, at each submission under a quota of it and by whoever lists its
-- jobs: by who is below whom, not by all accounts of the org at each step. The condition holds for all that are found.
create index accounts_below on accounts (org_id, parent) where parent is not null;

-- Which quotas count a job: by whose they are, however many an org has. Columns, because row security lets no index
-- be used by what is inside of a JSON value; of quotas alone, because others' words may be what no text can be.
alter table settings
    add column account_id text collate "C"
        generated always as (case when kind = 'quota' then body ->> 'account_id' end) stored,
    add column user_id text collate "C"
        generated always as (case when kind = 'quota' then body ->> 'user_id' end) stored;
create index settings_quotas_whose on settings (org_id, account_id, user_id) where kind = 'quota';
