/* Signals: what they ask of a training run, and the standard files that the system handed over.
 *
 *   SIGINT, SIGTERM, SIGHUP   the first asks for the end of the run and is answered at once, on stderr; the second
 *                             ends the process as the signal does by itself. Until stop_catch() the first does so, too.
 *                             One from the parent within 3 s of another's is the same, handed on by a launcher
 *   SIGUSR1                   asks for a checkpoint; the run goes on */
#pragma once
#include <stdbool.h>

/* What the run is at, for the answer and for how long it may go on. */
typedef enum {
    STOP_IN_STEP,  /* the step at hand is ended where it has a second or less to go; else it is left out */
    STOP_IN_QUEUE, /* steps that the device runs ahead, or of many ranks: ended */
    STOP_IN_EVALUATION, /* left out */
    STOP_IN_SAMPLE,     /* left out */
    STOP_IN_SAVE,       /* ended */
    N_STOP_PHASES
} StopPhase;

/* First of all in main(). A file-size limit (SIGXFSZ) does not end the program: the failed write is seen where it is
 * made. A closed stdin, stdout or stderr is opened on /dev/null, so that no file of ours gets its number; to read from
 * it, or to write to it, fails as before (EBADF). */
void stop_prepare(void);
/* Signals are answered by another process: this one does what they ask, and says nothing. */
void stop_say_nothing(void);
/* Nor does a reader that leaves, from now on (SIGPIPE). */
void stop_ignore_pipe(void);
/* From now on the signals are as above. A SIGHUP that was ignored (nohup) stays so. */
void stop_catch(void);
/* What the run is at, and when (as clock_seconds() counts) that ends; INFINITY: not known. */
void stop_expect(StopPhase phase, double until);
/* The run is to end. */
bool stop_requested(void);
/* What can be left out is to end here and now; once true, it stays so. */
bool stop_now(void);
/* A checkpoint was asked for since the last call. */
bool stop_take_save_request(void);

/* From now on a signal that would end the process waits for stop_end_deferred(), which does; stop_is_deferred(): there
 * is one. The second does not wait. */
void stop_defer(void);
bool stop_is_deferred(void);
void stop_end_deferred(void);

/* In a chat SIGINT, from the first call on, ends what is drawn alone: stop_interrupted() is true until it is forgotten.
 * Between stop_expect_line(prompt) and stop_expect_line(NULL) a line is read: then the prompt comes again, on stderr. */
void stop_catch_interrupt(void);
void stop_expect_line(const char *prompt);
bool stop_interrupted(void);
void stop_forget_interrupt(void);
