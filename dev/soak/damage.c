/* Damaged files of every kind, read by the readers of the program. Promised:
 *   checkpoint  (has checksums) it is refused, or its weights, size, moments, state and tokens are the undamaged ones;
 *   model       (somebody else's, no checksums) it is refused, or its size is one that the program can compute with, and
 *               what its tokenizer encodes spells the text: values of weights can change, and only those are counted;
 *   shards      refused, or as many tokens as were written, each of them in the vocabulary;
 *   text        any bytes are text: its tokens are its bytes, or it is refused as what it is.
 * A refusal is one line and exit code 1 or 2; a sanitizer's report ends the worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/dataloader.h"
#include "llmc/tokenizer/tokenizer.h"
#include "dev/test/small_vocabulary.h"
#include "soak.h"

typedef enum { EXACT, FOREIGN, SHARD, TEXT } Promise;

enum { MODEL = 1, TOKENS = 2, MOMENTS = 4, DATA = 8 };
enum { COUNT_REFUSED, COUNT_SAME, COUNT_OTHER, COUNT_LEFT_OUT };

typedef struct Subject {
    const char *folder, *file; /* what is damaged; the folder, or with `alone` the file, is opened */
    int reads;
    Promise promise;
    bool alone;
} Subject;

static const Subject subjects[] = {
    {"bytes/step_00000002", "config.json",           MODEL | TOKENS,           EXACT,   false},
    {"bytes/step_00000002", "model.safetensors",     MODEL | TOKENS,           EXACT,   false},
    {"bytes/step_00000002", "tokenizer.bin",         MODEL | TOKENS,           EXACT,   false},
    {"bytes/step_00000002", "trainer_state.json",    MODEL | TOKENS,           EXACT,   false},
    {"bytes/step_00000002", "optimizer.safetensors", MODEL | TOKENS | MOMENTS, EXACT,   false},
    {"bytes/step_00000002", "trainer_state.json",    MODEL | TOKENS | MOMENTS, EXACT,   false},
    {"bytes/step_00000002", "model.safetensors",     MODEL | TOKENS | MOMENTS, EXACT,   false},
    {"bpe/step_00000002",   "config.json",           MODEL | TOKENS,           EXACT,   false},
    {"bpe/step_00000002",   "vocab.json",            MODEL | TOKENS,           EXACT,   false},
    {"bpe/step_00000002",   "merges.txt",            MODEL | TOKENS,           EXACT,   false},
    {"bpe/step_00000002",   "tokenizer.bin",         MODEL | TOKENS,           EXACT,   false},
    {"bpe/step_00000002",   "trainer_state.json",    MODEL | TOKENS,           EXACT,   false},
    {"hf",                  "config.json",           MODEL,                    FOREIGN, false},
    {"hf",                  "model.safetensors",     MODEL,                    FOREIGN, false},
    {"hf",                  "vocab.json",            TOKENS,                   FOREIGN, false},
    {"hf",                  "merges.txt",            TOKENS,                   FOREIGN, false},
    {"json",                "tokenizer.json",        TOKENS,                   FOREIGN, false},
    {".",                   "small.bin",             TOKENS,                   FOREIGN, true },
    {".",                   "llmc.bin",              MODEL,                    FOREIGN, true },
    {".",                   "shard_000.bin",         DATA,                     SHARD,   true },
    {".",                   "wide_000.bin",          DATA,                     SHARD,   true },
    {".",                   "text",                  DATA,                     TEXT,    true },
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

static struct {
    bool usable; /* this build reads it */
    char *bytes;
    size_t n;
    uint64_t digest;
} whole[N_SUBJECTS];

/* ---- what a reader makes of it ---- */

static uint64_t mix(uint64_t digest, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

static bool digest_model(const char *path, bool moments, uint64_t *digest, Error *err) {
    GPT2 model = {0};
    GPT2Config config = {0};
    MemoryPlan plan;
    const GPT2Options options = {.B = 1, .T = 1, .training = moments};
    if (!checkpoint_read_config(path, &config, err)) return false;
    Error size = {0};
    if (!gpt2_config_check(&config, "size", &size))
        finding("%s: a size that cannot be computed with: %s", path, size.text);
    gpt2_memory_plan(&plan, &ops_cpu, &config, &options);
    if (plan.total_bytes > (size_t)1 << 28) return fail(err, EXIT_RUN, "more memory than there is");
    if (!gpt2_open(&model, &ops_cpu, &config, &options, err)) return false;
    TrainerState state = {0};
    const bool good =
        moments ? checkpoint_resume(path, &model, &state, err) : checkpoint_load_weights(path, &model, err);
    if (good) {
        const size_t bytes = (size_t)model.n_elements * sizeof(float);
        const int64_t numbers[] = {config.n_layer,    config.n_head,       config.n_embd,
                                   config.vocab_size, config.max_seq_len,  config.window,
                                   state.step,        state.data_position, state.tokens_seen,
                                   state.n_skipped,   (int64_t)state.seed};
        *digest = mix(mix(*digest, numbers, sizeof numbers), model.master, bytes);
        if (moments) *digest = mix(mix(*digest, model.states[ADAMW_M], bytes), model.states[ADAMW_V], bytes);
        if (state.flags) *digest = mix(*digest, state.flags, strlen(state.flags));
    }
    free((char *)state.flags);
    gpt2_close(&model);
    return good;
}

static bool digest_tokens(const char *path, uint64_t *digest, Error *err) {
    static const char text[] = "hello hell, caf\xC3\xA9's aaaa abc or 12 \x80\xff\n w";
    Tokenizer *tokenizer = tokenizer_open(path, err);
    if (!tokenizer) return false;
    int32_t *tokens = NULL;
    size_t n = 0, length;
    const bool good = tokenizer_encode(tokenizer, text, sizeof text - 1, &tokens, &n, err);
    for (int id = -1; good && id <= tokenizer_vocab_size(tokenizer); id++) {
        const char *bytes = tokenizer_bytes(tokenizer, id, &length);
        if (bytes) *digest = mix(mix(*digest, &length, sizeof length), bytes, length);
    }
    if (good && !spells(tokenizer, tokens, n, text, sizeof text - 1))
        finding("%s: its tokens do not spell the text", path);
    if (good) *digest = mix(*digest, tokens, n * sizeof *tokens);
    free(tokens);
    tokenizer_close(tokenizer);
    return good;
}

static bool digest_data(const char *path, const Subject *subject, uint64_t *digest, Error *err) {
    const bool text = subject->promise == TEXT;
    struct stat info;
    Tokenizer *bytes = tokenizer_open("bytes", err);
    const DataOptions options = {
        .pattern = path,
        .tokenizer = bytes,
        .vocab_size = 256,
        .split = SPLIT_ALL,
        .B = 1,
        .T = 8,
        .ranks = {0, 1}
    };
    DataLoader *loader = dataloader_open(&options, err);
    bool good = loader != NULL;
    const int64_t n = good ? dataloader_n_tokens(loader) : 0;
    if (good && text && stat(path, &info) == 0 && n != info.st_size)
        finding("%s: %lld tokens of %lld bytes", path, (long long)n, (long long)info.st_size);
    for (int64_t i = 0; good && i < (n - 1) / 8; i++) {
        const int32_t *tokens, *targets;
        good = dataloader_next(loader, &tokens, &targets, err);
        for (int k = 0; good && k < 8; k++)
            if (tokens[k] < 0 || tokens[k] > 255 || targets[k] < 0 || targets[k] > 255)
                finding("%s: token %d", path, tokens[k]);
    }
    *digest = mix(*digest, &n, text ? 0 : sizeof n); /* the tokens themselves may be others */
    dataloader_close(loader);
    tokenizer_close(bytes);
    return good;
}

/* All that the program would take from there; false with err where it is refused. */
static bool digest_subject(const char *root, const Subject *subject, uint64_t *digest, Error *err) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s%s%s", root, subject->folder, subject->alone ? "/" : "",
             subject->alone ? subject->file : "");
    *digest = 0xcbf29ce484222325u;
    if (subject->reads & MODEL && !digest_model(path, subject->reads & MOMENTS, digest, err)) return false;
    if (subject->reads & TOKENS && !digest_tokens(path, digest, err)) return false;
    return !(subject->reads & DATA) || digest_data(path, subject, digest, err);
}

/* ---- the undamaged files ---- */

static void write_llmc(const char *path) {
    enum { T = 8, V = 250, VP = 256, L = 1, C = 16 };
    const size_t n = VP * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    int32_t *file = calloc(256 + n, sizeof *file);
    const int32_t header[] = {20240326, 3, T, V, L, 2, C, VP};
    memcpy(file, header, sizeof header);
    write_whole(path, file, (256 + n) * sizeof *file);
    free(file);
}

static void write_shard(const char *path, int width) {
    enum { N = 500 };
    char file[1024 + 4 * N] = {0};
    const int32_t header[] = {width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7, N};
    memcpy(file, header, sizeof header);
    for (int i = 0; i < N; i++) file[1024 + i * width] = (char)(i * 7);
    write_whole(path, file, 1024 + (size_t)(N * width));
}

/* A Hugging Face tokenizer.json of the same vocabulary. */
static void write_tokenizer_json(const char *root) {
    must_run("cd %s && mkdir -p json && { printf "
             "'{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
             "\"ByteLevel\","
             "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
             "\"decoder\":{\"type\":\"ByteLevel\"},"
             "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"vocab\":'; cat "
             "hf/vocab.json; printf ',\"merges\":['; "
             "tail -n +2 hf/merges.txt | sed 's/.*/\"&\"/' | paste -s -d , -; printf ']}}'; } "
             ">json/tokenizer.json",
             root);
}

static const char *in_root(const char *root, const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void prepare(void) {
    char root[FOLDER_BYTES], text[3000];
    uint8_t vocabulary[4096];
    static const char words[] = "hello world, the café's abc aaaa or ";
    snprintf(root, sizeof root, "%s/whole", soak_folder);
    must_run("rm -rf %s; mkdir %s", root, root);
    for (size_t i = 0; i < sizeof text; i++) text[i] = words[i % (sizeof words - 1)];
    write_whole(in_root(root, "text"), text, sizeof text);
    write_whole(in_root(root, "small.bin"), vocabulary, make_bin(vocabulary));
    write_llmc(in_root(root, "llmc.bin"));
    write_shard(in_root(root, "shard_000.bin"), 2);
    write_shard(in_root(root, "wide_000.bin"), 4);
    for (int bpe = 0; bpe < 2; bpe++)
        must_run("cd %s && %s --device cpu --layers 1 --heads 2 --channels 16 --batch 2 --seq 8 --steps 2 "
                 "--sample-tokens 0 --eval-batches 1 --optimizer adamw "
                 "--train text --out %s >out 2>&1",
                 root, soak_program, bpe ? "bpe --tokenizer small.bin" : "bytes");
    must_run("cd %s && mkdir hf && cd bpe/step_00000002 && cp config.json model.safetensors vocab.json "
             "merges.txt ../../hf",
             root);
    write_tokenizer_json(root);
}

static void worker_root(int worker, char *root) {
    snprintf(root, FOLDER_BYTES, "%s/damaged_%d", soak_folder, worker);
}

static void begin(int worker) {
    char root[FOLDER_BYTES], path[PATH_BYTES];
    Error err = {0};
    worker_root(worker, root);
    must_run("rm -rf %s; cp -r %s/whole %s", root, soak_folder, root);
    if (!ops_cpu.device->open(0, &err)) finding("%s", err.text);
    for (int i = 0; i < N_SUBJECTS; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", root, subjects[i].folder, subjects[i].file);
        whole[i].usable = try_read_whole(path, &whole[i].bytes, &whole[i].n) &&
                          digest_subject(root, &subjects[i], &whole[i].digest, &err);
        if (!whole[i].usable && worker == 0)
            printf("  damage: %s/%s is left out: %s\n", subjects[i].folder, subjects[i].file, err.text);
    }
    fflush(stdout);
}

/* ---- damage ---- */

static size_t any_place(size_t n) {
    /* Half of them in the beginning, where headers are. */
    const size_t most = n > 64 && draw_below(2) ? 64 + (size_t)draw_below(1200) : n;
    return (size_t)draw_below((int64_t)(most < n ? most : n));
}

static void put_number(char *bytes, size_t n, size_t at) {
    static const uint64_t wild[] = {0,
                                    1,
                                    0x7f,
                                    0xff,
                                    0x7fff,
                                    0xffff,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x7fffffffffffffff,
                                    0xffffffffffffffff};
    const uint64_t value = wild[draw_below(sizeof wild / sizeof *wild)];
    const size_t width = (size_t)1 << draw_below(4);
    memcpy(bytes + at, &value, at + width <= n ? width : n - at);
}

/* Another digit, sign, bracket or escape in place of a byte of its kind, as text files have them. */
static void change_sign(char *bytes, size_t n, size_t at) {
    static const char signs[] = "0123456789-+.eE\"\\{}[]:, \nntu";
    for (size_t i = 0; i < n; i++)
        if (strchr(signs, bytes[(at + i) % n])) {
            bytes[(at + i) % n] = signs[draw_below(sizeof signs - 1)];
            return;
        }
}

/* One random damage to bytes with room for twice as many; the new size. */
static size_t damage(char *bytes, size_t n) {
    if (n == 0) return 0;
    const size_t at = any_place(n), length = (size_t)draw_below((int64_t)(n - at)) + 1,
                 part = length > 64 && draw_below(2) ? 64 : length;
    switch (draw_below(10)) {
    case 0:
        bytes[at] ^= (char)(1 << draw_below(8));
        return n;
    case 1:
        bytes[at] = (char)draw();
        return n;
    case 2:
        return at; /* cut */
    case 3:
        return n - (size_t)draw_below((int64_t)(n < 9 ? n : 9)); /* cut a little */
    case 4:
        memset(bytes + at, 0, part);
        return n; /* a block that never reached the disk */
    case 5:
        memmove(bytes + at, bytes + draw_below((int64_t)(n - part) + 1), part);
        return n;
    case 6:
        memmove(bytes + at, bytes + at + part, n - at - part);
        return n - part;
    case 7:
        memcpy(bytes + n, bytes + at, part);
        return n + part;
    case 8:
        put_number(bytes, n, at);
        return n;
    default:
        change_sign(bytes, n, at);
        return n;
    }
}

static void check_refusal(const char *path, const Error *err) {
    if (err->exit_code != EXIT_INPUT && err->exit_code != EXIT_RUN)
        finding("%s: refused with exit code %d", path, err->exit_code);
    if (!*err->text || strpbrk(err->text, "\n\r\033")) finding("%s: refused with '%s'", path, err->text);
}

static void run(int worker, int64_t number, int64_t *counts) {
    const int which = (int)(number % N_SUBJECTS);
    const Subject *subject = &subjects[which];
    char root[FOLDER_BYTES], path[PATH_BYTES];
    Error err = {0};
    uint64_t digest;
    if (!whole[which].usable) {
        counts[COUNT_LEFT_OUT]++;
        return;
    }
    worker_root(worker, root);
    snprintf(path, sizeof path, "%s/%s/%s", root, subject->folder, subject->file);
    size_t n = whole[which].n;
    char *bytes = malloc(16 * n + 16);
    memcpy(bytes, whole[which].bytes, n);
    for (int64_t left = draw_below(3); left >= 0; left--) n = damage(bytes, n);
    if (draw_below(200) == 0)
        unlink(path);
    else
        write_whole(path, bytes, n);
    const bool taken = digest_subject(root, subject, &digest, &err),
               same = taken && digest == whole[which].digest;
    if (!taken) check_refusal(path, &err);
    if (taken && !same && subject->promise == EXACT)
        finding("%s: taken, with other contents, from a checkpoint with checksums", path);
    if (taken && !same && subject->promise == SHARD)
        finding("%s: taken, with another number of tokens", path);
    counts[!taken ? COUNT_REFUSED : same ? COUNT_SAME : COUNT_OTHER]++;
    unlink(path);
    write_whole(path, whole[which].bytes, whole[which].n);
    free(bytes);
}

const Campaign damage_campaign = {
    "damage",
    "DAMAGED",
    20000,
    prepare,
    begin,
    run,
    {"refused", "taken as the undamaged", "taken of a file without checksums", "left out"}
};
