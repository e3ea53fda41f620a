-- What a rule is known by when its name changes, what it is about, and who is asked about it.

ALTER TABLE sluice.quality_rule ADD COLUMN rule_id text, ADD COLUMN dimension text, ADD COLUMN owner text;
COMMENT ON COLUMN sluice.quality_rule.rule_id IS 'What it is known by over its names; null: by its reason';
COMMENT ON COLUMN sluice.quality_rule.dimension IS 'What of quality it is about, such as completeness; null: not said';
COMMENT ON COLUMN sluice.quality_rule.owner IS 'Who is asked about it; null: whoever is about the pipeline';

CREATE OR REPLACE VIEW sluice.quality_rule_history AS
    SELECT d.pipeline, r.reason, r.number, d.delivery_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           r.expectation, r.severity, r.success, r.element_count, r.unexpected_count,
           r.unexpected_count::double precision / nullif(r.element_count, 0) AS unexpected_share, r.evaluated,
           coalesce(r.rule_id, r.reason) AS rule_id, r.dimension, r.owner
    FROM sluice.quality_rule r JOIN sluice.delivery d USING (delivery_id);
COMMENT ON COLUMN sluice.quality_rule_history.rule_id IS 'What the rule is known by over its names: its meta.id, else its reason';
COMMENT ON COLUMN sluice.quality_rule_history.dimension IS 'What of quality it is about, such as completeness; null: not said';
COMMENT ON COLUMN sluice.quality_rule_history.owner IS 'Who is asked about it; null: whoever is about the pipeline';
