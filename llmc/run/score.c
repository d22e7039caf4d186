#include "score.h"
#include <stdlib.h>
#include "llmc/comm/watchdog.h"

/* Batches whose losses stay on the device, so that the host waits once for all of them. */
enum { GROUP = 16 };

typedef struct Scoring {
    const Choices *choices;
    const ChoicePlan *plan;
    int64_t n;                /* tokens of the largest batch */
    int32_t *tokens;          /* (2, n): and targets */
    float *losses;            /* (GROUP, n) */
    float *kept;              /* (GROUP, n) on the device */
    double *means;            /* (n_rows): of rows of other ranks 0 */
    int batches[GROUP], held; /* whose losses are in kept */
} Scoring;

static void scoring_close(Scoring *s, const Device *device) {
    free(s->tokens);
    free(s->losses);
    free(s->means);
    device->free(s->kept);
}

static bool scoring_open(Scoring *s, const Run *run, Error *err) {
    const Device *device = run->ops->device;
    *s = (Scoring){.choices = run->choices, .plan = &run->choice_plan};
    for (int i = 0; i < s->plan->n_batches; i++) {
        const int64_t n = (int64_t)s->plan->batches[i].B * s->plan->batches[i].T;
        if (n > s->n) s->n = n;
    }
    const size_t n = (size_t)s->n;
    s->tokens = malloc(2 * n * sizeof *s->tokens);
    s->losses = malloc(GROUP * n * sizeof *s->losses);
    s->means = calloc((size_t)s->choices->n_rows, sizeof *s->means);
    s->kept = device->alloc(GROUP * n * sizeof *s->kept);
    if (s->tokens && s->losses && s->means && s->kept) return true;
    scoring_close(s, device);
    return fail(err, EXIT_RUN, "--hellaswag: no memory for the losses of %d batches of %lld tokens", GROUP,
                (long long)s->n);
}

/* Waits for the batches held. */
static void collect(Scoring *s, const Device *device) {
    if (s->held) device->download(s->losses, s->kept, (size_t)(s->held * s->n) * sizeof *s->losses);
    for (int i = 0; i < s->held; i++) {
        const ChoiceBatch *batch = &s->plan->batches[s->batches[i]];
        for (int b = 0; b < batch->n_rows; b++) {
            const int row = s->plan->order[batch->first + b];
            s->means[row] = choices_mean_loss(&s->choices->rows[row],
                                              s->losses + i * s->n + (int64_t)b * batch->T, batch->T);
        }
    }
    s->held = 0;
}

static void queue_batch(Scoring *s, GPT2 *model, int i) {
    const ChoiceBatch *batch = &s->plan->batches[i];
    int32_t *targets = s->tokens + s->n;
    choices_fill(s->choices, s->plan, batch, s->tokens, targets);
    const float *losses = gpt2_losses(model, s->tokens, targets, batch->B, batch->T);
    model->ops->device->copy(s->kept + s->held * s->n, losses,
                             (size_t)batch->B * (size_t)batch->T * sizeof *losses);
    s->batches[s->held++] = i;
    if (s->held == GROUP) collect(s, model->ops->device);
    watchdog_progress(); /* a device that hangs stops it within a group */
}

bool training_score(Training *t, ChoiceScore *score, unsigned char *chosen, Error *err) {
    Run *run = t->run;
    Comm *comm = run->comm;
    const Ranks ranks = comm->ranks;
    Scoring s;
    *score = (ChoiceScore){0}; /* where it is broken off */
    watchdog_set(PHASE_VALIDATION, t->state.step);
    if (!scoring_open(&s, run, err)) return false;
    for (int round = 0; round * ranks.n_ranks < s.plan->n_batches; round++) { /* all ranks make all of them */
        const int i = round * ranks.n_ranks + ranks.rank;
        if (training_stops(t) || (round % GROUP == 0 && training_agrees_to_stop(t))) break;
        if (i >= s.plan->n_batches) break;
        console_status(&t->console, "scoring: batch %d of %d", i + 1, s.plan->n_batches);
        queue_batch(&s, &run->model, i);
    }
    collect(&s, run->ops->device);
    if (!training_stops(t)) {
        comm->sum_on_host(comm, s.means, s.choices->n_rows);
        *score = choices_score(s.choices, s.means, chosen);
    }
    scoring_close(&s, run->ops->device);
    return true;
}
