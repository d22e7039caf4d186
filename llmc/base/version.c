#include "version.h"

#ifndef LLMC_COMMIT
#define LLMC_COMMIT "unknown"
#endif

const char *program_commit(void) {
    return LLMC_COMMIT;
}

const char *program_version(void) {
    return "train_gpt2 " LLMC_COMMIT;
}
