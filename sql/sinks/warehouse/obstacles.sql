-- name: lock
-- Lets nobody put anything on the table or on one of its partitions until the transaction ends; who reads goes on.
LOCK TABLE {target} IN ROW EXCLUSIVE MODE;

-- name: look
-- One look at a table and its partitions: the columns of the table and their types, in order; the index of its keys; what
-- could make a merge fail, or change or lose rows, ours or others'; and the indexes that may fail for a value, since they
-- compute something of it, or since it may be too long. The third value of what is not on the table itself is the partition
-- that it is on. Locked first, in the same round trip, the table is seen as it is then.
{lock}
WITH target AS MATERIALIZED (
    SELECT oid, relkind, relrowsecurity FROM pg_class WHERE oid = to_regclass(%(table)s)
), tree AS MATERIALIZED (
    SELECT array_agg(relid) AS oids FROM (
        SELECT oid AS relid FROM target UNION SELECT p.relid::oid FROM target, pg_partition_tree(target.oid) p) t
), found (what, name, relation) AS (
    SELECT 'obstacle', 'trigger ' || t.tgname, t.tgrelid FROM tree JOIN pg_trigger t ON t.tgrelid = ANY(tree.oids)
    WHERE NOT t.tgisinternal
      AND NOT EXISTS (SELECT FROM pg_trigger p WHERE p.oid = t.tgparentid AND p.tgrelid = ANY(tree.oids))
    UNION ALL
    SELECT 'obstacle', CASE c.contype WHEN 'c' THEN 'CHECK' WHEN 'f' THEN 'FOREIGN KEY' WHEN 'x' THEN 'EXCLUDE'
               ELSE 'UNIQUE' END || ' constraint ' || c.conname, c.conrelid
    FROM target, tree JOIN pg_constraint c ON c.conrelid = ANY(tree.oids)
    WHERE c.contype IN ('c', 'f', 'u', 'p', 'x')
      AND NOT EXISTS (SELECT FROM pg_constraint p WHERE p.oid = c.conparentid AND p.conrelid = ANY(tree.oids))
      AND NOT (c.contype = 'c' AND c.conrelid <> target.oid AND (c.coninhcount > 0  -- the table's own, or what the bound says
          OR regexp_replace(pg_get_constraintdef(c.oid), '''(-?[0-9]+)''::bigint', '\1', 'g')
              = regexp_replace('CHECK (' || pg_get_partition_constraintdef(c.conrelid) || ')',
                               '''(-?[0-9]+)''::bigint', '\1', 'g')))
    UNION ALL
    SELECT 'obstacle', 'FOREIGN KEY constraint ' || c.conname || ' of table ' || c.conrelid::regclass || ' on it'
           || CASE c.confdeltype WHEN 'c' THEN ', which deletes rows there' WHEN 'n' THEN ', which sets columns there'
               WHEN 'd' THEN ', which sets columns there' ELSE '' END, c.confrelid
    FROM tree JOIN pg_constraint c ON c.confrelid = ANY(tree.oids) AND NOT c.conrelid = ANY(tree.oids)
    WHERE %(removes)s AND c.contype = 'f'
      AND NOT EXISTS (SELECT FROM pg_constraint p WHERE p.oid = c.conparentid AND p.confrelid = ANY(tree.oids))
    UNION ALL
    SELECT CASE WHEN i.indisunique THEN 'obstacle'
               WHEN i.indexprs IS NULL AND i.indpred IS NULL THEN 'index' ELSE 'computes' END,
           CASE WHEN i.indisunique THEN 'UNIQUE index ' ELSE 'index ' END || i.indexrelid::regclass, i.indrelid
    FROM target, tree JOIN pg_index i ON i.indrelid = ANY(tree.oids)
    WHERE (i.indisunique OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
          OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indexrelid AND a.attlen = -1))
      AND NOT (coalesce(i.indexrelid = to_regclass(%(key_index)s), false) AND %(keys)s = ARRAY(
          SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indexrelid ORDER BY a.attnum))
      AND NOT (i.indrelid <> target.oid AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid))
      AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype IN ('u', 'p', 'x'))
    UNION ALL
    SELECT 'keyed', '', i.indrelid FROM target JOIN pg_index i ON i.indrelid = target.oid
    WHERE i.indexrelid = to_regclass(%(key_index)s) AND i.indisunique AND i.indisvalid
    UNION ALL
    SELECT 'obstacle', 'NOT NULL on column ' || a.attname, a.attrelid
    FROM target, tree JOIN pg_attribute a ON a.attrelid = ANY(tree.oids)
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull
      AND a.attname NOT IN ('_stream_id', '_batch_id', '_delivery_id')
      AND (a.attrelid = target.oid OR NOT EXISTS (
          SELECT FROM pg_attribute r WHERE r.attrelid = target.oid AND r.attname = a.attname AND r.attnotnull))
    UNION ALL
    SELECT 'obstacle', 'a value of its own for column ' || a.attname, a.attrelid
    FROM target JOIN pg_attribute a ON a.attrelid = target.oid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated <> '' OR a.attidentity <> '')
    UNION ALL
    SELECT 'obstacle', 'a collation to which different texts of key ' || a.attname || ' are the same', a.attrelid
    FROM target JOIN pg_attribute a ON a.attrelid = target.oid
    JOIN pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(%(keys)s)
    UNION ALL
    SELECT 'obstacle', 'a collation of column ' || a.attname || ' in a schema that this role may not use', a.attrelid
    FROM target JOIN pg_attribute a ON a.attrelid = target.oid JOIN pg_collation c ON c.oid = a.attcollation
    WHERE a.attnum > 0 AND NOT a.attisdropped AND %(keys)s <> ARRAY[]::text[]
      AND NOT has_schema_privilege(c.collnamespace, 'USAGE')
    UNION ALL
    SELECT 'obstacle', 'rule ' || r.rulename, r.ev_class FROM target JOIN pg_rewrite r ON r.ev_class = target.oid
    UNION ALL
    SELECT 'obstacle', 'row level security', oid FROM target WHERE relrowsecurity
    UNION ALL
    SELECT 'obstacle', 'another kind than an ordinary or partitioned table', oid FROM target WHERE relkind NOT IN ('r', 'p')
    UNION ALL
    SELECT 'obstacle', CASE WHEN c.relpersistence = 'u'
               THEN 'no write-ahead log (' || c.oid::regclass || ' is UNLOGGED): PostgreSQL empties it when it crashes'
               ELSE 'a partition of another kind than an ordinary table' END, c.oid
    FROM target, tree JOIN pg_class c ON c.oid = ANY(tree.oids)
    WHERE c.relpersistence = 'u' OR (c.oid <> target.oid AND c.relkind NOT IN ('r', 'p'))
    UNION ALL
    SELECT 'obstacle', 'no partition, so that no row has a place', target.oid FROM target, tree
    WHERE target.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY(tree.oids) AND c.relkind <> 'p')
    UNION ALL
    SELECT 'obstacle', 'a table that inherits from it: ' || h.inhrelid::regclass, target.oid
    FROM target JOIN pg_inherits h ON h.inhparent = target.oid JOIN pg_class c ON c.oid = h.inhrelid
    WHERE NOT c.relispartition
    UNION ALL
    SELECT 'obstacle', 'publication ' || p.pubname || ', which publishes changes of rows, and no replica identity', min(c.oid)
    FROM pg_publication p, tree JOIN pg_class c ON c.oid = ANY(tree.oids) AND c.relkind = 'r' AND c.relpersistence = 'p'
    WHERE ((%(updates)s AND p.pubupdate) OR (%(removes)s AND p.pubdelete)) AND c.relreplident <> 'f'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
      AND (p.puballtables
          OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND (r.prrelid = c.oid
              OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))))
          OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND (n.pnnspid = c.relnamespace
              OR n.pnnspid IN (SELECT u.relnamespace FROM pg_partition_ancestors(c.oid) a JOIN pg_class u ON u.oid = a.relid))))
    GROUP BY p.pubname
)
SELECT f.what, f.name, CASE WHEN f.relation <> target.oid THEN f.relation::regclass::text END FROM found f, target
UNION ALL
(SELECT 'column', a.attname, format_type(a.atttypid, a.atttypmod) FROM target JOIN pg_attribute a ON a.attrelid = target.oid
WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
