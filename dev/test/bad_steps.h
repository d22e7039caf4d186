/* A step with a NaN or an infinity, in a weight or in a gradient, is left out, and leaves everything as it was. */
#pragma once
#include "reference_case.h"

/* Step 2 with `value` in the embedding of the first token (in a gradient instead, where in_gradient): left
 * out. */
static void bad_step(Case *c, GPT2 *model, float value, bool in_gradient) {
    const int64_t at = model->tensors[WTE].offset + (int64_t)c->tokens[0] * c->config.n_embd + 3;
    float good;
    c->ops->device->download(&good, model->master + at, sizeof good);
    if (!in_gradient) gpt2_set_weights(model, &value, at, 1);
    forward_backward(c, model);
    if (in_gradient) c->ops->device->upload(model->grads + at, &value, sizeof value);
    Snapshot before = snapshot(model);
    update(c, model, 2);
    char what[64];
    snprintf(what, sizeof what, "%g in a %s", (double)value, in_gradient ? "gradient" : "weight");
    check_same_bits(c, &before, snapshot(model), GRADS, what);
    StepStats stats = gpt2_step_stats(model);
    CHECK(stats.bad == 1 && stats.n_skipped == 1, "%s, %s: %s: bad %d, skipped %lld, expected 1 and 1",
          c->ops->name, c->model, what, stats.bad, (long long)stats.n_skipped);
    gpt2_set_weights(model, &good, at, 1);
    snapshot_free(&before);
}

/* Three steps of which the second is bad leave the bits of two good ones. */
static void test_bad_step(Case *c, float value, bool in_gradient) {
    GPT2 clean, model;
    if (!case_open(c, &clean, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    for (int step = 1; step <= 2; step++) {
        forward_backward(c, &clean);
        update(c, &clean, step);
    }
    Snapshot expected = snapshot(&clean);
    gpt2_close(&clean);
    if (case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) {
        forward_backward(c, &model);
        update(c, &model, 1);
        bad_step(c, &model, value, in_gradient);
        forward_backward(c, &model);
        update(c, &model, 3);
        StepStats stats = gpt2_step_stats(&model);
        CHECK(!stats.bad && stats.n_skipped == 1 && isfinite(stats.loss),
              "%s, %s: the step after a bad one: bad %d, skipped %lld, loss %g", c->ops->name, c->model,
              stats.bad, (long long)stats.n_skipped, (double)stats.loss);
        check_same_bits(c, &expected, snapshot(&model), -1, "a good step after a bad one");
        gpt2_close(&model);
    }
    snapshot_free(&expected);
}
