"""Starting jobs: on which hosts, through whose launcher, with what command line.

It runs before any rank does and must know neither torch nor what a job computes.
"""
