"""Fuzzing of everything that pgsweep reads and did not write a moment ago: `make fuzz TIME=60s`.

    targets/NAME.py   one module per parser: its seeds, and one run on one input
    bombs.py          inputs of some kB that ask for gigabytes or minutes, with which each run begins
    mutate.py         inputs from other inputs: bytes, JSON values, values of Parquet columns, folders
    worker.py         the process in which a target runs, input after input
    run.py            starts workers, watches their time and memory, keeps what they find

A new parser is a new module in targets/ (see targets/__init__.py). Inputs that once were findings are kept
in seeds/NAME/, where every run begins with them.
"""
