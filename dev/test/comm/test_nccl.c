/* NCCL without a card: where it is looked for, what is said where it is missing, too old or stuck, and a Comm's calls over a
 * library that stands in for it (dev/test/stubs/fake_nccl.c). */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include "dev/test/comm_case.h"
#include "dev/test/folder.h"
#include "dev/test/shared_device.h"
#include "llmc/comm/nccl.h"

/* Compiles the stand-in with the C compiler's `flags`; false where there is none. */
static bool build_fake(const char *name, const char *flags) {
    const char *cc = getenv("CC");
    char command[1000];
    snprintf(command, sizeof command,
             "%s -std=c11 -D_GNU_SOURCE -I. -O1 -shared -fPIC %s -o %s dev/test/stubs/fake_nccl.c",
             cc ? cc : "cc", flags, path_of(name));
    return REQUIRE(system(command) == 0, "%s", command);
}

/* ---- what is said ---- */

typedef struct Wrong {
    const char *library, *mode, *said;
} Wrong;

/* Every rank has the line, with the first rank's name; nobody waits. */
static void open_wrong(Rendezvous *r, const void *context) {
    const Wrong *w = context;
    Error err = {0};
    setenv("NCCL_LIBRARY", strncmp(w->library, "fake", 4) == 0 ? path_of(w->library) : w->library, 1);
    setenv("FAKE_NCCL", w->mode, 1);
    unsetenv("NCCL_NVLS_ENABLE");
    if (strcmp(w->mode, "stuck_start") == 0) nccl_seconds = 0.3;
    Comm *comm = comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    const char *multicast = getenv("NCCL_NVLS_ENABLE");
    CHECK(multicast && strcmp(multicast, "0") == 0, "NVLink's multicast is on");
    CHECK(!comm && err.exit_code == 1 && strncmp(err.text, "rank 0 (", 8) == 0 && strstr(err.text, w->said),
          "%s, %s: %s", w->library, w->mode, err.text);
}

static void test_wrong(void) {
    static const Wrong all[] = {
        {"/nonexistent/libnccl.so.2", "",            "NCCL_LIBRARY: /nonexistent/libnccl.so.2"                   },
        {"dev/test/check.h",          "",            "NCCL_LIBRARY: "                                            },
        {"libm.so.6",                 "",            "libm.so.6 is not NCCL"                                     },
        {"fake_old.so",               "",            "NCCL 2.28.9, "                                             },
        {"fake_old.so",               "",            "it has no ncclCommDestroy"                                 },
        {"fake.so",                   "old",         "NCCL 2.17.99, "                                            },
        {"fake.so",                   "old",         "expected 2.18 or later"                                    },
        {"fake.so",                   "no_start",    "ncclCommInitRankConfig: invalid argument: the fake says so"},
        {"fake.so",                   "no_room",     "(size 9637888); hint: a container has 64 MB there"         },
        {"fake.so",                   "stuck_start", "ncclCommInitRankConfig is not done within"                 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) BESIDE(run_ranks(2, open_wrong, &all[i], NULL));
    beside_wait(NULL);
}

static const char *said_path(const char *mode, int rank) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", mode, rank);
    return path_of(name);
}

/* What this process writes there goes to a file. */
static void divert(int descriptor, const char *path) {
    dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), descriptor);
}

static void read_said(char *said, size_t size, const char *path) {
    FILE *file = fopen(path, "r");
    said[file ? fread(said, 1, size - 1, file) : 0] = '\0';
    if (file) fclose(file);
}

/* A call that fails ends the process: one line on stderr. */
static void open_broken(Rendezvous *r, const void *context) {
    Error err = {0};
    divert(STDERR_FILENO, said_path(context, r->ranks.rank));
    setenv("FAKE_NCCL", context, 1);
    if (strcmp(context, "stuck") == 0) nccl_seconds = 0.3;
    comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    CHECK(false, "rank %d goes on: %s", r->ranks.rank, err.text);
}

static void test_broken(const char *mode, const char *line) {
    int statuses[2];
    run_ranks(2, open_broken, mode, statuses);
    for (int rank = 0; rank < 2; rank++) {
        char said[1000];
        read_said(said, sizeof said, said_path(mode, rank));
        CHECK(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 1 && strcmp(said, line) == 0,
              "%s: status %x, %s", mode, statuses[rank], said);
    }
}

/* ---- the stand-in ---- */

static void test_calls_over_fake(void) {
    for (int n = 1; n <= 3; n++) {
        const Case c = {.device = &device_cpu, .n_members = n, .is_nccl = true};
        run_ranks(n, calls_of_rank, &c, NULL);
    }
    const Case pairs = {.device = &device_cpu, .n_members = 2, .is_nccl = true};
    run_ranks(4, calls_of_rank, &pairs, NULL);
    setenv("FAKE_NCCL", "slow", 1);
    run_ranks(2, calls_of_rank, &pairs, NULL);
    unsetenv("FAKE_NCCL");
}

/* ---- memory that ranks write to ---- */

typedef struct PeersCase {
    Case c;
    int refuses, reaches_none;
    bool loses_flags, copies; /* copies: what is attached goes by copies */
} PeersCase;

/* Without copies NCCL carries all, with as many CTAs as it likes. */
static bool is_of_load(const Comm *comm, NcclLoad load) {
    const int ctas = load == NCCL_LIGHT ? 4 : INT_MIN;
    return comm->fixed_bytes == comm_nccl_fixed_bytes(load, true) && atoi(getenv("FAKE_NCCL_CTAS")) == ctas;
}

/* Steps over attached memory, two Comms one behind the other; what the header says. */
static void attach_and_step(Rendezvous *r, const void *context) {
    const PeersCase *p = context;
    const Case *c = &p->c;
    Error err = {0};
    shared_device_is(r->ranks.rank);
    shared_device.reaches_none = p->reaches_none;
    shared_device.refuses = p->refuses, shared_device.loses_flags = p->loses_flags;
    Group g = {.comm = open_comm(c, r, &err), .device = c->device, .n = c->n_members};
    if (!REQUIRE(g.comm != NULL, "%s", err.text)) return;
    g.rank = g.comm->ranks.rank;
    CHECK(is_of_load(g.comm, c->load), "opened with %s CTAs, %zu bytes", getenv("FAKE_NCCL_CTAS"),
          g.comm->fixed_bytes);
    test_attached(&g);
    CHECK(is_of_load(g.comm, p->copies ? c->load : NCCL_HEAVY), "attached with %s CTAs, %zu bytes",
          getenv("FAKE_NCCL_CTAS"), g.comm->fixed_bytes);
    CHECK((strstr(comm_description(g.comm), "copies between the GPUs") != NULL) == p->copies, "it says: %s",
          comm_description(g.comm));
    test_attached(&g);
    comm_close(g.comm);
}

static Case of_all(const Device *device, int n) {
    return (Case){.device = device, .n_members = n, .is_nccl = true};
}

static void test_peers(void) {
    const Device device = shared_device_open();
    for (int n = 2; n <= 4; n++) {
        const PeersCase p = {.c = of_all(&device, n), .refuses = -1, .reaches_none = -1, .copies = true};
        run_ranks(n, attach_and_step, &p, NULL);
    }
    PeersCase heavy = {.c = of_all(&device, 2), .refuses = -1, .reaches_none = -1, .copies = true};
    heavy.c.load = NCCL_HEAVY;
    run_ranks(2, attach_and_step, &heavy, NULL);
    const PeersCase refused = {.c = of_all(&device, 3), .refuses = 1, .reaches_none = -1};
    run_ranks(3, attach_and_step, &refused, NULL);
    const PeersCase apart = {.c = of_all(&device, 3), .refuses = -1, .reaches_none = 2};
    run_ranks(3, attach_and_step, &apart, NULL);
    const PeersCase lost = {.c = of_all(&device, 2), .refuses = -1, .reaches_none = -1, .loses_flags = true};
    run_ranks(2, attach_and_step, &lost, NULL);
    setenv("NCCL_P2P_DISABLE", "1", 1);
    const PeersCase disabled = {.c = of_all(&device, 2), .refuses = -1, .reaches_none = -1};
    run_ranks(2, attach_and_step, &disabled, NULL);
    unsetenv("NCCL_P2P_DISABLE");
}

/* NCCL that does not end holds nobody up; the description names what was found; what the user set stays. */
static void close_stuck(Rendezvous *r, const void *context) {
    Error err = {0};
    setenv("FAKE_NCCL", context, 1);
    setenv("NCCL_NVLS_ENABLE", "2", 1);
    Comm *comm = comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    if (!CHECK(comm != NULL, "%s", err.text)) return;
    const char *said = comm_nccl_description(), *path = path_of("fake.so");
    CHECK(strncmp(said, "NCCL 2.28.9, ", 13) == 0 && strcmp(said + 13, path) == 0, "%s", said);
    CHECK(strcmp(getenv("NCCL_NVLS_ENABLE"), "2") == 0, "NCCL_NVLS_ENABLE is %s", getenv("NCCL_NVLS_ENABLE"));
    nccl_seconds_to_close = 2;
    comm_close(comm); /* or the process comes to no end */
}

/* A library that crashes at the exit of a process that used it changes neither how the process ends nor what it printed. */
static void end_badly(Rendezvous *r, const void *context) {
    const int code = *(const int *)context;
    Error err = {0};
    setenv("FAKE_NCCL", "bad_exit", 1);
    Comm *comm = comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    CHECK(comm != NULL, "%s", err.text);
    comm_close(comm);
    divert(STDOUT_FILENO, said_path(code ? "bad" : "good", r->ranks.rank));
    divert(STDERR_FILENO, "/dev/null");
    printf("kept"); /* and not written yet */
    if (code) die(&(Error){.exit_code = code, .text = "by die()"});
    end_process(code);
}

static void test_ends(int code) {
    int statuses[2];
    run_ranks(2, end_badly, &code, statuses);
    for (int rank = 0; rank < 2; rank++) {
        char said[100];
        read_said(said, sizeof said, said_path(code ? "bad" : "good", rank));
        CHECK(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == code && strcmp(said, "kept") == 0,
              "exit code %d: status %x, %s", code, statuses[rank], said);
    }
}

#define WHEEL "/lib/python3.12/site-packages/nvidia/nccl/lib"

static void find_wheel(Rendezvous *r, const void *context) {
    Error err = {0};
    (void)context;
    unsetenv("NCCL_LIBRARY");
    Comm *comm = comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    CHECK(comm && strstr(comm_nccl_description(), WHEEL "/libnccl.so.2"), "%s%s", comm_nccl_description(),
          err.text);
    comm_close(comm);
}

static void find_no_wheel(Rendezvous *r, const void *context) {
    Error err = {0};
    (void)context;
    unsetenv("NCCL_LIBRARY");
    Comm *comm = comm_nccl_open(r, &device_cpu, 2, NCCL_LIGHT, &err);
    CHECK(!comm && strstr(err.text, WHEEL "/libnccl.so.2 is not NCCL"), "%s", err.text);
}

/* A python3 whose packages have the wheel, first on the PATH; its library is the stand-in, or no NCCL. */
static void test_wheel(const char *library, RankBody find) {
    char command[1000], path[4000];
    if (dlopen("libnccl.so.2", RTLD_LAZY)) {
        SKIP("the wheel's NCCL: this system has its own, which comes first");
        return;
    }
    snprintf(command, sizeof command,
             "mkdir -p %s/venv/bin %s/venv" WHEEL " && cp %s %s/venv" WHEEL "/libnccl.so.2", folder, folder,
             library, folder);
    REQUIRE(system(command) == 0, "%s", command);
    snprintf(path, sizeof path, "%s/venv/bin:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    run_ranks(2, find, NULL, NULL);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "no folder")) return 1;
    nccl_seconds = nccl_seconds_to_close =
        100; /* where nothing gets stuck: a machine that has more to do takes its time */
    if (build_fake("fake.so", "") && build_fake("fake_old.so", "-DncclCommDestroy=other")) {
        test_wrong();
        setenv("NCCL_LIBRARY", path_of("fake.so"), 1);
        BESIDE(test_broken("broken", "error: NCCL: ncclAllGather: invalid argument: the fake says so\n"));
        BESIDE(test_broken("stuck",
                           "error: NCCL: ncclAllGather is not done within 0.3 s; hint: NCCL_DEBUG=INFO\n"));
        BESIDE(run_ranks(2, close_stuck, "stuck_end", NULL));
        BESIDE(run_ranks(2, close_stuck, "stuck_destroy", NULL));
        BESIDE(test_ends(0));
        BESIDE(test_ends(2));
        beside_wait(NULL);
        test_calls_over_fake();
        test_peers();
        test_wheel(path_of("fake.so"), find_wheel);
        if (build_fake("no_nccl.so", "-DncclGetVersion=other"))
            test_wheel(path_of("no_nccl.so"), find_no_wheel);
    }
    empty_folder();
    rmdir(folder);
    return check_finish("nccl");
}
