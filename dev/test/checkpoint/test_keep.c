/* What --keep and --keep-best remove and what they never do, leftovers of dead saves, and room on the disk. */
#include <math.h>
#include <string.h>
#include <sys/statvfs.h>
#include "dev/test/run_folder.h"
#include "llmc/checkpoint/checkpoint_directory.h"

/* Bytes that the disk says are free; < 0: it does not say. */
static int64_t fake_room = -1;
static bool fake_size_unknown; /* the numbers are zeros, as some file systems give them */

int fstatvfs(int fd, struct statvfs *info) {
    memset(info, 0, sizeof *info);
    info->f_blocks = fake_size_unknown ? 0 : 1;
    info->f_bsize = info->f_frsize = 1;
    info->f_bavail = fake_room < 0 ? 0 : (fsblkcnt_t)fake_room;
    return fake_room < 0 ? -1 : 0;
}

/* ---- keep ---- */
static void test_prune(void) {
    Error err = {0};
    for (int step = 1; step <= 3; step++)
        CHECK(save(path_of("keep"), 1, step * 1000, 0, &err), "%s", err.text);
    CHECK(count_names(path_of("keep"), "step_") == 3, "keep 0 keeps all");
    CHECK(truncate(path_of("keep/step_00003000/model.safetensors"), 100) == 0, "truncate");
    CHECK(save(path_of("keep"), 2, 4000, 2, &err), "%s", err.text);
    const char *stay[] = {"keep/step_00002000", "keep/step_00003000", "keep/step_00004000"};
    for (int i = 0; i < 3; i++) CHECK(access(path_of(stay[i]), F_OK) == 0, "%s is gone", stay[i]);
    CHECK(access(path_of("keep/step_00001000"), F_OK) != 0, "the oldest whole one stays");
    CHECK(save(path_of("keep"), 3, 100000000, 1, &err), "%s", err.text);
    CHECK(newest_seed(path_of("keep")) == 3 && count_names(path_of("keep"), "step_") == 2,
          "nine digits are newer than eight");
    CHECK(count_names(path_of("keep"), ".") == 0, "leftovers");
}

/* A run that starts anew in a folder with later checkpoints loses neither those nor its own. */
static void test_prune_earlier_step(void) {
    Error err = {0};
    CHECK(save(path_of("anew"), 1, 500, 1, &err) && save(path_of("anew"), 2, 100, 1, &err), "%s", err.text);
    CHECK(access(path_of("anew/step_00000500"), F_OK) == 0, "the later checkpoint is gone");
    CHECK(access(path_of("anew/step_00000100"), F_OK) == 0, "the one just saved is gone");
    CHECK(save(path_of("anew"), 3, 200, 1, &err), "%s", err.text);
    CHECK(access(path_of("anew/step_00000100"), F_OK) != 0, "its predecessor stays");
}

/* Names that only look like a checkpoint's. */
static void test_other_names(void) {
    static const char *const others[] = {
        "step_9",       "step_0000009", "step_00000009x", "step_0000000000000000009", ".old-step_00000009",
        ".old-step_9-1"};
    Error err = {0};
    CHECK(save(path_of("names"), 1, 1, 0, &err), "%s", err.text);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char name[64];
        snprintf(name, sizeof name, "names/%s", others[i]);
        CHECK(save(path_of("names"), 2, 9, 0, &err), "%s", err.text);
        CHECK(rename(path_of("names/step_00000009"), path_of(name)) == 0, "rename to %s", name);
        CHECK(newest_seed(path_of("names")) == 1, "%s is taken for a checkpoint", others[i]);
        clean_quietly(path_of("names"));
        CHECK(access(path_of(name), F_OK) == 0, "%s is gone", others[i]);
    }
}

/* ---- --keep-best ---- */
static void save_with_loss(const char *out, int64_t step, double val_loss, bool best_only, int keep) {
    Error err = {0};
    const TrainerState state = {
        .step = step, .val_loss = val_loss, .best_val_loss = NAN, .best_only = best_only};
    const SaveOptions options = {.keep = keep, .keep_best = true};
    CHECK(checkpoint_save(out, &model, NULL, &state, &options, &err), "step %d: %s", (int)step, err.text);
}

/* The steps in OUT as text: "1 20". */
static const char *steps_in(const char *out) {
    static char text[400];
    char **names;
    int n = 0;
    Error err;
    text[0] = 0;
    if (!CHECK(directory_list(out, "step_", &names, &n, &err), "%s", err.text)) return text;
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), i ? " %d" : "%d", atoi(names[i] + 5));
    names_free(names, n);
    return text;
}

/* After each save, with --keep 2 and without --keep: what is there. */
static void test_keep_best(void) {
    static const struct {
        int step;
        double val_loss;
        bool best_only;
        const char *stay[2];
    } saves[] = {
        {10, 3,   false, {"10", "10"}                        },
        {15, 2,   true,  {"10 15", "10 15"}                  },
        {20, 2.5, false, {"10 15 20", "10 15 20"}            },
        {30, NAN, false, {"15 20 30", "10 15 20 30"}         },
        {35, 1,   true,  {"20 30 35", "10 20 30 35"}         },
        {40, 1,   false, {"30 35 40", "10 20 30 35 40"}      },
        {50, 0.5, false, {"40 50", "10 20 30 40 50"}         },
        {60, NAN, false, {"50 60", "10 20 30 40 50 60"}      },
        {70, 9,   false, {"50 60 70", "10 20 30 40 50 60 70"}},
    };
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++)
        for (int k = 0; k < 2; k++) {
            const char *out = k ? "best_all" : "best_2";
            if (i == 0)
                CHECK(isnan(checkpoint_lowest_loss(path_of(out), 99, NULL)), "%s: a loss of nothing", out);
            save_with_loss(path_of(out), saves[i].step, saves[i].val_loss, saves[i].best_only, k ? 0 : 2);
            CHECK(strcmp(steps_in(path_of(out)), saves[i].stay[k]) == 0, "%s, step %d: %s, expected %s", out,
                  saves[i].step, steps_in(path_of(out)), saves[i].stay[k]);
        }
    const double before = checkpoint_lowest_loss(path_of("best_all"), 49, NULL);
    const double lowest = checkpoint_lowest_loss(path_of("best_all"), 70, NULL);
    CHECK(before == 1 && lowest == 0.5, "the lowest losses are %g and %g, expected 1 and 0.5", before,
          lowest);
    CHECK(truncate(path_of("best_2/step_00000050/model.safetensors"), 9) == 0, "truncate");
    save_with_loss(path_of("best_2"), 80, 7, false, 1);
    CHECK(strcmp(steps_in(path_of("best_2")), "50 80") == 0, "a damaged one is not the best, nor goes: %s",
          steps_in(path_of("best_2")));
}

/* The loss of step 10 is the lowest, but on other data: --val, or --train where that is absent. */
static void test_keep_best_of_other_data(void) {
    static const struct {
        int step;
        double val_loss;
        const char *flags, *stay;
    } saves[] = {
        {10, 1, "{\"val\": null, \"train\": \"a.txt\"}",      "10"      },
        {20, 3, "{\"val\": \"b.txt\", \"train\": \"a.txt\"}", "10 20"   },
        {30, 5, "{\"val\": \"b.txt\", \"train\": \"c.txt\"}", "20 30"   },
        {40, 4, "{\"val\": \"b.txt\", \"train\": \"a.txt\"}", "20 30 40"},
    };
    const char *out = path_of("best_other");
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        Error err = {0};
        const TrainerState state = {.step = saves[i].step,
                                    .val_loss = saves[i].val_loss,
                                    .best_val_loss = NAN,
                                    .best_only = i == 0,
                                    .flags = saves[i].flags};
        const SaveOptions options = {.keep = 2, .keep_best = true, .validation = i ? "b.txt" : "a.txt"};
        CHECK(checkpoint_save(out, &model, NULL, &state, &options, &err), "%s", err.text);
        if (i == 0) CHECK(checkpoint_lowest_loss(out, 99, "a.txt") == 1, "a part of --train validates");
        if (i == 0) CHECK(isnan(checkpoint_lowest_loss(out, 99, "b.txt")), "none was validated on b.txt");
        CHECK(strcmp(steps_in(out), saves[i].stay) == 0, "step %d: %s, expected %s", saves[i].step,
              steps_in(out), saves[i].stay);
    }
    CHECK(checkpoint_lowest_loss(out, 99, "b.txt") == 3, "the lowest on b.txt");
}

/* ---- room on the disk ---- */
/* Saves of steps 1 to 3, then a disk that lacks a byte for the fourth. */
static void test_no_room(int keep, const char *stay) {
    Error err = {0};
    char out[32];
    const SaveOptions options = {.keep = keep};
    snprintf(out, sizeof out, "room%d", keep);
    for (int step = 1; step <= 3; step++) CHECK(save(path_of(out), 1, step, 0, &err), "%s", err.text);
    fake_room = checkpoint_bytes(&model.config, OPTIMIZER_ADAMW, false) - 1;
    CHECK(checkpoint_check_room(path_of(out), &model.config, OPTIMIZER_ADAMW, &options, &err) ==
              (keep >= 1 && keep <= 3),
          "--keep %d at the start", keep);
    CHECK(!save(path_of(out), 2, 4, keep, &err) && err.exit_code == EXIT_RUN &&
              strstr(err.text, "a checkpoint takes 0.") && strstr(err.text, "are free"),
          "--keep %d: %s", keep, err.text);
    CHECK(strcmp(steps_in(path_of(out)), stay) == 0, "--keep %d: %s stay", keep, steps_in(path_of(out)));
    fake_size_unknown = true;
    CHECK(checkpoint_check_room(path_of(out), &model.config, OPTIMIZER_ADAMW, &options, &err),
          "no size is not full: %s", err.text);
    fake_size_unknown = false;
    fake_room++;
    CHECK(checkpoint_check_room(path_of(out), &model.config, OPTIMIZER_ADAMW, &options, &err) &&
              save(path_of(out), 2, 4, 0, &err),
          "as many bytes as are needed: %s", err.text);
    fake_room = -1;
}

/* Where the newest is not what was written, nothing older goes before the save. */
static void test_no_room_beside_damage(const char *out, const char *file) {
    Error err = {0};
    char damaged[128];
    snprintf(damaged, sizeof damaged, "%s/step_00000003/%s", out, file);
    for (int step = 1; step <= 3; step++) CHECK(save(path_of(out), 1, step, 0, &err), "%s", err.text);
    flip_bit(path_of(damaged), 80000);
    fake_room = 0;
    CHECK(!save(path_of(out), 2, 4, 2, &err) && strcmp(steps_in(path_of(out)), "1 2 3") == 0, "%s stay",
          steps_in(path_of(out)));
    fake_room = -1;
}

/* What is said to be needed is enough, and not far from what is taken. */
static void test_bytes(void) {
    int64_t taken = 0;
    char **names, path[600];
    int n;
    Error err = {0};
    struct stat info;
    const char *out = "sized/step_00000001";
    CHECK(save(path_of("sized"), 1, 1, 0, &err), "%s", err.text);
    if (!CHECK(directory_list(path_of(out), "", &names, &n, &err), "%s", err.text)) return;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", path_of(out), names[i]);
        if (CHECK(stat(path, &info) == 0, "%s", path)) taken += info.st_size;
    }
    names_free(names, n);
    const int64_t said = checkpoint_bytes(&model.config, OPTIMIZER_ADAMW, false);
    const int64_t n_values = model.n_parameters - 6 * 32; /* without the padding rows */
    CHECK(taken <= said && said - taken < 120000, "taken %lld, said %lld", (long long)taken, (long long)said);
    CHECK(said - checkpoint_bytes(&model.config, OPTIMIZER_ADAMW, true) == 8 * n_values,
          "the optimizer's part");
}

/* ---- leftovers ---- */
/* A checkpoint that a killed save had moved aside: a reader takes it where it is and changes nothing; the next run
 * puts it back, or removes it if it was replaced. */
static void test_moved_aside(void) {
    Error err = {0};
    const char *const out = "aside", *const placed = "aside/step_00000001";
    char path[256];
    CHECK(save(path_of(out), 1, 1, 0, &err), "%s", err.text);
    CHECK(rename(path_of(placed), path_of("aside/.old-step_00000001-999999999")) == 0, "rename");
    CHECK(newest_seed(path_of(out)) == 1 && access(path_of(placed), F_OK) != 0, "not found where it is");
    load_accepts(&model, path_of(out), 1);
    CHECK(access(path_of(placed), F_OK) != 0, "a reader moved it");
    checkpoint_clean(path_of(out));
    CHECK(access(path_of("aside/step_00000001/config.json"), F_OK) == 0,
          "the old checkpoint was not put back");
    CHECK(save(path_of(out), 2, 2, 0, &err), "%s", err.text);
    CHECK(rename(path_of(placed), path_of("aside/.old-step_00000002-999999999")) == 0, "rename");
    CHECK(find_quietly(path_of(out), path, &err) && strstr(path, "/step_00000002"), "found %s", path);
    checkpoint_clean(path_of(out));
    CHECK(count_names(path_of(out), "") == 1 && newest_seed(path_of(out)) == 2, "the replaced one stays");
}

/* Where the successor of one that was moved aside is damaged, both stay and the old one is found. */
static void test_damaged_successor(const char *out, const char *file) {
    Error err = {0};
    char placed[128], aside[128], damaged[192];
    snprintf(placed, sizeof placed, "%s/step_00000001", out);
    snprintf(aside, sizeof aside, "%s/.old-step_00000001-1", out);
    snprintf(damaged, sizeof damaged, "%s/%s", placed, file);
    CHECK(save(path_of(out), 1, 1, 0, &err), "%s", err.text);
    CHECK(rename(path_of(placed), path_of(aside)) == 0, "rename");
    CHECK(save(path_of(out), 2, 1, 0, &err), "%s", err.text);
    flip_bit(path_of(damaged), 80000);
    if (strcmp(file, "model.safetensors") == 0) /* weights alone are read to sample from them */
        CHECK(newest_seed(path_of(out)) == 1, "the whole one is not found");
    checkpoint_clean(path_of(out));
    CHECK(count_names(path_of(out), "") == 2, "%s: one of them is gone", file);
}

/* What dead runs left goes when the next run has the lock, also where a process of that number lives; a save alone
 * removes only what this process left. What holds files of others stays. */
static void test_leftovers(void) {
    Error err = {0};
    char living[64];
    snprintf(living, sizeof living, "left/.tmp-step_00000009-%ld", (long)getppid());
    CHECK(directory_make(path_of("left/.tmp-step_00000009-999999999"), &err) &&
              directory_make(path_of(living), &err) &&
              directory_make(path_of("left/.tmp-step_00000008-7"), &err),
          "%s", err.text);
    write_text(path_of("left/.tmp-step_00000008-7/notes.txt"), "mine");
    write_text(path_of("left/.tmp-step_00000008-7/config.json"), "");
    write_text(path_of("left/.tmp-step_00000009-999999999/config.json"), "");
    CHECK(save(path_of("left"), 1, 1, 0, &err) && count_names(path_of("left"), ".tmp-") == 3, "%s", err.text);
    clean_quietly(path_of("left"));
    CHECK(count_names(path_of("left"), ".tmp-") == 1 &&
              access(path_of("left/.tmp-step_00000008-7/notes.txt"), F_OK) == 0 &&
              access(path_of("left/.tmp-step_00000008-7/config.json"), F_OK) == 0,
          "leftovers");
}

int main(void) {
    if (!CHECK(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("keep");
    tiny_open(&model, &tiny_config);
    test_prune();
    test_prune_earlier_step();
    test_other_names();
    test_keep_best();
    test_keep_best_of_other_data();
    test_no_room(0, "1 2 3");
    test_no_room(1, "3");
    test_no_room(2, "3");
    test_no_room(3, "2 3");
    test_no_room(4, "1 2 3");
    test_no_room_beside_damage("worn", "model.safetensors");
    test_no_room_beside_damage("worn_optimizer", "optimizer.safetensors");
    test_bytes();
    test_moved_aside();
    test_damaged_successor("successor", "model.safetensors");
    test_damaged_successor("successor_optimizer", "optimizer.safetensors");
    test_leftovers();
    gpt2_close(&model);
    remove_tree(folder);
    return check_finish("keep");
}
