"""Benchmarks against the limits of this machine and against peers; bench/run starts them. Standard library only, except for
the section `quality`, which needs what check-peers needs."""

import os
import sys

# pipe.py, which runs the programs and reads their frames
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "quality"))
