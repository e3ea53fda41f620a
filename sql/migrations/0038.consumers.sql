-- Consumers, each with its place in the order of a pipeline's commits, and what has changed since.

CREATE TABLE sluice.consumer (
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    name            text NOT NULL CHECK (name <> ''),
    commit_seq      bigint NOT NULL DEFAULT 0 CHECK (commit_seq >= 0),
    delivery_id     bigint REFERENCES sluice.delivery (delivery_id),
    moved_at        timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, name),
    CONSTRAINT place_is_a_delivery CHECK ((commit_seq = 0) = (delivery_id IS NULL))
);
COMMENT ON TABLE sluice.consumer IS 'Who reads what a pipeline has delivered, and up to which commit; a sweep keeps what a consumer has still to take back';
COMMENT ON COLUMN sluice.consumer.pipeline IS 'The pipeline that it reads';
COMMENT ON COLUMN sluice.consumer.name IS 'Its own name, one of its pipeline''s consumers';
COMMENT ON COLUMN sluice.consumer.commit_seq IS 'Its place: the last of the pipeline''s commits that it has read; 0: none';
COMMENT ON COLUMN sluice.consumer.delivery_id IS 'The delivery of that commit, by which a restored database that gave its number to another one shows';
COMMENT ON COLUMN sluice.consumer.moved_at IS 'When its place was last moved; null: never';
COMMENT ON COLUMN sluice.consumer.created_at IS 'When it first looked';

ALTER TABLE sluice.pipeline ADD COLUMN replaces_from bigint;
COMMENT ON COLUMN sluice.pipeline.replaces_from IS 'The first commit that took the place of all before; null: none has, or from the first on';

CREATE FUNCTION sluice.changes(pipeline text, after bigint)
RETURNS TABLE (delivery_id bigint, change text, changed_by bigint, commit_seq bigint, rows bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH whole AS (  -- of a table that each batch replaces: the delivery that it is now
        SELECT p.name, coalesce(p.replaces_from, 0) AS since,
               (SELECT d.delivery_id FROM sluice.delivery d
                WHERE d.pipeline = p.name AND d.live ORDER BY d.commit_seq DESC LIMIT 1) AS now
        FROM sluice.pipeline p WHERE p.name = changes.pipeline AND p.replaces
    ), was AS (  -- and those that it was then: one, or all, where batches did not yet replace
        SELECT d.delivery_id, d.delivered FROM whole w CROSS JOIN LATERAL (
            SELECT d.delivery_id, d.delivered FROM sluice.delivery d
            LEFT JOIN sluice.delivery n ON n.delivery_id = d.superseded_by
            WHERE d.pipeline = w.name AND d.commit_seq <= changes.after AND (d.live OR n.commit_seq > changes.after)
            ORDER BY d.commit_seq DESC LIMIT CASE WHEN changes.after >= w.since THEN 1 END) d
    )
    SELECT d.delivery_id, CASE d.kind WHEN 'replay' THEN 'replace' WHEN 'release' THEN 'release' ELSE 'insert' END,
           d.delivery_id, d.commit_seq, d.delivered
    FROM sluice.delivery d
    WHERE d.pipeline = changes.pipeline AND d.commit_seq > changes.after AND d.live AND d.kind <> 'withdrawal'
      AND NOT EXISTS (SELECT FROM whole)
    UNION ALL
    SELECT d.delivery_id, 'delete', n.delivery_id, n.commit_seq, d.delivered
    FROM sluice.delivery n JOIN sluice.delivery d ON d.superseded_by = n.delivery_id
    WHERE n.pipeline = changes.pipeline AND n.commit_seq > changes.after AND d.commit_seq <= changes.after
      AND NOT EXISTS (SELECT FROM whole)
    UNION ALL
    SELECT d.delivery_id, 'replace', d.delivery_id, d.commit_seq, d.delivered
    FROM whole JOIN sluice.delivery d ON d.delivery_id = whole.now
    WHERE whole.now NOT IN (SELECT was.delivery_id FROM was)
    UNION ALL
    SELECT was.delivery_id, 'delete', n.delivery_id, n.commit_seq, was.delivered
    FROM whole JOIN sluice.delivery n ON n.delivery_id = whole.now CROSS JOIN was
    WHERE was.delivery_id <> whole.now;
END;
COMMENT ON FUNCTION sluice.changes IS 'What became of a pipeline''s table after one of its commits, by delivery. insert: rows of a batch came; replace: rows came in the place of others; release: rows came out of quarantine; delete: rows that the table had then are no longer in it, since the delivery changed_by';

CREATE VIEW sluice.change AS
    SELECT c.pipeline, c.name AS consumer, new.delivery_id, new.change, new.changed_by, new.commit_seq, new.rows
    FROM sluice.consumer c CROSS JOIN LATERAL sluice.changes(c.pipeline, c.commit_seq) new;
COMMENT ON VIEW sluice.change IS 'What each consumer has not read yet, by delivery: join the pipeline''s table by _delivery_id';
COMMENT ON COLUMN sluice.change.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.change.consumer IS 'The consumer';
COMMENT ON COLUMN sluice.change.delivery_id IS 'Whose rows came or went: what they carry as _delivery_id';
COMMENT ON COLUMN sluice.change.change IS 'insert, replace, release or delete; see sluice.changes';
COMMENT ON COLUMN sluice.change.changed_by IS 'The delivery that made the change: itself, or of a delete the one that took its place';
COMMENT ON COLUMN sluice.change.commit_seq IS 'The number of that delivery''s commit: the order of changes';
COMMENT ON COLUMN sluice.change.rows IS 'How many rows it brought';

CREATE VIEW sluice.consumer_lag AS
    SELECT c.pipeline, c.name AS consumer, c.commit_seq, c.delivery_id, newest.commit_seq AS newest_seq,
           newest.delivery_id AS newest_delivery,
           (SELECT count(*) FROM sluice.delivery d WHERE d.pipeline = c.pipeline AND d.commit_seq > c.commit_seq) AS deliveries,
           (SELECT coalesce(sum(new.rows), 0)::bigint FROM sluice.changes(c.pipeline, c.commit_seq) new) AS rows,
           next.committed_at AS behind_since, c.moved_at, c.created_at
    FROM sluice.consumer c
    LEFT JOIN LATERAL (
        SELECT d.commit_seq, d.delivery_id FROM sluice.delivery d WHERE d.pipeline = c.pipeline
        ORDER BY d.commit_seq DESC LIMIT 1) newest ON true
    LEFT JOIN LATERAL (
        SELECT d.committed_at FROM sluice.delivery d WHERE d.pipeline = c.pipeline AND d.commit_seq > c.commit_seq
        ORDER BY d.commit_seq LIMIT 1) next ON true;
COMMENT ON VIEW sluice.consumer_lag IS 'How far each consumer is behind its pipeline';
COMMENT ON COLUMN sluice.consumer_lag.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.consumer_lag.consumer IS 'The consumer';
COMMENT ON COLUMN sluice.consumer_lag.commit_seq IS 'Its place; 0: it has read nothing';
COMMENT ON COLUMN sluice.consumer_lag.delivery_id IS 'The delivery of that commit';
COMMENT ON COLUMN sluice.consumer_lag.newest_seq IS 'The pipeline''s newest commit; null: it has none';
COMMENT ON COLUMN sluice.consumer_lag.newest_delivery IS 'The delivery of that commit';
COMMENT ON COLUMN sluice.consumer_lag.deliveries IS 'Deliveries that were committed after its place';
COMMENT ON COLUMN sluice.consumer_lag.rows IS 'Rows that these brought and that are in force, and rows of earlier ones that they took away';
COMMENT ON COLUMN sluice.consumer_lag.behind_since IS 'When the first of these was committed; null: it has read all';
COMMENT ON COLUMN sluice.consumer_lag.moved_at IS 'When its place was last moved; null: never';
COMMENT ON COLUMN sluice.consumer_lag.created_at IS 'When it first looked';

CREATE FUNCTION sluice.advance(of_pipeline text, of_consumer text, from_commit bigint DEFAULT NULL, to_commit bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    place bigint;
    newest bigint;
BEGIN
    IF (from_commit IS NULL OR to_commit IS NULL) AND current_setting('transaction_isolation') = 'read committed' THEN
        RAISE EXCEPTION 'In READ COMMITTED what was read and what is newest now may differ'
            USING HINT = 'BEGIN ISOLATION LEVEL REPEATABLE READ; or name both commits: sluice.advance(pipeline, consumer, from, to)';
    END IF;
    SELECT c.commit_seq, coalesce((SELECT max(d.commit_seq) FROM sluice.delivery d WHERE d.pipeline = c.pipeline), 0)
    INTO place, newest FROM sluice.consumer c
    WHERE (c.pipeline, c.name) = (of_pipeline, of_consumer);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Pipeline % has no consumer %', of_pipeline, of_consumer
            USING ERRCODE = 'no_data_found', HINT = format('INSERT INTO sluice.consumer (pipeline, name) VALUES (%L, %L)', of_pipeline, of_consumer);
    END IF;
    from_commit := coalesce(from_commit, place);
    to_commit := coalesce(to_commit, newest);
    IF to_commit NOT BETWEEN from_commit AND newest OR to_commit > 0 AND NOT EXISTS (
            SELECT FROM sluice.delivery d WHERE d.pipeline = of_pipeline AND d.commit_seq = to_commit) THEN
        RAISE EXCEPTION 'Consumer % of % can''t go on from commit % to %; the newest is %', of_consumer, of_pipeline, from_commit, to_commit, newest
            USING ERRCODE = 'invalid_parameter_value', HINT = '`sluice consumers` sets a place back';
    END IF;
    UPDATE sluice.consumer c
    SET commit_seq = to_commit, moved_at = CASE WHEN to_commit > from_commit THEN now() ELSE c.moved_at END, delivery_id = (
        SELECT d.delivery_id FROM sluice.delivery d WHERE d.pipeline = of_pipeline AND d.commit_seq = to_commit)
    WHERE (c.pipeline, c.name, c.commit_seq) = (of_pipeline, of_consumer, from_commit);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Consumer % of % is no longer at commit %', of_consumer, of_pipeline, from_commit
            USING ERRCODE = 'serialization_failure', HINT = 'another run of it was there first: roll back and read anew';
    END IF;
    RETURN to_commit;
END $$;
COMMENT ON FUNCTION sluice.advance IS 'Moves a consumer''s place within the transaction that keeps what was made of the changes; by default from where it is to the newest commit that the transaction sees. Fails where another run has moved it';
