/* Several ranks: which one this process is, the others, and what they exchange with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/parallel.h"
#include "llmc/base/terminal.h"
#include "llmc/base/version.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/transport.h"
#include "llmc/comm/watchdog.h"
#include "setup.h"

enum { SECONDS_TO_JOIN = 20, SECONDS_MAX = 86400, SETTINGS_BYTES = 1 << 16 };

/* ---- which one this is ---- */

bool setup_place(Run *run, Error *err) {
    const Settings *s = &run->settings;
    Place *place = &run->place;
    if (!place_find(place, err)) return false;
    if (place->is_own) launch_restore_name();
    const bool is_started = place->is_own || place->ranks.n_ranks > 1;
    const Ranks ranks = is_started ? place->ranks : (Ranks){0, (int)s->gpus};
    run->planned_ranks = comm_planned(ranks.n_ranks);
    run->planned_ranks.ranks.rank = ranks.rank;
    run->comm = ranks.n_ranks > 1 ? &run->planned_ranks : &comm_alone;
    if (!is_started || place->is_own) return true;
    const char *flag = s->gpus > 1 ? "gpus" : s->restarts ? "restarts" : NULL;
    if (!flag) run->settings.gpus = ranks.n_ranks; /* as log and checkpoint have them */
    return !flag ||
           fail(err, EXIT_INPUT, "--%s: %s started this process, as rank %d of %d; hint: leave --%s out%s",
                flag, place->launcher, ranks.rank, ranks.n_ranks, flag,
                s->gpus > 1 ? ", or start one process a host" : "");
}

bool setup_launches(const Run *run) {
    const Settings *s = &run->settings;
    return !run->place.is_own && run->place.ranks.n_ranks == 1 && (s->gpus > 1 || s->restarts > 0);
}

/* ---- devices ---- */

static bool on_cpu(const Run *run) {
    return run->ops == &ops_cpu;
}

/* Of the Comm of all ranks; one of ranks that share sequences out is heavy. */
static NcclLoad nccl_load(const Run *run, bool one_host) {
    const Settings *s = &run->settings;
    const bool exchanges_layers = s->optimizer == OPTIMIZER_MUON || s->reproducible > 0;
    return comm_nccl_load(exchanges_layers ? NCCL_HEAVY : NCCL_LIGHT, one_host);
}

void setup_plan_exchange(const Run *run, Comm *planned) {
    if (planned->ranks.n_ranks == 1) return;
    const Place *place = &run->place;
    const bool of_all = planned == &run->planned_ranks;
    const bool one_host =
        place->ranks.n_ranks == 1 || place->is_own || place->n_local == place->ranks.n_ranks;
    const NcclLoad load = of_all ? nccl_load(run, one_host) : NCCL_HEAVY;
    planned->fixed_bytes = on_cpu(run) ? comm_sockets_fixed_bytes() : comm_nccl_fixed_bytes(load, of_all);
    if (!on_cpu(run)) planned->attached_bytes = comm_nccl_attached_bytes;
}

/* *seconds stays where the variable is not set. */
static bool read_seconds(const char *variable, double *seconds, Error *err) {
    const char *text = getenv(variable);
    char *end;
    if (!text || !*text) return true;
    *seconds = strtod(text, &end);
    return (*end == '\0' && *seconds >= 1 && *seconds <= SECONDS_MAX) ||
           fail(err, EXIT_INPUT, "%s='%.40s' is not a number from 1 to %d", variable, text, SECONDS_MAX);
}

/* How long ranks wait for each other, as the environment says. */
static bool read_patience(double *to_join, Error *err) {
    return read_seconds("LLMC_JOIN_SECONDS", to_join, err) &&
           read_seconds("LLMC_STUCK_SECONDS", &watchdog_seconds_stuck, err);
}

/* Ranks that share a core wait for each other in turn. */
static void note_few_cores(int n_ranks) {
    enum { MOST_OF_A_CORE = 4 };
    const int cores = cpu_cores();
    if (n_ranks > MOST_OF_A_CORE * cores)
        print_note("--gpus %d: %d processes share %d core%s, which is slow; hint: --gpus %d", n_ranks,
                   n_ranks, cores, cores > 1 ? "s" : "", cores);
}

bool setup_check_devices(const Run *run, Error *err) {
    const int asked = (int)run->settings.gpus;
    double unused;
    /* once, not by every rank; and before other files are opened */
    if (asked > 1 && (!rendezvous_room(asked, err) || !read_patience(&unused, err))) return false;
    const int n = on_cpu(run) ? asked : cuda_device_count();
    if (on_cpu(run)) note_few_cores(asked);
    return asked <= n || fail(err, EXIT_INPUT, "--gpus %d: this machine has %d; hint: --gpus %d%s", asked, n,
                              n, n == 1 ? ", or leave it out" : "");
}

/* A launcher may have shown each process its own card alone. */
static bool open_device(const Run *run, Error *err) {
    const int n = on_cpu(run) ? 1 : cuda_device_count();
    const int index = n == 1 ? 0 : run->rendezvous.place.local_rank;
    if (index >= n)
        return fail(err, EXIT_INPUT,
                    "local rank %d, but this host has %d GPUs; hint: at most as many processes", index, n);
    return run->ops->device->open(index, err);
}

/* ---- the others ---- */

/* All that must be the same on every rank; a text that is too long is cut, the same way everywhere. */
static void settings_text(const Settings *s, char *text, size_t size) {
    const size_t n = (size_t)snprintf(text, size, "program %s\n", program_version());
    flags_to_lines(s, text + n, size - n);
}

/* With the n ranks around this one: all, or its neighbours, which share sequences out. */
static Comm *open_comm(Run *run, int n, NcclLoad load, Error *err) {
    Rendezvous *r = &run->rendezvous;
    return on_cpu(run) ? comm_sockets_open(r, n, err) : comm_nccl_open(r, run->ops->device, n, load, err);
}

/* A failure that all ranks know: one line, from rank 0. */
static _Noreturn void end_all(const Run *run, const Error *err) {
    watchdog_stop();
    if (ranks_leads(run->comm->ranks)) die(err);
    end_process(err->exit_code);
}

void setup_agree(const Run *run, bool ok, Error *err) {
    const bool leads = ranks_leads(run->comm->ranks);
    const Error own = *err;
    if (run->comm->agree(run->comm, ok, err)) return;
    end_all(run, leads && !ok
                     ? &own
                     : err); /* what is wrong on rank 0 may be wrong on all: its number says nothing */
}

/* What NCCL takes depends on its version, the cards and how they are linked, so it is measured. On the CPU other programs
 * share the memory, and the plan stands for it. */
static void open_exchange(Run *run) {
    Error err = {0};
    const Device *device = run->ops->device;
    size_t before, after, total;
    device->memory_info(&before, &total);
    Comm *comm = open_comm(run, run->place.ranks.n_ranks, nccl_load(run, run->rendezvous.n_hosts == 1),
                           &err); /* both end in agreement */
    if (!comm) end_all(run, &err);
    run->comm = comm;
    if (run->settings.context_gpus > 1 &&
        !(run->context = open_comm(run, (int)run->settings.context_gpus, NCCL_HEAVY, &err)))
        end_all(run, &err);
    device->memory_info(&after, &total);
    if (!on_cpu(run))
        run->exchange_bytes = before > after ? before - after : 0;
    else
        run->exchange_bytes = comm->fixed_bytes + (run->context ? run->context->fixed_bytes : 0);
}

void setup_join(Run *run) {
    static char text[SETTINGS_BYTES];
    Rendezvous *r = &run->rendezvous;
    const int n = run->place.ranks.n_ranks;
    Error err = {0};
    double seconds = SECONDS_TO_JOIN;
    bool rank_0_knows;
    if (n == 1) return;
    if (!read_patience(&seconds, &err)) die(&err);
    if (!rendezvous_open(r, &run->place, seconds, &rank_0_knows, &err)) {
        if (!ranks_leads(run->place.ranks) && rank_0_knows) end_process(err.exit_code);
        die(&err);
    }
    if (!watchdog_start(r, &err)) die(&err);
    settings_text(&run->settings, text, sizeof text);
    if (!ranks_have_same(r, text, &err)) end_all(run, &err);
    if (!ranks_agree(r, open_device(run, &err), &err)) end_all(run, &err);
    open_exchange(run);
}

int setup_leave(Run *run, int status) {
    if (run->place.ranks.n_ranks == 1) return status;
    watchdog_stop();
    if (run->settings.context_gpus > 1) comm_close(run->context);
    comm_close(run->comm);
    rendezvous_close(&run->rendezvous);
    if (ends_at_once) end_process(status);
    return status;
}

int setup_launch(Run *run, char **argv) {
    const Settings *s = &run->settings;
    const Launch launch = {
        .n_ranks = (int)s->gpus,
        .restarts = (int)s->restarts,
        .has_resumed = s->resume,
    };
    setup_release_output(run);
    setup_close(run);
    return launch_ranks(&launch, argv);
}

/* ---- what the user sees ---- */

void setup_print_ranks(const Run *run) {
    const Rendezvous *r = &run->rendezvous;
    const int n = run->comm->ranks.n_ranks;
    if (n == 1) return;
    if (run->comm == &run->planned_ranks)
        console_row(setup_header(run), "ranks", "%d, what follows is of one of them", n);
    else
        console_row(setup_header(run), "ranks", "%d on %d %s, by %s; %s", n, r->n_hosts,
                    r->n_hosts == 1 ? "host" : "hosts", run->place.launcher, comm_description(run->comm));
}
