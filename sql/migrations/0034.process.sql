-- What tells a run's process from another of the same name, on a host of the same name.

ALTER TABLE sluice.run ADD COLUMN process text;
COMMENT ON COLUMN sluice.run.process IS 'Boot of its host, PID namespace and start of its process; null: not known';
