/* Runs a function in n forked processes that are ranks of one run, on this host. The parent has touched neither a card nor
 * OpenMP before: both do not survive a fork. */
#pragma once
#include "beside.h"
#include "llmc/comm/rendezvous.h"
#include "llmc/comm/socket.h"

enum { MOST_RANKS = 8, RANKS_PATIENCE = 300 /* seconds that a rank may take, should it hang */ };

typedef void (*RankBody)(Rendezvous *r, const void *context);

static void be_rank(int rank, int n, int listening, int port, RankBody body, const void *context) {
    Place place = {
        .ranks = {rank, n},
          .local_rank = rank, .n_local = n, .port = port, .listening = -1
    };
    Rendezvous r;
    Error err = {0};
    bool known;
    alarm(RANKS_PATIENCE);
    snprintf(place.address, sizeof place.address, "127.0.0.1");
    if (rank == 0) place.listening = listening;
    if (rank != 0) close(listening);
    if (REQUIRE(rendezvous_open(&r, &place, RANKS_PATIENCE / 2, &known, &err), "%s", err.text)) {
        body(&r, context);
        rendezvous_close(&r);
    }
}

/* The ranks' checks count as the caller's. statuses (n): how each ended, as waitpid says; NULL: all must end well. */
static void run_ranks(int n, RankBody body, const void *context, int *statuses) {
    Error err = {0};
    int port = 0;
    const int listening = socket_listen("127.0.0.1", &port, &err);
    if (!REQUIRE(listening >= 0, "%s", err.text)) return;
    for (int rank = 0; rank < n; rank++) BESIDE(be_rank(rank, n, listening, port, body, context));
    close(listening);
    beside_wait(statuses);
}
