"""Divide the samples of a step among ranks of unequal speed, so that the model is the same as with equal shares.

This package must not import jobs, observers, optimization, transformers, programs or command lines.
"""
