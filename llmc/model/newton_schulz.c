#include "newton_schulz.h"

/* Polar Express (Amsel et al. 2025), each step the best for what the one before leaves of [0.001, 1]: p in [0.84, 1.15]
 * there, and p(s) = 970 s below. Jordan et al. 2024, one polynomial for all steps: [0.68, 1.21] from s = 0.002 on, 485 s
 * below; it never settles. With modded-nanogpt's models the first took 10 steps of 1,400 less to the same loss. */
/* clang-format off */
#define JORDANS {3.4445f, -4.775f, 2.0315f}
const NewtonSchulz newton_schulz[N_POLYNOMIALS] = {
    [POLAR_EXPRESS] = {"polar-express", 1.02f, {{8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
                                                {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
                                                {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
                                                {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
                                                {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f}}},
    [JORDAN] = {"jordan", 1, {JORDANS, JORDANS, JORDANS, JORDANS, JORDANS}},
};
/* clang-format on */
