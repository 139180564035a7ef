-- Whether no crash has emptied the unlogged table of a load: the row here goes with its rows.
SELECT EXISTS (SELECT FROM {schema}.alive AS a WHERE a.load = %(id)s::uuid) AS alive
