-- Whether a job was submitted with a hold, so that it may last as long as jobs do. A job that its context
-- names says nothing: anybody can name one. Holds from before this count as raw ones, and so do those of
-- processes of the version before, which do not know the column.
alter table holds add column for_job boolean not null default false;
