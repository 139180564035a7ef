-- Which of some fields their columns' types refuse, and why; COPY's notices do not say why.
SELECT f.number, pg_catalog.left(e.message, 100000) AS reason
  FROM ROWS FROM (pg_catalog.unnest(%(numbers)s::pg_catalog.int8[]), pg_catalog.unnest(%(names)s::pg_catalog.text[]),
                  pg_catalog.unnest(%(texts)s::pg_catalog.text[])) AS f (number, name, text)
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = %(oid)s::oid AND a.attname = f.name
 CROSS JOIN LATERAL pg_catalog.pg_input_error_info(f.text, pg_catalog.format_type(a.atttypid, a.atttypmod)) AS e
 WHERE e.message IS NOT NULL
