#include "documents.h"

static void fill(int32_t *ends, int begin, int end) {
    for (int t = begin; t < end; t++) ends[t] = end;
}

void document_bounds(int32_t *starts, int32_t *ends, const int32_t *tokens, int B, int T, int end_of_text) {
    for (int b = 0; b < B; b++, starts += T, ends += T, tokens += T) {
        int start = 0;
        for (int t = 0; t < T; t++) {
            starts[t] = start;
            if (tokens[t] != end_of_text && t < T - 1) continue;
            fill(ends, start, t + 1);
            start = t + 1;
        }
    }
}
