#include "place.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 65536, FIRST_PORT = 10000, N_PORTS = 20000 /* below those that systems give away */ };

/* Names of variables; of several the first that is set counts. */
typedef struct Launcher {
    const char *name;
    const char *rank, *n_ranks[2], *local_rank[2], *n_local;
} Launcher;

/* One inside the other (torchrun under srun, say), the inner one counts: it stands first. */
/* clang-format off */
static const Launcher launchers[] = {
    {"torchrun", "RANK",                 {"WORLD_SIZE"},           {"LOCAL_RANK"},                 "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, {"OMPI_COMM_WORLD_LOCAL_RANK"}, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPI",      "PMI_RANK",             {"PMI_SIZE"},             {"MPI_LOCALRANKID", "SLURM_LOCALID"}, "MPI_LOCALNRANKS"},
    {"srun",     "SLURM_PROCID",         {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, NULL},
};
/* clang-format on */
enum { TORCHRUN, OPEN_MPI, MPI, SRUN, N_LAUNCHERS };

/* ---- variables ---- */

/* NULL where it is not set, or empty. */
static const char *variable(const char *name) {
    const char *text = name ? getenv(name) : NULL;
    return text && *text ? text : NULL;
}

/* *value stays as it is where the variable is not set. */
static bool read_number(const char *name, int low, int high, int *value, Error *err) {
    const char *text = variable(name);
    char *end;
    if (!text) return true;
    errno = 0;
    const long n = strtol(text, &end, 10);
    const bool is_number = (*text == '-' || (*text >= '0' && *text <= '9')) && !*end && errno == 0;
    if (!is_number || n < low || n > high)
        return fail(err, EXIT_INPUT, "%s='%.40s' is not a whole number from %d to %d", name, text, low, high);
    *value = (int)n;
    return true;
}

static const char *first_set(const char *const names[2]) {
    return variable(names[0]) ? names[0] : variable(names[1]) ? names[1] : NULL;
}

/* ---- one launcher ---- */

/* A batch script of SLURM looks like task 0, but is in no step; shells of SLURM have the number of tasks alone. */
static bool is_task_of_srun(void) {
    const char *rank = variable("SLURM_PROCID");
    const bool in_step = variable("SLURM_STEP_ID") || variable("SLURM_STEPID");
    return rank && (in_step || !variable("SLURM_JOB_ID") || strcmp(rank, "0") != 0);
}

/* Elsewhere the rank without the number of ranks is a mistake, and the other way round. */
static bool is_there(const Launcher *l) {
    return l == &launchers[SRUN] ? is_task_of_srun() : variable(l->rank) || first_set(l->n_ranks);
}

static bool read_ranks(const Launcher *l, Ranks *ranks, Error *err) {
    const char *count = first_set(l->n_ranks);
    if (!variable(l->rank) || !count)
        return fail(err, EXIT_INPUT,
                    "%s is set, %s is not; hint: %s sets both, for a process alone unset both",
                    count ? count : l->rank, count ? l->rank : l->n_ranks[0], l->name);
    if (!read_number(l->rank, 0, RANKS_MAX - 1, &ranks->rank, err) ||
        !read_number(count, 1, RANKS_MAX, &ranks->n_ranks, err))
        return false;
    return ranks->rank < ranks->n_ranks || fail(err, EXIT_INPUT, "%s=%d, but %s=%d: ranks count from 0",
                                                l->rank, ranks->rank, count, ranks->n_ranks);
}

static bool read_local(const Launcher *l, Place *place, Error *err) {
    const char *local = first_set(l->local_rank);
    if (!read_number(local, 0, RANKS_MAX - 1, &place->local_rank, err) ||
        !read_number(l->n_local, 1, RANKS_MAX, &place->n_local, err))
        return false;
    if (place->n_local && place->local_rank >= place->n_local)
        return fail(err, EXIT_INPUT, "%s=%d, but %s=%d: local ranks count from 0", local, place->local_rank,
                    l->n_local, place->n_local);
    return place->n_local <= place->ranks.n_ranks ||
           fail(err, EXIT_INPUT, "%s=%d, but %s=%d are all ranks", l->n_local, place->n_local,
                first_set(l->n_ranks), place->ranks.n_ranks);
}

/* RANK and WORLD_SIZE that torchrun has not set may be left from elsewhere: with ranks of MPI they must agree, or every
 * process of mpirun would take the same rank. */
static bool check_leftovers(const Launcher *l, const Place *place, Error *err) {
    if (l != &launchers[TORCHRUN] || place->is_own || variable("TORCHELASTIC_RUN_ID")) return true;
    for (int i = OPEN_MPI; i <= MPI; i++) {
        const Launcher *other = &launchers[i];
        Ranks ranks = {0, 1};
        if (!is_there(other)) continue;
        if (!read_ranks(other, &ranks, err)) return false;
        if (ranks.rank != place->ranks.rank || ranks.n_ranks != place->ranks.n_ranks)
            return fail(
                err, EXIT_INPUT,
                "RANK=%d and WORLD_SIZE=%d, but %s=%d and %s=%d; hint: unset RANK WORLD_SIZE, or the others",
                place->ranks.rank, place->ranks.n_ranks, other->rank, ranks.rank, other->n_ranks[0],
                ranks.n_ranks);
    }
    return true;
}

/* ---- where rank 0 is ---- */

/* The first host of SLURM's list: "gpu[07-09,12]-ib,login" begins with gpu07-ib. */
static void first_host(char *host, size_t size, const char *list) {
    size_t n = 0;
    while (*list && *list != ',' && n + 1 < size) {
        if (*list != '[') {
            host[n++] = *list++;
            continue;
        }
        list++;
        while (*list && !strchr(",-]", *list) && n + 1 < size) host[n++] = *list++;
        list += strcspn(list, "]");
        list += *list == ']';
    }
    host[n] = '\0';
}

static bool find_address(const Launcher *l, Place *place, Error *err) {
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"};
    const char *said = variable("MASTER_ADDR");
    const bool one_host = place->n_local == place->ranks.n_ranks;
    if (said || one_host) {
        if (said && strlen(said) >= sizeof place->address)
            return fail(err, EXIT_INPUT, "MASTER_ADDR is longer than %zu bytes", sizeof place->address - 1);
        snprintf(place->address, sizeof place->address, "%s", said ? said : "127.0.0.1");
        return true;
    }
    for (size_t i = 0; l != &launchers[TORCHRUN] && i < sizeof lists / sizeof *lists && !*place->address; i++)
        if (variable(lists[i])) first_host(place->address, sizeof place->address, variable(lists[i]));
    if (!*place->address && l == &launchers[SRUN] && variable("SLURM_LAUNCH_NODE_IPADDR"))
        snprintf(place->address, sizeof place->address, "%s", variable("SLURM_LAUNCH_NODE_IPADDR"));
    return *place->address ||
           fail(err, EXIT_INPUT,
                "%s does not say where rank 0 of %d is; hint: MASTER_ADDR=HOST on every rank", l->name,
                place->ranks.n_ranks);
}

/* FNV-1a. */
static uint64_t add_text(uint64_t hash, const char *text) {
    for (; text && *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return (hash ^ '/') * 1099511628211u;
}

/* What is the same for all ranks of a job and differs between jobs. */
static uint64_t job_hash(const Place *place) {
    static const char *const names[] = {
        "MASTER_PORT",    "TORCHELASTIC_RUN_ID",     "SLURM_JOB_ID", "SLURM_STEP_ID",
        "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID",    "LSB_JOBID",
    };
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hash = add_text(hash, place->is_own && i ? "" : variable(names[i]));
    return hash;
}

/* At MASTER_PORT torchrun itself may listen; then, and where no port is said, the job's variables make one. */
static bool find_port(Place *place, Error *err) {
    const char *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    const bool taken = !place->is_own && agent && strcmp(agent, "True") == 0;
    place->run = job_hash(place);
    place->port = 0;
    if (!read_number("MASTER_PORT", 1, 65535, &place->port, err)) return false;
    if (taken || !place->port) place->port = FIRST_PORT + (int)(place->run % N_PORTS);
    return true;
}

/* ---- all of it ---- */

bool place_find(Place *place, Error *err) {
    const Launcher *l = launchers;
    int listening = -1;
    *place = (Place){.local_rank = -1, .listening = -1};
    place->ranks.n_ranks = 1;
    place->is_own = variable(PLACE_LISTENING) != NULL;
    if (!read_number(PLACE_LISTENING, -1, 1 << 20, &listening, err)) return false;
    while (l < launchers + N_LAUNCHERS && !is_there(l)) l++;
    if (l == launchers + N_LAUNCHERS) {
        place->local_rank = 0;
        place->n_local = 1;
        return true;
    }
    place->launcher = place->is_own ? "--gpus" : l->name;
    if (!read_ranks(l, &place->ranks, err) || !read_local(l, place, err) || !check_leftovers(l, place, err))
        return false;
    if (place->ranks.rank == 0) place->listening = listening;
    return place->ranks.n_ranks == 1 || (find_address(l, place, err) && find_port(place, err));
}
