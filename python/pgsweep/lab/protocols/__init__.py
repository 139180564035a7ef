"""The steps of the experiments, a module each: `PROTOCOL`, found by the name that an experiment gives."""
