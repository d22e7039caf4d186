#!/bin/sh
# The parts of scripts/*.py and the shell scripts beside them, on values whose answers are known, with stand-ins for the trainer, the
# card, the network and PyTorch. Usage: dev/test/dev/test_script_parts.sh, from the repository root.
exec dev/test/scripts/run.sh script_parts '[!d]*_parts.py'
