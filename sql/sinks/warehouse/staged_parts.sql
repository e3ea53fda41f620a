-- name: next_parts
-- The next parts of packed rows, behind the last one that was read of each task; of one kind and of these tasks alone, or of all.
COPY (
    SELECT s._task, s.part, s.held, s.rows, s.size, s.packed FROM sluice_stage.{staging} s
    LEFT JOIN unnest({read}::bigint[], {last}::bigint[]) read (task, part) ON read.task = s._task
    WHERE (read.task IS NULL OR s.part > read.part)
      AND ({held}::boolean IS NULL OR s.held = {held}::boolean)
      AND ({tasks}::bigint[] IS NULL OR s._task = ANY({tasks}::bigint[]))
    ORDER BY s._task, s.part LIMIT {most}
) TO STDOUT (FORMAT binary)
