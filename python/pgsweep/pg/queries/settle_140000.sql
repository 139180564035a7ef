-- Before 15 a session sends its counters at most every half second; the caller waits and any statement will do.
SELECT 1
