-- What a load has dropped or disabled, and what of it is back.
SELECT o.number::int8, o.document, o.present FROM {schema}.object AS o WHERE o.load = %(id)s::uuid ORDER BY o.number
