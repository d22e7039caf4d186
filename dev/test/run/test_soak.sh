#!/bin/sh
# A hundredth of `make soak`, without sanitizers: kills, signals, damaged files, flag combinations, ranks; the same cases every time
# but for the moments of the kills. Usage: dev/test/run/test_soak.sh, from the repository root. Ends with 'soak: N passed, ...'.
[ -x build/soak ] && [ -x ./train_gpt2 ] || { echo 'soak: 0 passed, 0 failed, 1 skipped'; exit 0; }
SEED=${SEED:-18} KILLS=${KILLS:-8} TERMS=${TERMS:-4} DAMAGED=${DAMAGED:-400} FLAGS=${FLAGS:-50} RANKS=${RANKS:-3} JOBS=${JOBS:-4} exec build/soak
