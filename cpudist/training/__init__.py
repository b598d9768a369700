"""Run a target on every rank of a job that has started.

It must not import launchers, rendezvous, process groups or command lines.
"""
