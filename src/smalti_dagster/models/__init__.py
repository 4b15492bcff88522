"""The last stages of a data set: its trained model, the promotion of the best one, and studies of hyperparameters.

Read `model` first, then `training`, which all of them share.
"""
