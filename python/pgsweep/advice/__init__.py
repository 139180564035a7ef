"""Which settings follow from what was observed: `pgsweep advise`.

ask.py             the question: an answer that is kept, or gather.py
gather.py          asks the features: the curve, huge pages, the memory budget
situation.py       their answers as one record, from which the modules below compute the advice
reads.py           what reads cost at each size of shared_buffers
shared_buffers.py  the size, or to leave it
rules_of_thumb.py  what rules of thumb say, and what following them would gain or cost here
huge_pages.py, planner.py, connections.py, warming.py    the other settings
decide.py          all of them together
summary.py         what they say, in one sentence
"""
