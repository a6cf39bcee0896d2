"""A job as its org sees it: pure rules over plain rows, run by the service and by the simulator.

    rows              Job, Array, Route and the rows that are only ever added
    transaction       JobTransaction: the rows that one transaction reads and changes
    effects           what a ledger command changes in the jobs, in the same transaction
    states            the row of a job after a message of its pool
    submission        submitting a job, extending its hold
    quotas            quotas that are counted at submission
    cancellation      cancelling a job, or an array with its elements
    pool_messages     handles a message of a pool: its commands, and the row after the last of them
    message_commands  the ledger commands that follow from a message of a pool
    relocation        moving a job that has not begun to another pool
    corrections       correcting the cause of an attempt's end
    rolling_holds     how much a rolling hold grows, and when
    arrays            elements begin and end; the end of an array
    result_cache      identical jobs: one leads, the others follow and are given its result

A job is submitted by the command that reserves its hold: job, hold and the message to the pool
exist together or not at all. The hold has the job's id. The pool says when a job has ended, even
one that was cancelled; until then its hold stays.

Every command has a key, and a repeated key gets its first answer (L7). So a message that comes
twice, or a process that dies between two commands of a message, changes nothing twice.
"""
