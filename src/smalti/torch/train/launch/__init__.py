"""Launchers: how the ranks of a training run are started, watched and ended.

The table of launchers is in `smalti.torch.train.config`; what a rank does is in `smalti.torch.train.loop`. Start
reading at `launch`, which has the entry point `train`.
"""
