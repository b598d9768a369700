"""Measurements that users repeat on their own machines: `cpudist bench`, `cpudist test` and `cpudist plan --measure`.

All candidates of a table are measured in one run, because times differ more between runs than between candidates.
This package must not import launchers, Trainer's patches, programs or command lines.
"""
