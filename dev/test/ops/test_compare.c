/* The checker checked: each kind of wrong result must be refused, a right one must pass. */
#include "dev/test/check.h"
#include "dev/test/compare.h"
#include "dev/reference/reference.h"
#include <unistd.h>

enum { N = 1000 };
static const Limits bf16_like = {0.004, 0.004}, fp32_like = {1e-5, 1e-5};

static bool passes(const float *got, const float *want, Limits limits) {
    return within(compare_floats(got, want, N), limits);
}

static void fill(float *want, float *got) {
    for (int i = 0; i < N; i++) got[i] = want[i] = sinf((float)i) + 0.01f * (float)i;
}

static void test_equal_passes(void) {
    float want[N], got[N];
    fill(want, got);
    CHECK(passes(got, want, fp32_like), "equal data");
    CHECK(passes(got, want, (Limits){0, 0}), "equal data at limit 0");
    for (int i = 0; i < N; i++) got[i] = want[i] * (1 + 5e-6f);
    CHECK(passes(got, want, fp32_like), "half the limit off everywhere");
    memset(want, 0, sizeof want);
    CHECK(passes(want, want, (Limits){0, 0}), "all zero on both sides");
}

static void test_wrong_element_fails(void) {
    float want[N], got[N];
    for (int i = 0; i < N; i += 111) {
        fill(want, got);
        got[i] += 0.5f;
        Deviation d = compare_floats(got, want, N);
        CHECK(!within(d, bf16_like), "element %d off by 0.5", i);
        CHECK(d.worst == i, "names element %lld, wrong is %d", (long long)d.worst, i);
    }
    fill(want, got);
    memmove(got + 1, got, (N - 1) * sizeof *got);
    CHECK(!passes(got, want, bf16_like), "shifted by one element");
    fill(want, got);
    for (int i = 0; i < N; i++) got[i] *= 1.01f;
    CHECK(!passes(got, want, bf16_like), "one percent off everywhere");
    memset(got, 0, sizeof got);
    CHECK(!passes(got, want, bf16_like), "all zero where values are due");
    CHECK(!passes(want, got, bf16_like), "values where zeros are due");
}

/* One wrong element among many right ones hides in the norm; the maximum must show it. */
static void test_lone_element_fails(void) {
    static float want[1 << 20], got[1 << 20];
    for (int i = 0; i < 1 << 20; i++) got[i] = want[i] = sinf((float)i);
    got[777777] = -got[777777];
    Deviation d = compare_floats(got, want, 1 << 20);
    CHECK(d.norm < bf16_like.norm, "the norm alone would pass: %g", d.norm);
    CHECK(!within(d, bf16_like), "one flipped sign in a million");
}

/* An error that is NaN must outlast those after it. */
static void test_worse(void) {
    CHECK(worse(1, 2) == 2 && worse(2, 1) == 2, "the larger of two numbers");
    CHECK(isnan(worse(0, NAN)), "a NaN after a number");
    CHECK(isnan(worse(NAN, 1)), "a number after a NaN");
}

/* What a test needs for itself is no check that passed. */
static void test_require(void) {
    const int passed = check_passed, failed = check_failed;
    const bool ok = REQUIRE(passed >= 0, "a file of the test's own");
    CHECK(ok && check_passed == passed && check_failed == failed, "REQUIRE counts as a check: %d, %d",
          check_passed, check_failed);
}

static void test_not_finite_fails(void) {
    const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
    float want[N], got[N];
    for (int v = 0; v < 4; v++) {
        for (int i = 0; i < N; i += N - 1) {
            fill(want, got);
            got[i] = values[v];
            CHECK(!passes(got, want, (Limits){1e30, 1e30}), "%g at element %d", values[v], i);
            CHECK(!passes(got, want, (Limits){INFINITY, INFINITY}), "%g at element %d, no limit", values[v],
                  i);
            CHECK(!passes(want, got, bf16_like), "a finite value where %g is due at element %d", values[v],
                  i);
            want[i] = values[v];
            CHECK(passes(got, want, fp32_like), "%g where %g is due", values[v], values[v]);
        }
    }
    fill(want, got);
    want[3] = INFINITY;
    got[3] = -INFINITY;
    CHECK(!passes(got, want, bf16_like), "-inf where inf is due");
}

/* What a kernel that skips an element leaves in a guarded buffer. */
static void test_unwritten_fails(DType dtype) {
    float want[N], got[N];
    fill(want, got);
    for (int i = 0; i < N; i++) want[i] = round_to(dtype, want[i]);
    Guarded g;
    if (!CHECK(guarded_alloc(&g, &ops_cpu, N * dtype_bytes(dtype), 16), "allocation")) return;
    const int missing[] = {0, N / 2, N - 1};
    for (int m = 0; m < 3; m++) {
        int at = missing[m];
        guarded_fill(&ops_cpu, g.data, POISON_VALUE, g.bytes);
        upload_floats(&ops_cpu, g.data, dtype, want, at);
        upload_floats(&ops_cpu, g.data + (size_t)(at + 1) * dtype_bytes(dtype), dtype, want + at + 1,
                      N - at - 1);
        download_floats(&ops_cpu, got, g.data, dtype, N);
        CHECK(!passes(got, want, (Limits){1e30, 1e30}), "element %d never written", at);
        CHECK(isnan(got[at]) && got[N / 3] == want[N / 3], "only element %d is poison", at);
    }
    upload_floats(&ops_cpu, g.data, dtype, want, N);
    download_floats(&ops_cpu, got, g.data, dtype, N);
    CHECK(passes(got, want, (Limits){0, 0}), "all written");
    CHECK(guarded_intact(&g), "guards after writing all of the data");
    guarded_free(&g);
}

static void test_broken_guard_fails(size_t shift) {
    Guarded g;
    if (!CHECK(guarded_alloc(&g, &ops_cpu, 100, shift), "allocation")) return;
    CHECK(guarded_intact(&g), "fresh guards");
    CHECK((uintptr_t)g.data % 256 == shift, "data at %zu past a multiple of 256", (uintptr_t)g.data % 256);
    char *places[] = {g.data - 1, g.data + g.bytes, g.base, g.data + g.bytes + GUARD_BYTES - 1};
    for (int i = 0; i < 4; i++) {
        const unsigned char wrong = GUARD_VALUE ^ 1, right = GUARD_VALUE;
        ops_cpu.device->upload(places[i], &wrong, 1);
        CHECK(!guarded_intact(&g), "a bit flipped at byte %td of the buffer", places[i] - g.base);
        ops_cpu.device->upload(places[i], &right, 1);
        CHECK(guarded_intact(&g), "restored");
    }
    guarded_free(&g);
}

static void test_bf16_rounding(void) {
    CHECK(round_bf16(1.0f) == 1.0f && round_bf16(-2.5f) == -2.5f, "exact values stay");
    CHECK(round_bf16(1.0f + 0x1p-8f) == 1.0f, "a tie goes to the even value below");
    CHECK(round_bf16(1.0f + 0x3p-8f) == 1.0f + 0x1p-6f, "a tie goes to the even value above");
    CHECK(round_bf16(1.0f + 0x1.01p-8f) == 1.0f + 0x1p-7f, "above a tie goes up");
    CHECK(isinf(round_bf16(3.4e38f)) && isinf(round_bf16(INFINITY)) && isnan(round_bf16(NAN)), "inf and NaN");
}

/* Writes n bytes to path and demands that the loader refuses them in one line that names the file and says
 * `word`. */
static void check_refused(const char *path, const char *bytes, size_t n, const char *word) {
    Reference reference;
    Error err = {0};
    FILE *file = fopen(path, "wb");
    if (!REQUIRE(file && fwrite(bytes, 1, n, file) == n && fclose(file) == 0, "cannot write %s", path))
        return;
    CHECK(!reference_load(&reference, path, &err), "a file with %s wrong was loaded", word);
    CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, path) && strstr(err.text, word) &&
              !strchr(err.text, '\n'),
          "message: %s", err.text);
    unlink(path);
}

/* Damaged recordings are refused, not compared with. */
static void test_damaged_reference(void) {
    char folder[] = "/tmp/compare_XXXXXX", path[64];
    Error err = {0};
    Reference reference;
    int64_t size = 0;
    char *bytes = reference_read("dev/reference/hd24.ref", &size, &err);
    if (!REQUIRE(bytes && mkdtemp(folder), "%s", err.text)) return;
    bytes = realloc(bytes, (size_t)size + 4);
    if (!bytes) abort();
    snprintf(path, sizeof path, "%s/damaged.ref", folder);
    CHECK(!reference_load(&reference, path, &err) && strstr(err.text, path), "missing file: %s", err.text);
    check_refused(path, bytes, 0, "header");
    check_refused(path, bytes, 127, "header");
    check_refused(path, bytes, 200, "ends at");
    check_refused(path, bytes, (size_t)size - 1, "ends at");
    check_refused(path, bytes, (size_t)size + 4, "records end");
    bytes[128 + 56] = 0; /* the first dimension of the first record */
    check_refused(path, bytes, (size_t)size, "dimension");
    bytes[0] ^= 1;
    check_refused(path, bytes, (size_t)size, "magic");
    free(bytes);
    rmdir(folder);
}

int main(void) {
    Error err = {0};
    if (!ops_cpu.device->open(0, &err)) die(&err);
    test_equal_passes();
    test_wrong_element_fails();
    test_lone_element_fails();
    test_worse();
    test_require();
    test_not_finite_fails();
    test_unwritten_fails(DTYPE_F32);
    test_unwritten_fails(DTYPE_BF16);
    test_broken_guard_fails(0);
    test_broken_guard_fails(16);
    test_bf16_rounding();
    test_damaged_reference();
    return check_finish("compare");
}
