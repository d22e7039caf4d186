#!/bin/sh
# data/*.py by themselves: files, downloads from a server of the test's own, GPT-2's ranks, batches in flight, how a script ends. The tokens that the
# scripts write are test_data.sh's. Usage: dev/test/data/test_data_parts.sh, from the repository root.
exec dev/test/scripts/run.sh data_parts 'data_*parts.py'
