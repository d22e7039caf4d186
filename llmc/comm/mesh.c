/* Every rank listens; a member connects to those before it and waits for those behind it. A connection waits in the
 * listener's queue, so no order of the ranks can hang. */
#include "mesh.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "socket.h"

static const double connect_seconds = 20, hello_seconds = 5;

/* What a rank says before anyone connects. */
typedef struct Listener {
    char address[64]; /* of its host, in numbers; "": where rank 0 is */
    int32_t port, unused;
    uint64_t token; /* the first member's is what the group's connections begin with: others may knock, too */
} Listener;

typedef struct Hello {
    uint64_t token;
    int64_t member;
} Hello;

typedef struct Mesh {
    const GroupComm *group;
    int listening;
    Listener *all; /* (ranks of the rendezvous) */
    int *sockets;  /* (members) */
    double deadline;
} Mesh;

/* ---- listening ---- */

/* The address from which this rank reached rank 0 is where others reach it, except on rank 0's own host. */
static void own_address(const Rendezvous *r, char *text, size_t size) {
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (ranks_leads(r->ranks) || getsockname(r->work[0], (struct sockaddr *)&at, &n) != 0 ||
        getnameinfo((struct sockaddr *)&at, n, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0 ||
        strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0 || strncmp(text, "::ffff:127.", 11) == 0)
        text[0] = '\0';
}

static bool start_listening(Mesh *mesh, Listener *mine, Error *err) {
    const Rendezvous *r = mesh->group->rendezvous;
    int port = 0;
    own_address(r, mine->address, sizeof mine->address);
    mesh->listening = socket_listen(r->place.address, &port, err);
    mine->port = port;
    return mesh->listening >= 0 &&
           (getrandom(&mine->token, sizeof mine->token, 0) == (ssize_t)sizeof mine->token ||
            fail(err, EXIT_RUN, "no random number: %s", strerror(errno)));
}

/* ---- connecting ---- */

static bool fail_to_reach(const Mesh *mesh, int member, const char *why, Error *err) {
    char name[RANK_NAME_BYTES];
    rank_name(name, mesh->group->rendezvous, rank_of(mesh->group, member));
    return fail(
        err, EXIT_RUN,
        "no connection with %s: %s; hint: ranks reach each other at ports of the system's choice, which "
        "a firewall may close",
        name, why);
}

static uint64_t token_of_group(const Mesh *mesh) {
    return mesh->all[rank_of(mesh->group, 0)].token;
}

static bool connect_to(const Mesh *mesh, int member, Error *err) {
    const Listener *theirs = &mesh->all[rank_of(mesh->group, member)];
    const char *address = theirs->address[0] ? theirs->address : mesh->group->rendezvous->place.address;
    const Hello hello = {token_of_group(mesh), mesh->group->comm.ranks.rank};
    Error why = {0};
    const int fd = mesh->sockets[member] = socket_connect(address, theirs->port, mesh->deadline, &why);
    if (fd < 0) return fail_to_reach(mesh, member, why.text, err);
    return socket_send(fd, &hello, sizeof hello, mesh->deadline) ||
           fail_to_reach(mesh, member, strerror(errno), err);
}

/* The member that connected and is still awaited, or -1: it was another. */
static int hear_hello(const Mesh *mesh, int fd) {
    const Ranks ranks = mesh->group->comm.ranks;
    Hello hello;
    if (!socket_receive(fd, &hello, sizeof hello, clock_seconds() + hello_seconds) ||
        hello.token != token_of_group(mesh) || hello.member <= ranks.rank || hello.member >= ranks.n_ranks ||
        mesh->sockets[hello.member] >= 0)
        return -1;
    return (int)hello.member;
}

static int first_missing(const Mesh *mesh) {
    const Ranks ranks = mesh->group->comm.ranks;
    for (int i = ranks.rank + 1; i < ranks.n_ranks; i++)
        if (mesh->sockets[i] < 0) return i;
    return -1;
}

/* A stranger that says nothing holds the others up for hello_seconds. */
static bool accept_all(const Mesh *mesh, Error *err) {
    for (int missing; (missing = first_missing(mesh)) >= 0;) {
        struct pollfd p = {.fd = mesh->listening, .events = POLLIN};
        if (clock_seconds() > mesh->deadline) return fail_to_reach(mesh, missing, "it does not connect", err);
        poll(&p, 1, 100);
        const int fd = socket_accept(mesh->listening);
        if (fd < 0) continue;
        const int member = hear_hello(mesh, fd);
        if (member >= 0)
            mesh->sockets[member] = fd;
        else
            close(fd);
    }
    return true;
}

static bool connect_all(const Mesh *mesh, Error *err) {
    for (int i = 0; i < mesh->group->comm.ranks.rank; i++)
        if (!connect_to(mesh, i, err)) return false;
    return accept_all(mesh, err);
}

bool mesh_open(const GroupComm *group, int *sockets, Error *err) {
    Rendezvous *r = group->rendezvous;
    const size_t bytes = (size_t)r->ranks.n_ranks * sizeof(Listener);
    Mesh mesh = {.group = group, .sockets = sockets, .all = must_allocate(bytes, "where ranks listen")};
    Listener mine = {.port = 0};
    bool ok = ranks_agree(r, start_listening(&mesh, &mine, err), err);
    if (ok) {
        mesh.deadline = clock_seconds() + connect_seconds;
        rendezvous_gather(r, mesh.all, &mine, sizeof mine);
        ok = ranks_agree(r, connect_all(&mesh, err), err);
    }
    if (mesh.listening >= 0) close(mesh.listening);
    free(mesh.all);
    return ok;
}
