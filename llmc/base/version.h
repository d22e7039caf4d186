/* Which program this is. */
#pragma once

/* The commit it was built from, compiled in with -DLLMC_COMMIT='"..."'; else "unknown". */
const char *program_commit(void);
/* "train_gpt2 COMMIT". */
const char *program_version(void);
