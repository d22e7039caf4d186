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

struct Mesh {
    int fd;
    Listener mine;
    Listener *all; /* (ranks of the rendezvous) */
};

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

static bool open_mesh(Mesh *mesh, const Rendezvous *r, Error *err) {
    const size_t size = sizeof mesh->mine.token;
    int port = 0;
    own_address(r, mesh->mine.address, sizeof mesh->mine.address);
    mesh->fd = socket_listen(r->place.address, &port, err);
    if (mesh->fd < 0) return false;
    mesh->mine.port = port;
    mesh->all = malloc((size_t)r->ranks.n_ranks * sizeof *mesh->all);
    return (mesh->all && getrandom(&mesh->mine.token, size, 0) == (ssize_t)size) ||
           fail(err, EXIT_RUN, "out of memory for %d ranks", r->ranks.n_ranks);
}

Mesh *mesh_listen(const GroupComm *group, Error *err) {
    Mesh *mesh = calloc(1, sizeof *mesh);
    if (!mesh) fail(err, EXIT_RUN, "out of memory");
    if (mesh) mesh->fd = -1;
    if (mesh && open_mesh(mesh, group->rendezvous, err)) return mesh;
    mesh_free(mesh);
    return NULL;
}

void mesh_free(Mesh *mesh) {
    if (!mesh) return;
    if (mesh->fd >= 0) close(mesh->fd);
    free(mesh->all);
    free(mesh);
}

/* ---- connecting ---- */

static bool fail_to_reach(const GroupComm *group, int member, const char *why, Error *err) {
    char name[RANK_NAME_BYTES];
    rank_name(name, group->rendezvous, group->members[member]);
    return fail(
        err, EXIT_RUN,
        "no connection with %s: %s; hint: ranks reach each other at ports of the system's choice, which "
        "a firewall may close",
        name, why);
}

static bool connect_to(const Mesh *mesh, const GroupComm *group, int member, double deadline, int *fd,
                       Error *err) {
    const Rendezvous *r = group->rendezvous;
    const Listener *theirs = &mesh->all[group->members[member]];
    const Hello hello = {mesh->all[group->members[0]].token, group->comm.ranks.rank};
    Error why = {0};
    *fd =
        socket_connect(theirs->address[0] ? theirs->address : r->place.address, theirs->port, deadline, &why);
    if (*fd < 0) return fail_to_reach(group, member, why.text, err);
    return socket_send(*fd, &hello, sizeof hello, deadline) ||
           fail_to_reach(group, member, strerror(errno), err);
}

/* The member that connected and is still awaited, or -1: it was another. */
static int hear_hello(const Mesh *mesh, const GroupComm *group, int fd, const int *sockets) {
    Hello hello;
    if (!socket_receive(fd, &hello, sizeof hello, clock_seconds() + hello_seconds) ||
        hello.token != mesh->all[group->members[0]].token)
        return -1;
    const int64_t member = hello.member;
    const Ranks ranks = group->comm.ranks;
    return member > ranks.rank && member < ranks.n_ranks && sockets[member] < 0 ? (int)member : -1;
}

static int first_missing(const GroupComm *group, const int *sockets) {
    for (int i = group->comm.ranks.rank + 1; i < group->comm.ranks.n_ranks; i++)
        if (sockets[i] < 0) return i;
    return -1;
}

/* A stranger that says nothing holds the others up for hello_seconds. */
static bool accept_all(const Mesh *mesh, const GroupComm *group, double deadline, int *sockets, Error *err) {
    for (int missing; (missing = first_missing(group, sockets)) >= 0;) {
        struct pollfd p = {.fd = mesh->fd, .events = POLLIN};
        if (clock_seconds() > deadline) return fail_to_reach(group, missing, "it does not connect", err);
        poll(&p, 1, 100);
        const int fd = socket_accept(mesh->fd);
        if (fd < 0) continue;
        const int member = hear_hello(mesh, group, fd, sockets);
        if (member >= 0)
            sockets[member] = fd;
        else
            close(fd);
    }
    return true;
}

bool mesh_connect(Mesh *mesh, const GroupComm *group, int *sockets, Error *err) {
    const double deadline = clock_seconds() + connect_seconds;
    rendezvous_gather(group->rendezvous, mesh->all, &mesh->mine, sizeof mesh->mine);
    for (int i = 0; i < group->comm.ranks.rank; i++)
        if (!connect_to(mesh, group, i, deadline, &sockets[i], err)) return false;
    return accept_all(mesh, group, deadline, sockets, err);
}
