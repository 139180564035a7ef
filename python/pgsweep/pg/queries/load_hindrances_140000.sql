-- What runs code or changes other tables where rows of a table are removed (`undoing`; `acts`: it would not merely refuse),
-- and what sees how the rows of a load are divided among statements and transactions (`whole`).
WITH tables AS (
    SELECT %(oid)s::oid AS oid
    UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(%(oid)s::oid) AS p
), above AS (
    -- What refers to a partitioned table refers to the rows of its partitions.
    SELECT t.oid FROM tables AS t UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_ancestors(%(oid)s::oid) AS p
), triggers AS (
    SELECT g.*, (g.tgtype & 40) <> 0 AS removing,
           (g.tgtype & 4) <> 0 AND ((g.tgtype & 1) = 0 OR g.tgnewtable IS NOT NULL OR g.tginitdeferred) AS whole
    FROM pg_catalog.pg_trigger AS g
    WHERE g.tgrelid IN (SELECT t.oid FROM tables AS t) AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')
), keys AS (
    SELECT f.conname, f.conrelid, f.confrelid IN (SELECT a.oid FROM above AS a) AND f.conrelid NOT IN (SELECT a.oid FROM above AS a) AS theirs,
           f.confrelid IN (SELECT a.oid FROM above AS a) AND f.conrelid IN (SELECT a.oid FROM above AS a) AS own,
           f.confdeltype IN ('c', 'n', 'd') AS acts
    FROM pg_catalog.pg_constraint AS f
    WHERE f.contype = 'f' AND f.conparentid = 0
)
SELECT pg_catalog.convert_to(h.what, 'UTF8') AS what, h.undoing, h.acts, h.whole, h.number IN (1, 5) AS trigger
FROM (
    SELECT 1 AS number, pg_catalog.format('trigger %%I fires when rows are removed', g.tgname) AS what,
           true AS undoing, true AS acts, false AS whole
    FROM triggers AS g WHERE g.removing
    UNION ALL
    SELECT 2, pg_catalog.format('rule %%I applies to DELETE', r.rulename), true, true, false
    FROM pg_catalog.pg_rewrite AS r
    WHERE r.ev_class IN (SELECT t.oid FROM tables AS t) AND r.ev_type = '4' AND r.ev_enabled IN ('O', 'A')
    UNION ALL
    SELECT 3, pg_catalog.format('foreign key %%I of %%I.%%I refers to it', k.conname, n.nspname, c.relname), true, k.acts, false
    FROM keys AS k
    JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE k.theirs
    UNION ALL
    SELECT 4, pg_catalog.format('foreign key %%I refers to the table itself', k.conname), true, k.acts, true
    FROM keys AS k WHERE k.own
    UNION ALL
    SELECT 5, pg_catalog.format(CASE WHEN g.tginitdeferred THEN 'trigger %%I fires at the end of the transaction'
                                     ELSE 'trigger %%I fires for each statement' END, g.tgname), false, false, true
    FROM triggers AS g WHERE g.whole
    UNION ALL
    SELECT 6, pg_catalog.format('constraint %%I is checked at the end of the transaction', n.conname), false, false, true
    FROM pg_catalog.pg_constraint AS n
    WHERE n.conrelid IN (SELECT t.oid FROM tables AS t) AND n.condeferred AND n.contype <> 't' AND n.conparentid = 0
    UNION ALL
    SELECT 7, pg_catalog.format('exclusion constraint %%I compares the rows with each other', c.relname), false, false, true
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid IN (SELECT t.oid FROM tables AS t) AND i.indisexclusion) AS h
ORDER BY h.number, h.what
