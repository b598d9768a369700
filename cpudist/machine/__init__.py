"""Facts about this machine, for everything above: no launcher, no job, no torch."""
