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

double document_pairs(const int32_t *starts, const int32_t *ends, int64_t n, int window) {
    double pairs = 0;
    for (int64_t i = 0; i < n;) {
        const double length = ends[i] - starts[i], seen = window > 0 && window < length ? window : length;
        pairs += seen * (length - seen / 2);
        i += ends[i] - starts[i];
    }
    return pairs;
}
