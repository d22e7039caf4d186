/* In place of dev/attention/variants.cu, reference.cu and lab_ladders.cu where the lab is built without CUDA. */
#include "dev/attention/attention.h"

const Variant *const cuda_variants = NULL, *const ladder_variants = NULL;

int lab_compute_capability(void) {
    return 0;
}
const char *lab_cuda_versions(void) {
    return "";
}
void lab_profile(bool on) {
    (void)on;
}
void attention_reference_gpu(const AttentionReference *r) {
    attention_reference_cpu(r);
}
