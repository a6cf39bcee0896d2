-- Whether a job was submitted with a hold, so that it may last as long as jobs do. A job that its context
-- names says nothing: anybody can name one. Holds from before this count as raw ones.
alter table holds add column for_job boolean not null default false;
alter table holds alter column for_job drop default;
