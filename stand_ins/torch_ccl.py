"""Stands for Intel's package of this name where that is not installed; see cpudist.backends.ccl.intel."""

import sys

from cpudist.backends.ccl.intel import fill

fill(sys.modules[__name__])
