-- Held rows are copied while others are still staged, before the ledger has their delivery, by the transaction that then
-- writes it. To look for the delivery of each of them took as long as to copy them. The constraint is of both tables; and
-- who has both waits for no commit if it has the first of what a commit locks.

LOCK TABLE sluice.pipeline;
LOCK TABLE sluice.delivery;
ALTER TABLE sluice.quarantine DROP CONSTRAINT quarantine_delivery_id_fkey;
