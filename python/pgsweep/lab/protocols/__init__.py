"""The steps of the published experiments, a module each; lab/plan.py knows them by name."""
