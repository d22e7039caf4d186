#!/bin/sh
# The scripts that prepare data, held to token streams written by hand; needs python3 alone, no package and no network.
# Usage: dev/test/data/test_data.sh [PROGRAM], from the repository root.
set -u
program=${1:-./train_gpt2}
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    echo 'skip: no python3 of 3.9 or later'
    echo 'data: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
PYTHONDONTWRITEBYTECODE=1 python3 dev/test/data/data_checks.py "$work" "$program"
