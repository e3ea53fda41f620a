-- name: rules_of
-- The rules that judged some deliveries, each under its newest name: whether it held in all of them, and where it did not,
-- whether it was critical.
SELECT left((array_agg(r.reason ORDER BY d.commit_seq DESC))[1], 300) AS reason, bool_and(r.success) AS held,
       bool_or(NOT r.success AND r.severity = 'critical') AS failed
FROM sluice.quality_rule r JOIN sluice.delivery d USING (delivery_id)
WHERE r.delivery_id = ANY (%(deliveries)s) GROUP BY coalesce(r.rule_id, r.reason) ORDER BY 1
