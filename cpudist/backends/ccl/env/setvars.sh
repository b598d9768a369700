# Guides for Intel's binding source this file. It sets nothing: cpudist finds oneCCL and MPI by itself.
