/* Ranks as processes of this host that find each other, or say why not. */
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "llmc/comm/rendezvous.h"
#include "llmc/base/clock.h"
#include "llmc/comm/socket.h"
#include "dev/test/beside.h"

enum {
    RANKS_MAX = 5,
    JOIN =
        60, /* seconds that ranks wait for each other, where all come: more than a busy machine holds one up */
    PATIENCE = 200 /* seconds that a rank may take, should it hang */
};

/* What a rank's process reports over its pipe. */
typedef struct Report {
    bool ok, knows, exchanged;
    int local_rank, n_local, n_hosts;
    double seconds;
    Error err;
} Report;

typedef struct Child {
    pid_t pid;
    int pipe;
} Child;

static Place place_of(int rank, int n, int port) {
    Place place = {
        .ranks = {rank, n},
          .local_rank = -1, .port = port, .listening = -1
    };
    snprintf(place.address, sizeof place.address, "localhost");
    return place;
}

/* All ranks' numbers reach all, in order, and rank 0's text, of more than one packet. */
static bool exchange(Rendezvous *r) {
    enum { N = 300000 };
    const int n = r->ranks.n_ranks;
    int64_t mine[2] = {r->ranks.rank, 10 * r->ranks.rank}, *all = calloc((size_t)n, sizeof mine);
    char *text = malloc(N);
    bool ok = true;
    memset(text, ranks_leads(r->ranks) ? 'x' : 0, N);
    for (int again = 0; again < 3; again++) {
        rendezvous_gather(r, all, mine, sizeof mine);
        for (int i = 0; i < n; i++) ok = ok && all[2 * i] == i && all[2 * i + 1] == 10 * i;
    }
    memset(all, 0, (size_t)n * sizeof mine);
    rendezvous_collect(r, ranks_leads(r->ranks) ? all : NULL, mine, sizeof mine);
    for (int i = 0; i < n && ranks_leads(r->ranks); i++)
        ok = ok && all[2 * i] == i && all[2 * i + 1] == 10 * i;
    rendezvous_broadcast(r, text, N);
    for (int i = 0; i < N; i++) ok = ok && text[i] == 'x';
    free(all);
    free(text);
    return ok;
}

/* The watchdog's connections are others than those for work, and lead to the same rank. */
static bool watched(Rendezvous *r) {
    char byte = 'w';
    if (!ranks_leads(r->ranks)) return socket_send(*r->watch, &byte, 1, clock_seconds() + JOIN);
    for (int i = 1; i < r->ranks.n_ranks; i++)
        if (!socket_receive(r->watch[i], &byte, 1, clock_seconds() + JOIN) || byte != 'w') return false;
    return true;
}

/* How often the process that `counts_sent` names has sent something; shared by all. */
static atomic_int *n_sent;
static bool counts_sent;

/* Takes the place of the C library's. */
ssize_t send(int fd, const void *data, size_t n, int flags) {
    const ssize_t sent = sendto(fd, data, n, flags, NULL, 0);
    if (counts_sent && sent > 0) ++*n_sent;
    return sent;
}

static Child start(const Place *place, const char *settings, double seconds, double delay) {
    int ends[2];
    Child child = {.pid = -1};
    if (!REQUIRE(pipe(ends) == 0, "no pipe")) return child;
    child = (Child){.pid = fork(), .pipe = ends[0]};
    if (child.pid == 0) {
        alarm(PATIENCE);
        static Report report;
        Rendezvous r;
        usleep((useconds_t)(delay * 1e6));
        const double begun = clock_seconds();
        const bool joined = rendezvous_open(&r, place, seconds, &report.knows, &report.err);
        report.ok = joined && ranks_have_same(&r, settings, &report.err);
        report.knows = report.knows || joined;
        report.seconds = clock_seconds() - begun;
        report.exchanged = report.ok && watched(&r) && exchange(&r);
        report.local_rank = r.place.local_rank, report.n_local = r.place.n_local, report.n_hosts = r.n_hosts;
        rendezvous_close(&r);
        _exit(write(ends[1], &report, sizeof report) != sizeof report);
    }
    close(ends[1]);
    return child;
}

static Report end(Child child) {
    Report report = {.err.text = "no report"};
    if (read(child.pipe, &report, sizeof report) != sizeof report) report.ok = false;
    close(child.pipe);
    waitpid(child.pid, NULL, 0);
    return report;
}

/* A port that nobody listens at; nor can another process take it, because a socket here has it, which does not listen. */
static int free_port(void) {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0), v4 = fd < 0 ? socket(AF_INET, SOCK_STREAM, 0) : fd;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr *address = fd < 0 ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t size = fd < 0 ? sizeof four : sizeof six;
    setsockopt(v4, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (fd >= 0) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    REQUIRE(bind(v4, address, size) == 0 && getsockname(v4, address, &size) == 0, "no free port");
    return ntohs(fd < 0 ? four.sin_port : six.sin6_port);
}

/* ---- all is well ---- */

/* `late`: the rank that comes a second after the others. */
static void test_join(int n, int late, bool inherited) {
    Child children[RANKS_MAX];
    Error err = {0};
    int port = inherited ? 0 : free_port(), fd = -1;
    if (inherited) fd = socket_listen("127.0.0.1", &port, &err);
    for (int i = n - 1; i >= 0; i--) {
        Place place = place_of(i, n, port);
        if (i == 0) place.listening = fd;
        children[i] = start(&place, "--lr 1\n--seed 2\n", JOIN, i == late);
    }
    if (fd >= 0) close(fd);
    for (int i = 0; i < n; i++) {
        const Report r = end(children[i]);
        CHECK(r.ok && r.exchanged, "rank %d of %d: %s", i, n, r.err.text);
        CHECK(r.local_rank == i && r.n_local == n && r.n_hosts == 1,
              "rank %d of %d: local %d of %d, %d hosts", i, n, r.local_rank, r.n_local, r.n_hosts);
        CHECK(r.seconds < JOIN / 2, "rank %d of %d: %.1f s", i, n, r.seconds);
    }
}

/* ---- what goes wrong ---- */

static void check_said(Report r, const char *who, int exit_code, const char *says, const char *also,
                       bool knows) {
    CHECK(!r.ok && r.err.exit_code == exit_code && strstr(r.err.text, says) && strstr(r.err.text, also) &&
              r.knows == knows,
          "%s: expected '%s' and '%s', found '%s', exit %d, rank 0 knows: %d", who, says, also, r.err.text,
          r.err.exit_code, r.knows);
}

static void test_nobody(void) {
    const Place place = place_of(0, 5, free_port());
    const Report r = end(start(&place, "", 1, 0));
    check_said(r, "rank 0 alone", EXIT_RUN, "ranks 1-4 of 5 did not come to rank 0",
               "hint: were the others started", true);
    CHECK(r.seconds > 0.9, "it waits %.1f s", r.seconds);
}

static void test_no_leader(void) {
    Place place = place_of(1, 2, free_port());
    Report r = end(start(&place, "", 1, 0));
    check_said(r, "no rank 0", EXIT_RUN, "rank 1 (", ": no rank 0 at localhost, port ", false);
    check_said(r, "no rank 0", EXIT_RUN, "refused", "whether it ended", false);
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1); /* where nobody answers for names */
    snprintf(place.address, sizeof place.address, "no-such-host.invalid");
    r = end(start(&place, "", 1, 0));
    check_said(r, "a name of no host", EXIT_RUN, "no rank 0 at no-such-host.invalid",
               "MASTER_ADDR and MASTER_PORT", false);
}

/* Ranks 1 and 3 are missing; where the machine held up another, too, it is tried again with more patience. */
static void test_missing(void) {
    static const char said[] = "ranks 1, 3 of 5 did not come";
    const int there[] = {0, 2, 4};
    Report reports[3];
    bool right = false;
    for (double patience = 1; !right && patience < JOIN; patience *= 4) {
        const int port = free_port();
        Child children[3];
        for (int i = 0; i < 3; i++) {
            const Place place = place_of(there[i], 5, port);
            children[i] = start(&place, "", patience, 0);
        }
        right = true;
        for (int i = 0; i < 3; i++) {
            reports[i] = end(children[i]);
            right = right && strstr(reports[i].err.text, said);
        }
    }
    for (int i = 0; i < 3; i++)
        check_said(reports[i], "ranks 1 and 3 are missing", EXIT_RUN, said, "hint: what they say", true);
}

static void test_settings(const char *theirs, const char *has) {
    const int port = free_port();
    Child children[3];
    for (int rank = 0; rank < 3; rank++) {
        const Place place = place_of(rank, 3, port);
        children[rank] = start(&place, rank == 1 ? theirs : "--lr 1\n--seed 2\n", JOIN, 0);
    }
    for (int rank = 0; rank < 3; rank++)
        check_said(end(children[rank]), theirs, EXIT_INPUT, "rank 1 (", has, true);
}

static void test_counts(void) {
    const int port = free_port();
    const Place zero = place_of(0, 3, port), one = place_of(1, 2, port);
    Child children[2] = {start(&zero, "", JOIN, 0), start(&one, "", JOIN, 0)};
    const Report r = end(children[0]);
    check_said(r, "two counts", EXIT_INPUT, "was started as one of 2 ranks", "as one of 3", true);
    CHECK(r.seconds < JOIN / 2, "it waits %.1f s", r.seconds);
    check_said(end(children[1]), "the other count's rank", EXIT_INPUT, "was started as one of 2 ranks",
               "hint: ", true);
}

static void test_twins(void) {
    const int port = free_port();
    const Place first = place_of(0, 3, port), twin = place_of(1, 3, port);
    Child twins[3] = {start(&first, "", JOIN, 0), start(&twin, "", JOIN, 0), start(&twin, "", JOIN, 0)};
    check_said(end(twins[0]), "one rank twice", EXIT_INPUT, "rank 1 is there twice", "hint: ", true);
    for (int i = 1; i < 3; i++)
        check_said(end(twins[i]), "a twin", EXIT_INPUT, "rank 1 is there twice", "hint: ", true);
}

static void test_port_in_use(void) {
    Error err = {0};
    int port = 0;
    const int fd = socket_listen("localhost", &port, &err);
    const Place zero = place_of(0, 2, port), one = place_of(1, 2, port);
    Child children[2] = {start(&zero, "", JOIN, 0), start(&one, "", 1, 0)};
    const Report r = end(children[0]);
    check_said(r, "a port in use", EXIT_RUN, "Address already in use", "hint: another MASTER_PORT", true);
    CHECK(r.seconds < JOIN / 2, "it waits %.1f s", r.seconds);
    const Report other = end(children[1]); /* its rank 0 is somebody who says nothing */
    check_said(other, "a silent stranger", EXIT_RUN, "no rank 0 at localhost", "says nothing", false);
    close(fd);
}

/* ---- names ---- */

/* "node0" is what this host is called, and takes for 127.0.0.1. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(
            RTLD_NEXT, "getaddrinfo");
    const bool is_own = strcmp(name, "node0") == 0 && !(hints->ai_flags & AI_NUMERICHOST);
    return real(is_own ? "127.0.0.1" : name, service, hints, found);
}

/* Whether another address of this host than 127.0.0.1 reaches who listens for `address`. */
static bool is_reached(const char *address) {
    Error err = {0};
    int port = 0;
    const int fd = socket_listen(address, &port, &err);
    const int other = fd < 0 ? -1 : socket_connect("127.0.0.2", port, clock_seconds() + JOIN, &err);
    REQUIRE(fd >= 0, "%s: %s", address, err.text);
    if (fd >= 0) close(fd);
    if (other >= 0) close(other);
    return other >= 0;
}

static void test_names(void) {
    CHECK(is_reached("node0"), "other hosts do not reach one that calls itself 127.0.0.1");
    CHECK(is_reached("0.0.0.0"), "other hosts do not reach all addresses");
    CHECK(!is_reached("localhost") && !is_reached("127.0.0.1"), "other hosts reach a run of this one");
}

/* ---- strangers ---- */

static int knock_at(int port) {
    Error err = {0};
    int fd = -1;
    for (const double until = clock_seconds() + JOIN; fd < 0 && clock_seconds() < until; usleep(20000))
        fd = socket_connect("localhost", port, until, &err);
    REQUIRE(fd >= 0, "%s", err.text);
    return fd;
}

/* They come first, and say nothing, rubbish, too little, or another run's words; those of the run find each other. */
static void test_strangers(void) {
    const int port = free_port(), n = 3;
    static const char web[] = "GET / HTTP/1.1\r\nHost: rank-0\r\n\r\n";
    char rubbish[4096];
    Child children[3];
    int fds[300];
    const Place zero = place_of(0, n, port);
    Place other = place_of(1, n, port);
    children[0] = start(&zero, "", JOIN, 0);
    memset(rubbish, 0xa5, sizeof rubbish);
    for (int i = 0; i < 300; i++)
        fds[i] = knock_at(port); /* silent, and more than rank 0 listens to at once */
    socket_send(fds[0], web, sizeof web, clock_seconds() + 1);
    socket_send(fds[1], rubbish, sizeof rubbish, clock_seconds() + 1);
    close(fds[2]);
    other.run = 99;
    Child others = start(&other, "--lr 3\n", 1, 0);
    for (int i = 1; i < n; i++) {
        const Place place = place_of(i, n, port);
        children[i] = start(&place, "", JOIN, 0);
    }
    for (int i = 0; i < n; i++) {
        const Report r = end(children[i]);
        CHECK(r.ok && r.exchanged, "strangers at the port, rank %d: %s", i, r.err.text);
    }
    CHECK(!end(others).ok, "a rank of another run joins");
    for (int i = 0; i < 300; i++)
        if (i != 2) close(fds[i]);
}

/* Starts a rank and waits until it has said who it is on both of its connections. */
static Child start_and_hear(const Place *place) {
    *n_sent = 0;
    counts_sent = true;
    const Child child = start(place, "", JOIN, 0);
    counts_sent = false;
    for (const double until = clock_seconds() + JOIN; *n_sent < 2 && clock_seconds() < until;) usleep(5000);
    return child;
}

/* A rank of this run says who it is and goes away: its next process takes its place, whether rank 0 has let the first in
 * or comes to the door when both have knocked. The others come when it is there: with all there rank 0 would begin with the
 * one that is gone. */
static void test_second_try(bool is_late) {
    Error err = {0};
    int port = 0;
    const int fd = is_late ? socket_listen("localhost", &port, &err) : -1;
    if (!is_late) port = free_port();
    Place zero = place_of(0, 3, port);
    const Place one = place_of(1, 3, port), two = place_of(2, 3, port);
    Child leader;
    zero.listening = fd;
    n_sent = mmap(NULL, sizeof *n_sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (n_sent == MAP_FAILED) abort();
    if (!is_late) leader = start(&zero, "", JOIN, 0);
    const Child first = start_and_hear(&one);
    if (!is_late) usleep(300000); /* rank 0 lets it in */
    kill(first.pid, SIGKILL);
    end(first);
    const Child second = start_and_hear(&one);
    if (is_late) leader = start(&zero, "", JOIN, 0);
    if (fd >= 0) close(fd);
    const Child other = start(&two, "", JOIN, 0);
    const Report r = end(leader);
    CHECK(r.ok && r.exchanged, "a rank that came twice: %s", r.err.text);
    CHECK(end(second).exchanged && end(other).exchanged, "the others");
}

/* A rank that ends in the middle of an exchange ends the others, with a line of their own where no watchdog is. */
static void test_lost(void) {
    const int port = free_port();
    int ends[2], status = 0;
    char said[400] = "";
    REQUIRE(pipe(ends) == 0, "no pipe");
    const Place one = place_of(1, 2, port);
    const pid_t leader = fork();
    if (leader == 0) {
        alarm(PATIENCE);
        const Place zero = place_of(0, 2, port);
        Rendezvous r;
        bool knows;
        int64_t value = 0, all[2];
        Error err = {0};
        dup2(ends[1], STDERR_FILENO);
        if (!rendezvous_open(&r, &zero, JOIN, &knows, &err) || !ranks_have_same(&r, "", &err)) _exit(9);
        if (!watched(&r) || !exchange(&r)) _exit(8);
        for (;;) rendezvous_gather(&r, all, &value, sizeof value);
    }
    close(ends[1]);
    end(start(&one, "", JOIN, 0)); /* does its exchange, and goes */
    waitpid(leader, &status, 0);
    const ssize_t n = read(ends[0], said, sizeof said - 1);
    (void)n;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN && strstr(said, "error: rank 1 (") &&
              strstr(said, "is gone"),
          "status %#x, says %s", (unsigned)status, said);
}

/* In a process of its own. What the ranks need is counted; what GPUs and shards take is not, and has room where the system gives it. */
static void test_room(void) {
    struct rlimit limit;
    Error err = {0};
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max < 600) {
        SKIP("the system lets a process have %llu open files", (unsigned long long)limit.rlim_max);
        return;
    }
    const rlim_t most = limit.rlim_max;
    limit.rlim_cur = 16;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
    CHECK(rendezvous_room(4, &err) && !getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur >= 500 &&
              limit.rlim_max == most,
          "4 ranks: %llu open files", (unsigned long long)limit.rlim_cur);
    limit.rlim_cur = limit.rlim_max = 40;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
    CHECK(rendezvous_room(4, &err) && !rendezvous_room(100, &err) &&
              strstr(err.text, "the limit is 40; hint: ulimit -n"),
          "%s", err.text);
}

int main(void) {
    BESIDE(test_join(1, -1, false));
    BESIDE(test_join(2, -1, false));
    BESIDE(test_join(2, -1, true));
    BESIDE(test_join(3, 0, false));
    BESIDE(test_join(5, 3, false));
    BESIDE(test_nobody());
    BESIDE(test_no_leader());
    BESIDE(test_missing());
    BESIDE(test_settings("--lr 2\n--seed 2\n", " has --lr 2, rank 0 ("));
    BESIDE(test_settings("--lr 1\n--seed 22\n", " has --seed 22, rank 0 ("));
    BESIDE(test_settings("--lr 1\n", ") has nothing, rank 0 ("));
    BESIDE(test_settings("--lr 1\n--seed 2\n--clip 1\n", " has --clip 1, rank 0 ("));
    BESIDE(test_counts());
    BESIDE(test_twins());
    BESIDE(test_port_in_use());
    BESIDE(test_names());
    BESIDE(test_strangers());
    BESIDE(test_second_try(false));
    BESIDE(test_second_try(true));
    BESIDE(test_lost());
    BESIDE(test_room());
    beside_wait(NULL);
    return check_finish("rendezvous");
}
