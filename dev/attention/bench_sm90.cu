/* Checks and times the sm_90a attention kernels of this folder alone, on a Hopper card: make dev &&
 * build/bench_sm90
 *
 * Checks: forward (every variant) and backward against a naive reference in double on the same bf16 inputs;
 * outputs hold NaN before, guard bands around every buffer are compared after, everything runs twice and must
 * give the same bits; scores that outgrow the frozen maximum; NaN and inf inputs. One line per check; exit
 * code 1 if any fails. A wait inside a kernel that takes seconds ends it with an error (BOUNDED_WAIT) and the
 * program stops. Timing: B*T = 65536, NH*HD = 1536, random normal data, the median over a sustained run after
 * a warm-up. TFLOP/s counts causal as half (forward 4*B*NH*T*T*HD / 2) and backward as 2.5 times forward.
 * Arguments: quick (short timing), check (no timing), time (no checks). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <vector>
#include "../../llmc/cuda/attention/sm90.cuh"
#include "../../llmc/cuda/cuda_common.cuh"
#include "reference_gpu.cuh"

/* ---- what cuda_common.cuh declares, so that this program needs no other file ---- */

cudaStream_t main_stream;

void cuda_check_(cudaError_t status, const char *expr, const char *file, int line) {
    if (status == cudaSuccess) return;
    printf("FAIL CUDA error at %s:%d: %s: %s\n", file, line, expr, cudaGetErrorString(status));
    fflush(stdout);
    exit(1);
}
void launch_check(const char *kernel) {
    cuda_check_(cudaGetLastError(), kernel, __FILE__, __LINE__);
}
int cuda_sm_count(void) {
    static int count;
    if (!count) CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
}

static int failures;

static const char *verdict(bool ok) {
    failures += !ok;
    return ok ? "ok  " : "FAIL";
}

/* bf16 rounding of P, dS and of the results gives about 1.6e-3 (2^-9 / sqrt(3) for each, independent). */
static bool within(Errors e) {
    return e.all <= 5e-3 && e.worst <= 3e-2;
}

/* Of the gradients, the first rows of dQ are all but 0 under a causal mask (row 0: exactly), while D keeps
 * the rounding of O, 2^-9 of a row that has not averaged yet: any kernel that reads O in bf16 shows it. */
static bool gradient_within(Errors e, bool causal) {
    return e.all <= 5e-3 && e.worst <= (causal ? 2e-1 : 3e-2);
}

/* ---- a problem: its buffers and its reference ---- */

typedef struct Problem {
    Shape s;
    Buffer qkv, dout, out, lse, dqkv, scratch;
    Buffer out2, lse2, dqkv2;                     /* of a second run */
    double *ref_out, *ref_lse, *ref_d, *ref_dqkv; /* the first only if there is a reference */
} Problem;

static int64_t channels(Shape s) {
    return (int64_t)s.NH * s.HD;
}

static Problem problem_alloc(Shape s, bool reference) {
    const int64_t N = (int64_t)s.B * s.T, C = channels(s);
    Problem p = {};
    p.s = s;
    p.qkv = buffer_alloc(N * 3 * C * 2);
    p.dout = buffer_alloc(N * C * 2);
    p.out = buffer_alloc(N * C * 2);
    p.lse = buffer_alloc(N * s.NH * 4);
    p.dqkv = buffer_alloc(N * 3 * C * 2);
    p.scratch = buffer_alloc(std::max(attention_backward_sm90_scratch_bytes(s.B, s.T, s.NH),
                                      attention_backward_sm90_fused_scratch_bytes(s.B, s.T, s.NH)));
    fill(p.qkv, 1);
    fill(p.dout, 2);
    if (!reference) return p;
    p.out2 = buffer_alloc(N * C * 2);
    p.lse2 = buffer_alloc(N * s.NH * 4);
    p.dqkv2 = buffer_alloc(N * 3 * C * 2);
    CUDA_CHECK(cudaMalloc(&p.ref_out, N * C * 8));
    CUDA_CHECK(cudaMalloc(&p.ref_lse, N * s.NH * 8));
    CUDA_CHECK(cudaMalloc(&p.ref_d, N * s.NH * 8));
    CUDA_CHECK(cudaMalloc(&p.ref_dqkv, N * 3 * C * 8));
    return p;
}

static void problem_free(Problem *p) {
    for (Buffer b : {p->qkv, p->dout, p->out, p->lse, p->dqkv, p->scratch, p->out2, p->lse2, p->dqkv2})
        CUDA_CHECK(cudaFree(b.base));
    for (double *d : {p->ref_out, p->ref_lse, p->ref_d, p->ref_dqkv}) CUDA_CHECK(cudaFree(d));
}

static void reference(Problem *p) {
    const Shape s = p->s;
    const dim3 grid(s.T, s.B * s.NH);
    const bf16 *qkv = (bf16 *)p->qkv.data, *dout = (bf16 *)p->dout.data;
    const int bytes = 2 * s.T * 8;
    CUDA_CHECK(cudaFuncSetAttribute(reference_forward, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CUDA_CHECK(cudaFuncSetAttribute(reference_backward, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reference_forward<<<grid, REFERENCE_THREADS, bytes, main_stream>>>(p->ref_out, p->ref_lse, qkv, s);
    reference_d<<<grid, 1, 0, main_stream>>>(p->ref_d, dout, p->ref_out, s);
    for (int keys = 0; keys < 2; keys++)
        reference_backward<<<grid, REFERENCE_THREADS, bytes, main_stream>>>(p->ref_dqkv, dout, qkv,
                                                                            p->ref_lse, p->ref_d, s, keys);
    launch_check("reference");
    CUDA_CHECK(cudaDeviceSynchronize());
}

typedef struct Variant {
    const char *name;
    Sm90Softmax softmax;
    Sm90Order order;
} Variant;

static const Variant VARIANTS[] = {
  /* the first is attention_forward_sm90 */
    {"frozen, turns", SM90_FROZEN, SM90_TURNS},
    {"frozen, free",  SM90_FROZEN, SM90_FREE },
    {"online, turns", SM90_ONLINE, SM90_TURNS},
    {"online, free",  SM90_ONLINE, SM90_FREE },
};
enum { N_VARIANTS = sizeof(VARIANTS) / sizeof(VARIANTS[0]) };

static void forward(const Problem *p, Buffer out, Buffer lse, const Variant *v) {
    attention_forward_sm90_variant(out.data, (float *)lse.data, p->qkv.data, p->s.B, p->s.T, p->s.NH, p->s.HD,
                                   p->s.causal, v->softmax, v->order);
}
static void backward(const Problem *p, Buffer dqkv, bool fused) {
    const Shape s = p->s;
    if (fused)
        attention_backward_sm90_fused(dqkv.data, p->dout.data, p->out.data, p->qkv.data, (float *)p->lse.data,
                                      p->scratch.data, s.B, s.T, s.NH, s.causal);
    else
        attention_backward_sm90(dqkv.data, p->dout.data, p->out.data, p->qkv.data, (float *)p->lse.data,
                                p->scratch.data, s.B, s.T, s.NH, s.HD, s.causal);
}

/* ---- checks ---- */

static void print_shape(const char *what, Shape s) {
    printf("%-22s B %d T %4d NH %2d HD %3d %-6s ", what, s.B, s.T, s.NH, s.HD, s.causal ? "causal" : "full");
}

static double lse_error(const Problem *p) {
    const auto got = download<float>(p->lse);
    std::vector<double> want(got.size());
    CUDA_CHECK(cudaMemcpy(want.data(), p->ref_lse, want.size() * 8, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double e = fabs(got[i] - want[i]) / (1 + fabs(want[i]));
        worst = e <= worst ? worst : isfinite(e) ? e : INFINITY;
    }
    return worst;
}

static void check_forward(Problem *p, const Variant *v) {
    buffer_poison(p->out), buffer_poison(p->lse), buffer_poison(p->out2), buffer_poison(p->lse2);
    forward(p, p->out, p->lse, v);
    CUDA_CHECK(cudaDeviceSynchronize());
    forward(p, p->out2, p->lse2, v);
    CUDA_CHECK(cudaDeviceSynchronize());
    const Errors e = compare(p->out.data, p->ref_out, (int64_t)p->s.B * p->s.T * p->s.NH, p->s.HD, 1, -1);
    const double lse = lse_error(p);
    const bool repeats = same_bits(p->out, p->out2) && same_bits(p->lse, p->lse2);
    const bool guards = guards_intact(p->qkv) && guards_intact(p->out) && guards_intact(p->lse);
    print_shape(v->name, p->s);
    printf("%s out %.1e worst row %.1e lse %.1e%s%s\n",
           verdict(within(e) && lse <= 2e-5 && repeats && guards), e.all, e.worst, lse,
           repeats ? "" : " NOT REPEATABLE", guards ? "" : " WROTE OUTSIDE");
    fflush(stdout);
}

/* Uses out and lse as the last forward left them. */
static void check_backward(Problem *p, bool fused) {
    for (Buffer b : {p->dqkv, p->dqkv2, p->scratch}) buffer_poison(b);
    backward(p, p->dqkv, fused);
    CUDA_CHECK(cudaDeviceSynchronize());
    buffer_poison(p->scratch);
    backward(p, p->dqkv2, fused);
    CUDA_CHECK(cudaDeviceSynchronize());
    const bool repeats = same_bits(p->dqkv, p->dqkv2);
    bool guards = true, good = true;
    for (Buffer b : {p->qkv, p->dout, p->out, p->lse, p->dqkv, p->scratch})
        guards = guards_intact(b) && guards;
    Errors e[3];
    for (int part = 0; part < 3; part++) {
        e[part] = compare(p->dqkv.data, p->ref_dqkv, (int64_t)p->s.B * p->s.T * 3 * p->s.NH, p->s.HD, p->s.NH,
                          part);
        good = good && gradient_within(e[part], p->s.causal);
    }
    print_shape(fused ? "backward, fused" : "backward", p->s);
    printf("%s dq %.1e dk %.1e dv %.1e worst row %.1e %.1e %.1e%s%s\n", verdict(good && repeats && guards),
           e[0].all, e[1].all, e[2].all, e[0].worst, e[1].worst, e[2].worst, repeats ? "" : " NOT REPEATABLE",
           guards ? "" : " WROTE OUTSIDE");
    fflush(stdout);
}

static void set_bf16(Buffer b, int64_t at, float x) {
    const bf16 value = __float2bfloat16_rn(x);
    CUDA_CHECK(cudaMemcpy(b.data + at * 2, &value, 2, cudaMemcpyHostToDevice));
}

/* Element d of q, k or v (part) of position t of head 0 of sequence 0. */
static int64_t qkv_at(Shape s, int t, int part, int d) {
    return ((int64_t)t * 3 + part) * channels(s) + d;
}

/* Every query points the same way; key `peak` is so long that its score is 200 nats above all others, far
 * from the diagonal (or the end), where the frozen maximum does not see it. Rows whose first block does not
 * hold it must be the bits of the running maximum: they were done again. */
static void check_growth(int HD, bool causal, int peak) {
    const Shape s = {1, 1000, 1, HD, causal};
    Problem p = problem_alloc(s, true);
    for (int t = 0; t < s.T; t++) set_bf16(p.qkv, qkv_at(s, t, 0, 0), 8.0f);
    set_bf16(p.qkv, qkv_at(s, peak, 1, 0), 25.0f * sqrtf((float)HD));
    reference(&p);
    check_forward(&p, &VARIANTS[2]);
    const auto online = download<bf16>(p.out);
    check_forward(&p, &VARIANTS[0]);
    const auto frozen = download<bf16>(p.out);
    const bool again =
        memcmp(&online[256 * HD], &frozen[256 * HD], (causal ? 1000 - 256 : 300) * HD * 2) == 0;
    print_shape("redo took place", s);
    printf("%s key %d\n", verdict(again), peak);
    problem_free(&p);
}

/* All scores equal: every row is the mean of the values it sees. */
static void check_equal(int HD, bool causal) {
    const Shape s = {1, 1000, 1, HD, causal};
    Problem p = problem_alloc(s, true);
    for (int t = 0; t < s.T; t++) CUDA_CHECK(cudaMemset(p.qkv.data + qkv_at(s, t, 0, 0) * 2, 0, HD * 2));
    reference(&p);
    check_forward(&p, &VARIANTS[0]);
    check_backward(&p, false);
    problem_free(&p);
}

/* x (NaN or inf) in a key of head 0: every row of head 0 that sees it is NaN, the rows before it are not, and
 * head 1 has the bits that it has without. */
static void check_propagation(int HD, const Variant *v, float x) {
    const Shape s = {1, 1000, 2, HD, true};
    const int bad = 300, first = isnan(x) ? bad : s.T; /* -inf and inf scores leave some rows finite */
    Problem p = problem_alloc(s, true);
    forward(&p, p.out, p.lse, v);
    const auto clean = download<uint16_t>(p.out);
    set_bf16(p.qkv, qkv_at(s, bad, 1, 3), x);
    forward(&p, p.out, p.lse, v);
    const auto out = download<uint16_t>(p.out);
    bool propagated = true, contained = true;
    int n_nan = 0;
    for (int t = 0; t < s.T; t++)
        for (int d = 0; d < HD; d++) {
            const int at = t * 2 * HD + d;
            const bool nan = (out[at] & 0x7fff) > 0x7f80;
            n_nan += nan;
            propagated = propagated && (t < first || nan);
            contained = contained && (t >= bad || !nan) && out[at + HD] == clean[at + HD];
        }
    print_shape(v->name, s);
    printf("%s %s in key %d reaches the rows that see it and no other\n",
           verdict(propagated && contained && n_nan > 0), isnan(x) ? "NaN" : "inf", bad);
    backward(&p, p.dqkv, false);
    CUDA_CHECK(cudaDeviceSynchronize()); /* it ends */
    problem_free(&p);
}

/* The comparison itself: a NaN, a wrong row and an unwritten row must be seen. */
static void check_checker(void) {
    const Shape s = {1, 64, 1, 64, true};
    Problem p = problem_alloc(s, true);
    reference(&p);
    forward(&p, p.out, p.lse, &VARIANTS[0]);
    bool seen = within(compare(p.out.data, p.ref_out, 64, 64, 1, -1));
    set_bf16(p.out, 5 * 64 + 3, NAN);
    seen = seen && !within(compare(p.out.data, p.ref_out, 64, 64, 1, -1));
    forward(&p, p.out, p.lse, &VARIANTS[0]);
    set_bf16(p.out, 5 * 64 + 3, 1.0f);
    seen = seen && !within(compare(p.out.data, p.ref_out, 64, 64, 1, -1));
    CUDA_CHECK(cudaMemset(p.out.base, 0, 1));
    seen = seen && !guards_intact(p.out);
    print_shape("the checks see faults", s);
    printf("%s\n", verdict(seen));
    problem_free(&p);
}

static const int CHECK_SHAPES[][3] = {
  /* B, T, NH */
    {1, 1,    1 },
    {2, 63,   2 },
    {1, 64,   1 },
    {1, 65,   3 },
    {1, 192,  2 },
    {2, 200,  2 },
    {1, 1000, 2 },
    {1, 1023, 1 },
    {2, 1024, 12},
    {1, 4096, 2 },
};

static void check_all(int HD, bool causal) {
    for (const auto &shape : CHECK_SHAPES) {
        const Shape s = {shape[0], shape[1], shape[2], HD, causal};
        Problem p = problem_alloc(s, true);
        reference(&p);
        for (int v = N_VARIANTS - 1; v >= 0; v--) check_forward(&p, &VARIANTS[v]);
        check_backward(&p, false);
        problem_free(&p);
    }
    check_growth(HD, causal, 3);
    check_equal(HD, causal);
    for (int v = 0; causal && v < N_VARIANTS; v++) {
        check_propagation(HD, &VARIANTS[v], NAN);
        check_propagation(HD, &VARIANTS[v], INFINITY);
    }
}

/* Apart, and last: the newest kernel. The last shape has more heads than the ring of dQ sums has slots. */
static void check_fused(bool causal) {
    auto check = [&](int B, int T, int NH) {
        const Shape s = {B, T, NH, 64, causal};
        Problem p = problem_alloc(s, true);
        reference(&p);
        forward(&p, p.out, p.lse, &VARIANTS[0]);
        check_backward(&p, true);
        problem_free(&p);
    };
    for (const auto &shape : CHECK_SHAPES) check(shape[0], shape[1], shape[2]);
    check(25, 250, 24);
}

/* ---- timing ---- */

/* What is timed: a forward variant, or backward, or one of its passes. */
enum { BACKWARD = N_VARIANTS, BACKWARD_DQ, BACKWARD_DKV, BACKWARD_FUSED, N_TIMED };
static const char *const TIMED_NAMES[] = {
    "forward, frozen, turns", "forward, frozen, free", "forward, online, turns", "forward, online, free",
    "backward, split",        "backward, dQ pass",     "backward, dK, dV pass",  "backward, fused"};

static void run(const Problem *p, int what) {
    const Shape s = p->s;
    if (what < N_VARIANTS) forward(p, p->out, p->lse, &VARIANTS[what]);
    if (what == BACKWARD || what == BACKWARD_FUSED) backward(p, p->dqkv, what == BACKWARD_FUSED);
    if (what == BACKWARD_DQ)
        attention_backward_sm90_dq(p->dqkv.data, p->dout.data, p->out.data, p->qkv.data, (float *)p->lse.data,
                                   p->scratch.data, s.B, s.T, s.NH, s.HD, s.causal);
    if (what == BACKWARD_DKV)
        attention_backward_sm90_dkv(p->dqkv.data, p->dout.data, p->qkv.data, p->scratch.data, s.B, s.T, s.NH,
                                    s.HD, s.causal);
}

/* Median milliseconds of one run, after as long a warm-up. */
static double time_ms(const Problem *p, int what, double seconds) {
    enum { MAX_RUNS = 2000 };
    static cudaEvent_t events[MAX_RUNS + 1];
    if (!events[0])
        for (cudaEvent_t &e : events) CUDA_CHECK(cudaEventCreate(&e));
    auto measure = [&](int n) {
        CUDA_CHECK(cudaEventRecord(events[0], main_stream));
        for (int i = 0; i < n; i++) {
            run(p, what);
            CUDA_CHECK(cudaEventRecord(events[i + 1], main_stream));
        }
        CUDA_CHECK(cudaEventSynchronize(events[n]));
        std::vector<float> ms(n);
        for (int i = 0; i < n; i++) CUDA_CHECK(cudaEventElapsedTime(&ms[i], events[i], events[i + 1]));
        std::sort(ms.begin(), ms.end());
        return (double)ms[n / 2];
    };
    measure(1);
    const int n = std::min((int)MAX_RUNS, std::max(3, (int)(seconds * 1e3 / measure(2))));
    measure(n);
    return measure(n);
}

/* The rows [begin, end) of what can be timed, one column for each T. */
static void time_table(int HD, bool causal, double seconds, int begin, int end) {
    static const int LENGTHS[] = {1024, 2048, 4096, 8192, 16384, 32768};
    static const double PRODUCTS[N_TIMED] = {1, 1, 1, 1, 2.5, 1.5, 2, 2.5}; /* over those of forward */
    double rate[N_TIMED][6] = {};
    const int step = causal ? 1 : 2;
    for (int l = 0; l < 6; l += step) {
        const int T = LENGTHS[l];
        const Shape s = {65536 / T, T, 1536 / HD, HD, causal};
        Problem p = problem_alloc(s, false);
        forward(&p, p.out, p.lse, &VARIANTS[0]);
        const double flops = 4.0 * s.B * s.NH * (double)T * T * HD / (causal ? 2 : 1);
        for (int what = begin; what < end; what++) {
            const bool main = what == 0 || what == BACKWARD || what == BACKWARD_FUSED;
            rate[what][l] = PRODUCTS[what] * flops / time_ms(&p, what, main ? seconds : seconds / 2) * 1e-9;
        }
        problem_free(&p);
    }
    printf("\nHD %3d %-6s TFLOP/s sustained, T =", HD, causal ? "causal" : "full");
    for (int l = 0; l < 6; l += step) printf("%8d", LENGTHS[l]);
    for (int what = begin; what < end; what++) {
        printf("\n%-34s", TIMED_NAMES[what]);
        for (int l = 0; l < 6; l += step) printf("%8.0f", rate[what][l]);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const bool checks = strcmp(mode, "time"), times = strcmp(mode, "check");
    const double seconds = strcmp(mode, "quick") ? 0.3 : 0.06;
    cudaDeviceProp device;
    CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
    printf("%s, %d SMs\n", device.name, cuda_sm_count());
    if (device.major != 9) {
        printf("error: this card has compute capability %d.%d; these kernels need 9.0\n", device.major,
               device.minor);
        return 2;
    }
    CUDA_CHECK(cudaStreamCreate(&main_stream));
    if (checks) check_checker();
    for (int i = 0; checks && i < 4; i++) check_all(i < 2 ? 64 : 128, i % 2 == 0);
    if (failures) printf("\n%d checks failed: the times below are those of wrong results\n", failures);
    for (int i = 0; times && i < 4; i++) time_table(i < 2 ? 64 : 128, i % 2 == 0, seconds, 0, BACKWARD_FUSED);
    for (int i = 0; checks && i < 2; i++) check_fused(i == 0);
    for (int i = 0; times && i < 2; i++) time_table(64, i == 0, seconds, BACKWARD_FUSED, N_TIMED);
    printf("\n%d checks failed\n", failures);
    return failures != 0;
}
