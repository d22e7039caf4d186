/* The program's own stack, so that a small limit of the shell's (ulimit -s) is no limit of ours: a tile of attention on
 * the CPU takes half a MiB. */
#pragma once

/* Runs program(argc, argv) on a stack of 8 MiB and returns what it returns; on the caller's where the system has no
 * thread left. */
int run_on_own_stack(int (*program)(int argc, char **argv), int argc, char **argv);
