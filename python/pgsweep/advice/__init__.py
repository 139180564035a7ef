"""Which settings follow from what was observed: `pgsweep advise`.

gather.py          asks the features: the curve, huge pages, the memory budget
situation.py       what they said, as one value; all below is computed from it
reads.py           what reads cost at each size of shared_buffers
shared_buffers.py  the size, or to leave it
rules_of_thumb.py  what others would say, and what that would cost here
huge_pages.py, planner.py, connections.py, warming.py    the other settings
decide.py          all of them together
"""
