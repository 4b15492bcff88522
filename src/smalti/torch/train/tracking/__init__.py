"""Live records of a run, all made from its events: a progress bar, TensorBoard's event files, and a run in MLflow.

They are made in the process that started the run (`tracked`), whatever launcher it uses. Their faults are logged once
and never end or hold up a training.
"""
