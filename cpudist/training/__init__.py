"""Run a target on every rank of a job that has started.

This package must not import launchers, rendezvous, process groups or command lines.
"""
