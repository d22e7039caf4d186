/* The learning rate at the corners of each schedule. */
#include "llmc/run/schedule.h"
#include "dev/test/check.h"

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-12;
}

static Settings schedule(ScheduleKind kind, double lr, double final_fraction, int64_t warmup, int64_t steps) {
    return (Settings){
        .schedule = kind, .lr = lr, .final_lr_fraction = final_fraction, .warmup = warmup, .steps = steps};
}

typedef struct Corner {
    ScheduleKind kind;
    double final_fraction;
    int64_t warmup, n_steps, step;
    double expected; /* max_lr is 1 */
} Corner;

static void test_corners(void) {
    static const Corner corners[] = {
  /* warm-up: (s+1)/W, the same for every kind */
        {SCHEDULE_COSINE,   0.1, 10, 110, 0,    0.1                      },
        {SCHEDULE_COSINE,   0.1, 10, 110, 8,    0.9                      },
        {SCHEDULE_COSINE,   0.1, 10, 110, 9,    1.0                      },
        {SCHEDULE_LINEAR,   0.1, 10, 110, 4,    0.5                      },
        {SCHEDULE_CONSTANT, 0.1, 10, 110, 4,    0.5                      },
        {SCHEDULE_WSD,      0.1, 10, 110, 4,    0.5                      },
 /* cosine: the top, a quarter, the middle, the last step, the end and after it */
        {SCHEDULE_COSINE,   0.1, 10, 110, 10,   1.0                      },
        {SCHEDULE_COSINE,   0.0, 10, 110, 35,   0.5 + 0.35355339059327376},
        {SCHEDULE_COSINE,   0.1, 10, 110, 60,   0.55                     },
        {SCHEDULE_COSINE,   0.0, 0,  2,   1,    0.5                      },
        {SCHEDULE_COSINE,   0.1, 10, 110, 110,  0.1                      },
        {SCHEDULE_COSINE,   0.1, 10, 110, 1000, 0.1                      },
 /* linear */
        {SCHEDULE_LINEAR,   0.1, 10, 110, 10,   1.0                      },
        {SCHEDULE_LINEAR,   0.1, 10, 110, 60,   0.55                     },
        {SCHEDULE_LINEAR,   0.0, 10, 110, 109,  0.01                     },
        {SCHEDULE_LINEAR,   0.1, 10, 110, 110,  0.1                      },
 /* constant: no final fraction */
        {SCHEDULE_CONSTANT, 0.1, 10, 110, 10,   1.0                      },
        {SCHEDULE_CONSTANT, 0.1, 10, 110, 109,  1.0                      },
        {SCHEDULE_CONSTANT, 0.1, 10, 110, 1000, 1.0                      },
 /* wsd: the decay is the last fifth of the whole run */
        {SCHEDULE_WSD,      0.1, 10, 100, 10,   1.0                      },
        {SCHEDULE_WSD,      0.1, 10, 100, 79,   1.0                      },
        {SCHEDULE_WSD,      0.1, 10, 100, 80,   1.0                      },
        {SCHEDULE_WSD,      0.0, 10, 100, 85,   0.5                      }, /* 1 - sqrt(5/20) */
        {SCHEDULE_WSD,      0.1, 10, 100, 85,   0.55                     },
        {SCHEDULE_WSD,      0.1, 10, 100, 100,  0.1                      },
 /* and where the warm-up takes longer, all that it leaves */
        {SCHEDULE_WSD,      0.1, 84, 100, 83,   1.0                      },
        {SCHEDULE_WSD,      0.1, 84, 100, 84,   1.0                      },
        {SCHEDULE_WSD,      0.0, 84, 100, 88,   0.5                      }, /* 1 - sqrt(4/16) */
        {SCHEDULE_WSD,      0.1, 84, 100, 100,  0.1                      },
        {SCHEDULE_WSD,      0.1, 5,  5,   4,    1.0                      },
        {SCHEDULE_WSD,      0.1, 5,  5,   5,    0.1                      },
 /* no warm-up, and a run of one step */
        {SCHEDULE_COSINE,   0.1, 0,  100, 0,    1.0                      },
        {SCHEDULE_LINEAR,   0.1, 0,  100, 0,    1.0                      },
        {SCHEDULE_WSD,      0.1, 0,  100, 0,    1.0                      },
        {SCHEDULE_COSINE,   0.1, 0,  1,   0,    1.0                      },
        {SCHEDULE_LINEAR,   0.1, 0,  1,   0,    1.0                      },
        {SCHEDULE_WSD,      0.1, 0,  1,   0,    1.0                      },
        {SCHEDULE_COSINE,   0.1, 1,  1,   0,    1.0                      },
        {SCHEDULE_COSINE,   0.1, 5,  5,   4,    1.0                      }, /* warm-up all the way */
        {SCHEDULE_COSINE,   0.1, 5,  5,   5,    0.1                      },
    };
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++) {
        const Corner *c = &corners[i];
        const Settings s = schedule(c->kind, 1.0, c->final_fraction, c->warmup, c->n_steps);
        double lr = schedule_lr(&s, c->step);
        CHECK(near(lr, c->expected), "row %zu (kind %d, step %d): %.15g, expected %.15g", i, (int)c->kind,
              (int)c->step, lr, c->expected);
    }
}

/* Every schedule is finite, positive before its end, within [min, max], falls after the warm-up, and is
 * proportional to max_lr. */
static void test_shape(void) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++)
        for (int64_t warmup = 0; warmup <= 40; warmup += 13) {
            const Settings s = schedule((ScheduleKind)kind, 6e-4, 0.1, warmup, 200);
            const Settings tenfold = schedule((ScheduleKind)kind, 6e-3, 0.1, warmup, 200);
            double before = INFINITY;
            bool falls = true, inside = true, scales = true;
            for (int64_t step = 0; step < 220; step++) {
                double lr = schedule_lr(&s, step);
                inside = inside && lr > 0 && lr <= 6e-4 && (step < warmup || lr >= 6e-5 - 1e-18);
                scales = scales && near(schedule_lr(&tenfold, step), 10 * lr);
                if (step >= warmup) {
                    falls = falls && lr <= before;
                    before = lr;
                }
            }
            CHECK(falls && inside && scales, "kind %d, warm-up %d", kind, (int)warmup);
        }
}

int main(void) {
    test_corners();
    test_shape();
    return check_finish("schedule");
}
