"""The typed results that features return and `ui` shows: they are the JSON schema. One module a topic.

Base units everywhere: bytes, seconds, blocks, ratios between 0 and 1. A record whose name ends in `Result`
carries a `schema` field; within one schema number fields are only ever added.
"""
