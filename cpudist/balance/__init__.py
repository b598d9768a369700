"""Divide the samples of a step among ranks of unequal speed, so that the model is the same as with equal shares.

It must not import jobs, observers, optimization, transformers, programs or command lines.
"""
