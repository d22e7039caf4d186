/* make soak: thousands of kills, signals, damaged files, flag combinations and runs on several ranks against the program,
 * and a table of what came of them. Ends with 'soak: N passed, N failed, N skipped' and exit code 1 on any finding.
 *
 * Usage: build/soak [CAMPAIGN [CASE]], from the repository root. From the environment: KILLS, TERMS, DAMAGED, FLAGS,
 * RANKS (cases of each campaign), JOBS, SEED, PROGRAM, SANITIZED_PROGRAM. */
#include "llmc/base/clock.h"
#include "llmc/base/random.h"
#include "soak.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_JOBS = 64, STUCK_SECONDS = 600 };

char soak_folder[64] = "/tmp/llmc_soak_XXXXXX";
const char *soak_program, *sanitized_program;
static uint64_t seed, state;
static int jobs;
static int64_t left_out;
static const char *own_name;

static const Campaign *const campaigns[] = {&kill_campaign, &term_campaign, &damage_campaign, &flags_campaign,
                                            &ranks_campaign};
enum { N_CAMPAIGNS = sizeof campaigns / sizeof *campaigns };

/* Of one worker, in memory that it shares with the parent. */
typedef struct Progress {
    int64_t number; /* of the case that runs */
    int64_t done, counts[N_COUNTS];
} Progress;
static Progress *progress;
static const Campaign *running;
static int own_worker;

/* Sanitizers: a wild size is a failed allocation, as it is without them. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0:allocator_may_return_null=1";
}

/* ---- what the campaigns call ---- */

void finding(const char *format, ...) {
    va_list args;
    printf("FINDING %s, case %lld, seed %llu: ", running ? running->name : "set-up",
           running ? (long long)progress[own_worker].number : 0, (unsigned long long)seed);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

uint64_t draw(void) {
    return random_mix(state += 0x9e3779b97f4a7c15u);
}

int64_t draw_below(int64_t n) {
    return (int64_t)(draw() % (uint64_t)n);
}

void must_run(const char *format, ...) {
    char command[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0) finding("failed: %s", command);
}

bool try_read_whole(const char *path, char **bytes, size_t *n) {
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    *bytes = malloc(*n + 1);
    const bool good = *bytes && fread(*bytes, 1, *n, file) == *n;
    fclose(file);
    if (good) (*bytes)[*n] = '\0';
    return good;
}

char *read_whole(const char *path, size_t *n) {
    char *bytes;
    if (!try_read_whole(path, &bytes, n)) finding("%s: %s", path, strerror(errno));
    return bytes;
}

void write_whole(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        finding("%s: %s", path, strerror(errno));
}

void check_same_state(const char *folder, const char *expected, int step, const char *said) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int k = 0; k < 2; k++) {
        char path[2][PATH_BYTES + 64], *bytes[2];
        size_t n[2];
        for (int i = 0; i < 2; i++) {
            snprintf(path[i], sizeof path[i], "%s/step_%08d/%s", i ? expected : folder, step, files[k]);
            bytes[i] = read_whole(path[i], &n[i]);
        }
        if (n[0] != n[1] || memcmp(bytes[0], bytes[1], n[0]) != 0)
            finding("%s differs from %s%s", path[0], path[1], said);
        free(bytes[0]), free(bytes[1]);
    }
}

int start_program(const char *program, char *const argv[], const char *out_folder) {
    const pid_t child = fork();
    if (child < 0) finding("fork: %s", strerror(errno));
    if (child > 0) return child;
    char path[PATH_BYTES];
    for (int fd = 1; fd <= 2; fd++) {
        snprintf(path, sizeof path, "%s/%s", out_folder, fd == 1 ? "out" : "err");
        dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644), fd);
    }
    dup2(open("/dev/null", O_RDONLY), 0);
    setenv("ASAN_OPTIONS", __asan_default_options(), 1);
    execv(program, argv);
    _exit(127);
}

/* ---- workers ---- */

static void work(const Campaign *campaign, int worker, int64_t first, int64_t end) {
    char path[PATH_BYTES];
    Progress *own = &progress[worker];
    running = campaign, own_worker = worker;
    /* What the readers warn of, and a sanitizer's report. */
    snprintf(path, sizeof path, "%s/worker_%d.err", soak_folder, worker);
    dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644), 2);
    if (campaign->begin) campaign->begin(worker);
    for (int64_t i = first + worker; i < end; i += jobs) {
        own->number = i;
        state = seed * 0x2545f4914f6cdd1du ^ ((uint64_t)i << 8) ^ (uint64_t)campaign->name[0];
        if (ftruncate(2, 0) != 0) finding("%s: %s", path, strerror(errno));
        alarm(STUCK_SECONDS);
        campaign->run(worker, i, own->counts);
        own->done++;
    }
    _exit(0);
}

static int64_t sum_done(void) {
    int64_t sum = 0;
    for (int w = 0; w < jobs; w++) sum += progress[w].done;
    return sum;
}

/* A worker that ended otherwise than with 0 has found something, or is the finding. */
static bool report_death(const Campaign *campaign, int worker, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) return true; /* by us, after another's finding */
    if (WIFSIGNALED(status) || WEXITSTATUS(status) != 1)
        printf("FINDING %s, case %lld, seed %llu: ended by %s %d%s\n", campaign->name,
               (long long)progress[worker].number, (unsigned long long)seed,
               WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
               WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? " (stuck)" : "");
    printf("  again: SEED=%llu %s %s %lld; what it wrote: %s/worker_%d.err\n", (unsigned long long)seed,
           own_name, campaign->name, (long long)progress[worker].number, soak_folder, worker);
    char command[PATH_BYTES];
    snprintf(command, sizeof command, "head -n 30 %s/worker_%d.err", soak_folder, worker);
    fflush(stdout);
    if (system(command) != 0) printf("  head cannot read it\n");
    return false;
}

static bool wait_for(const Campaign *campaign, pid_t workers[], int64_t cases, double begun) {
    bool good = true;
    double said = begun;
    for (int left = jobs; left > 0;) {
        int status;
        const pid_t child = waitpid(-1, &status, WNOHANG);
        if (child <= 0) nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        for (int w = 0; child > 0 && w < jobs; w++) {
            if (workers[w] != child) continue;
            workers[w] = 0;
            left--;
            if (report_death(campaign, w, status)) continue;
            good = false;
            for (int other = 0; other < jobs; other++)
                if (workers[other]) kill(workers[other], SIGTERM);
        }
        if (clock_seconds() - said > 5) {
            said = clock_seconds();
            printf("  %s: %lld of %lld, %.0f s\n", campaign->name, (long long)sum_done(), (long long)cases,
                   said - begun);
            fflush(stdout);
        }
    }
    return good;
}

static bool run_campaign(const Campaign *campaign, int64_t first, int64_t end) {
    pid_t workers[MAX_JOBS];
    const double begun = clock_seconds();
    memset(progress, 0, MAX_JOBS * sizeof *progress);
    if (campaign->prepare) campaign->prepare();
    fflush(stdout);
    for (int w = 0; w < jobs; w++)
        if ((workers[w] = fork()) == 0) work(campaign, w, first, end);
    const bool good = wait_for(campaign, workers, end - first, begun);
    printf("%-8s %7lld cases, %4.0f s:", campaign->name, (long long)sum_done(), clock_seconds() - begun);
    for (int k = 0; k < N_COUNTS && campaign->count_names[k]; k++) {
        int64_t sum = 0;
        for (int w = 0; w < jobs; w++) sum += progress[w].counts[k];
        if (strcmp(campaign->count_names[k], "left out") == 0) left_out += sum;
        printf("%s %lld %s", k ? "," : "", (long long)sum, campaign->count_names[k]);
    }
    printf("\n");
    return good;
}

/* ---- the soak ---- */

static int64_t number_from(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    char *end;
    if (!text || !*text) return otherwise;
    const int64_t value = strtoll(text, &end, 10);
    if (!*end && value >= 0) return value;
    fprintf(stderr, "error: %s: expected a whole number, found '%s'\n", variable, text);
    exit(2);
}

static const char *program_from(const char *variable, const char *otherwise) {
    const char *name = getenv(variable);
    char *path = realpath(name && *name ? name : otherwise, NULL);
    if (path) return path;
    fprintf(stderr, "error: %s is missing; hint: make soak\n", name && *name ? name : otherwise);
    exit(2);
}

static void set_up(char **argv) {
    if (!getenv("OMP_NUM_THREADS")) { /* read before main(), so once more from the start */
        setenv("OMP_NUM_THREADS", "1", 1);
        execv("/proc/self/exe", argv);
    }
    soak_program = program_from("PROGRAM", "./train_gpt2");
    sanitized_program = program_from("SANITIZED_PROGRAM", soak_program);
    seed = (uint64_t)number_from("SEED", (int64_t)time(NULL));
    jobs = (int)number_from("JOBS", sysconf(_SC_NPROCESSORS_ONLN));
    if (jobs < 1) jobs = 1;
    if (jobs > MAX_JOBS) jobs = MAX_JOBS;
    progress =
        mmap(NULL, MAX_JOBS * sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED || !mkdtemp(soak_folder)) {
        perror("error: soak");
        exit(1);
    }
}

int main(int argc, char **argv) {
    own_name = argv[0];
    set_up(argv);
    printf("soak: seed %llu, %d at once, in %s\n", (unsigned long long)seed, jobs, soak_folder);
    int64_t passed = 0, failed = 0;
    for (int c = 0; c < N_CAMPAIGNS; c++) {
        const Campaign *campaign = campaigns[c];
        int64_t first = 0, end = number_from(campaign->variable, campaign->default_cases);
        if (argc > 1 && strcmp(argv[1], campaign->name) != 0) continue;
        if (argc > 2) first = strtoll(argv[2], NULL, 10), end = first + 1, jobs = 1;
        if (end == first) continue;
        if (!run_campaign(campaign, first, end)) failed++;
        passed += sum_done();
        if (failed) break;
    }
    char command[PATH_BYTES];
    snprintf(command, sizeof command, "rm -rf %s", soak_folder);
    if (!failed && system(command) != 0) failed++;
    printf("soak: %lld passed, %lld failed, %lld skipped\n", (long long)(passed - left_out),
           (long long)failed, (long long)left_out);
    return failed > 0 || passed == 0;
}
