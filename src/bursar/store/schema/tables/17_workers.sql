-- Leases of the background workers of which one runs at a time: the process that runs the worker, the
-- end of its lease, and the instant up to which its work was last completed.
create table worker_leases (
    worker  text collate "C" not null,
    holder  text not null,            -- the process; empty: none
    until   bigint not null,
    done_at bigint not null,
    constraint worker_leases_pkey primary key (worker)
);

insert into worker_leases (worker, holder, until, done_at)
values
    ('sweeper', '', 0, 0),
    ('alerts', '', 0, 0),
    ('webhooks', '', 0, 0),
    ('rolling holds', '', 0, 0),
    ('result cache', '', 0, 0),
    ('relocation', '', 0, 0);

-- What each machine that runs the service found when it compared the database's clock with its own
-- clocks (D5). A restarted process goes on from its machine's row.
create table clock_witnesses (
    machine         text collate "C" not null,  -- one start of one machine
    host            text not null,
    difference      bigint,                     -- the database's time less the running time; null: none agreed
    agreed          bigint,                     -- running time of the last agreement
    wall_difference bigint not null,            -- the database's time less the wall clock, as accepted
    seen_at         bigint not null,            -- the database's time at the last agreement; 0: none
    distrust        text,                       -- why the clock is refused; null: it is trusted
    off             bigint not null,            -- refused: by how much; trusted: from the wall clock
    refused_at      bigint not null,            -- what the clock said then
    binds           boolean not null,           -- machines without a baseline refuse the clock too
    constraint clock_witnesses_pkey primary key (machine),
    constraint clock_witnesses_baseline check ((difference is null) = (agreed is null))
);

-- An operator declared the database's clock right, although it was refused. Events up to `until` may be
-- ahead of the clock.
create table clock_acceptances (
    id          text collate "C" not null,
    accepted_at bigint not null,                -- by the database's clock
    host        text not null,                  -- where the operator ran the command
    until       bigint not null,
    constraint clock_acceptances_pkey primary key (id)
);

-- Addresses at which nodes reach the processes of the service, for as long as these renew them.
create table service_addresses (
    process text collate "C" not null,
    url     text not null,
    until   bigint not null,
    constraint service_addresses_pkey primary key (process)
);
