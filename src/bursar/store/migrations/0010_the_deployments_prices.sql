-- Whoever works for an org may look at the row of the deployment's own org, for its prices: they are those
-- of every org that has none of its own. Nobody else's row, nothing but looking, and no other table.
create policy prices on orgs for select to bursar_service
    using ((org_id || '') = '00000000-0000-0000-0000-000000000000'
           and nullif(current_setting('bursar.orgs', true), '') is not null);
