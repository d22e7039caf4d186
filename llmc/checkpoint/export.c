#include "export.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checkpoint.h"
#include "llmc/base/files.h"
#include "llmc/base/terminal.h"
#include "llmc/data/shard.h"
#include "llmc_bin.h"

enum { TYPE_NAME = 96 };

/* ---- the kinds ---- */

typedef struct Target {
    const struct Kind *kind;
    char folder[PATH_MAX], name[PATH_MAX]; /* PATH is FOLDER/NAME */
    char title[PATH_MAX];                  /* the name without its end */
    char modelfile[PATH_MAX];              /* beside a .gguf */
    ExportType type;
    const Tokenizer *tokenizer;
} Target;

static bool write_modelfile(const char *directory, const Target *t, int context, Error *err) {
    char text[2 * PATH_MAX + 300];
    const int n = snprintf(text, sizeof text,
                           "# ollama create NAME -f %s\n"
                           "FROM ./%s\n"
                           "TEMPLATE \"{{ .Prompt }}\"\n"
                           "PARAMETER num_ctx %d\n",
                           t->modelfile, t->name, context);
    return file_write(directory, t->modelfile, text, (size_t)n, err);
}

static bool write_gguf(const char *directory, const Target *t, GPT2 *model, Error *err) {
    return write_modelfile(directory, t, model->config.max_seq_len, err) &&
           gguf_save(directory, t->name, t->title, t->type, model, t->tokenizer, err);
}

/* Without the tokenizer where the folder has it. */
static bool write_bin(const char *directory, const Target *t, GPT2 *model, Error *err) {
    const DType dtype = t->type == EXPORT_BF16 ? DTYPE_BF16 : DTYPE_F32;
    const bool brings = t->tokenizer && !directory_has(t->folder, GPT2_TOKENIZER_FILE);
    return (!brings || tokenizer_save_bin(t->tokenizer, directory, GPT2_TOKENIZER_FILE, err)) &&
           llmc_bin_save(directory, t->name, model, dtype, err);
}

/* What the model's attention sees of its context: "the last 256 positions"; false: all. key: of config.json; from: the first
 * length of text that shows it. */
static bool attention_is_cut(char *seen, size_t size, const GPT2Config *c, const char **key, int *from) {
    const BlockSparse sparse = {.pattern = c->sparse};
    char tokens[48];
    if (c->window && c->window < c->max_seq_len) {
        snprintf(seen, size, "the last %d positions", c->window);
        *key = "attention_window";
        *from = c->window;
        return true;
    }
    if (!sparse_cuts(&sparse, c->max_seq_len)) return false;
    snprintf(seen, size, "blocks by --sparse %s", sparse_text(tokens, sizeof tokens, c->sparse));
    *key = "attention_sparse_blocks";
    *from = (c->sparse.window + c->sparse.first + c->sparse.random + 1) * MASK_BLOCK;
    return true;
}

static int page_text(char *page, size_t size, const char *seen, const char *key, const char *past) {
    return snprintf(page, size,
                    "Attention of this model sees %s (`%s` in "
                    "config.json). A program that does not\nknow the key, transformers among them, lets "
                    "it see all: its output is another past %s.\n",
                    seen, key, past);
}

/* transformers knows no window, no blocks and no documents. It warns of a tensor that it has no place for. */
static bool write_hugging_face(const char *directory, const Target *t, GPT2 *model, Error *err) {
    const GPT2Config *c = &model->config;
    char seen[80], past[32], cut[48] = "", note[160], page[800];
    const char *key;
    int from, n = 0;
    const bool is_cut = attention_is_cut(seen, sizeof seen, c, &key, &from);
    if (!is_cut && !c->documents) return checkpoint_write_model(directory, model, t->tokenizer, NULL, err);
    if (is_cut) {
        if (c->sparse.window)
            snprintf(cut, sizeof cut, "_in_sparse_blocks");
        else
            snprintf(cut, sizeof cut, "_window_of_%d_positions", c->window);
        snprintf(past, sizeof past, "%d tokens", from);
        n = page_text(page, sizeof page, seen, key, past);
    }
    if (c->documents)
        n += page_text(page + n, sizeof page - (size_t)n, "its own document only", "attention_documents",
                       "an end-of-text token");
    snprintf(note, sizeof note, "note.attention%s%s_is_not_applied_by_this_program", cut,
             c->documents ? "_by_documents" : "");
    return checkpoint_write_model(directory, model, t->tokenizer, note, err) &&
           file_write(directory, "README.md", page, (size_t)n, err);
}

/* To write one more kind, add a row before the last. */
/* clang-format off */
static const struct Kind {
    const char *end; /* of PATH */
    const char *reader, *hint;
    const char *f32_hint; /* NULL: the same */
    unsigned types;       /* bit by bit */
    bool has_window; /* or blocks, or says that there is one */
    bool is_folder, needs_tokenizer;
    bool (*write)(const char *directory, const Target *t, GPT2 *model, Error *err);
} kinds[] = {
    {".gguf", "llama.cpp", "llama-cli -m PATH; ollama create NAME -f the Modelfile beside it",
     .types = (1 << N_EXPORT_TYPES) - 1, .needs_tokenizer = true, .write = write_gguf},
    {".bin", "llm.c", "llm.c's train_gpt2cu -e PATH", "llm.c's train_gpt2cu -e PATH, of its make PRECISION=FP32",
     .types = 1 << EXPORT_F32 | 1 << EXPORT_BF16, .write = write_bin},
    {"", "Hugging Face", "AutoModelForCausalLM.from_pretrained(PATH)",
     .types = 1 << EXPORT_F32, .has_window = true, .is_folder = true, .write = write_hugging_face},
};
/* clang-format on */

static const struct Kind *kind_of(const char *path) {
    const struct Kind *kind = kinds;
    while (!text_ends_in(path, kind->end)) kind++;
    return kind;
}

const char *export_hint(const char *path, ExportType type) {
    const struct Kind *kind = kind_of(path);
    return type == EXPORT_F32 && kind->f32_hint ? kind->f32_hint : kind->hint;
}

/* ---- what stands in the way ---- */

static bool find_target(Target *t, const char *path, Error *err) {
    char copy[PATH_MAX];
    t->kind = kind_of(path);
    if (!path_copy(copy, path, err)) return false;
    for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--) copy[n - 1] = 0;
    path_parent(t->folder, copy);
    snprintf(t->name, sizeof t->name, "%s", path_name(copy));
    snprintf(t->title, sizeof t->title, "%.*s", (int)(strlen(t->name) - strlen(t->kind->end)), t->name);
    snprintf(t->modelfile, sizeof t->modelfile, "%.4000s.Modelfile", t->title);
    return *t->title || fail(err, EXIT_INPUT, "--export %s: expected a name before %s", path,
                             *t->kind->end ? t->kind->end : "the end");
}

static bool check_free(const Target *t, const char *name, Error *err) {
    char path[PATH_MAX];
    return path_join(path, t->folder, name, err) && (file_is_free(path, err) || fail_flag("export", err));
}

static bool check_type(const Target *t, const GPT2Config *config, Error *err) {
    char all[TYPE_NAME] = "";
    for (int i = 0, n = 0; i < N_EXPORT_TYPES; i++)
        if (t->kind->types >> i & 1)
            n += snprintf(all + n, sizeof all - (size_t)n, "%s%s", n ? " or " : "", export_type_names[i]);
    if (!(t->kind->types >> t->type & 1))
        return fail(err, EXIT_INPUT, "--export-type %s: files for %s are %s", export_type_names[t->type],
                    t->kind->reader, all);
    return gguf_check(config, t->type, err);
}

/* FOLDER/NAME, a token shard of the folder, into path (PATH_MAX bytes); false where there is none. */
static bool find_shard(char *path, const char *folder) {
    char **names;
    int n;
    bool found = false;
    Shard shard;
    Error ignored;
    if (!directory_list(folder, "", &names, &n, &ignored)) return false;
    for (int i = 0; !found && i < n; i++)
        found = text_ends_in(names[i], ".bin") && path_join(path, folder, names[i], &ignored) &&
                shard_check(path, &shard, &ignored);
    names_free(names, n);
    return found;
}

/* Whether the file has the model's tokenizer; *is_one: any. */
static bool has_tokenizer(const char *path, const Target *t, bool *is_one) {
    Error unread = {0};
    Tokenizer *found = tokenizer_open(path, &unread);
    const bool same = found && tokenizer_equals(found, t->tokenizer);
    *is_one = found != NULL;
    tokenizer_close(found);
    return same;
}

/* A tokenizer that is written beside shards becomes theirs, before one in the folder above: those that have other
 * tokens could not be trained on any more. */
static bool check_shards(const Target *t, Error *err) {
    char shard[PATH_MAX], above[PATH_MAX];
    bool is_one;
    if (!find_shard(shard, t->folder)) return true;
    if (!path_join(above, t->folder, "../" GPT2_TOKENIZER_FILE, err)) return false;
    return has_tokenizer(above, t, &is_one) ||
           fail(err, EXIT_INPUT,
                "--export: a .bin brings %s, which would be taken for that of the token shards in its "
                "folder, %s among them; hint: another folder",
                GPT2_TOKENIZER_FILE, path_name(shard));
}

/* What the folder has for a .bin's tokenizer must be this one. */
static bool check_beside(const Target *t, Error *err) {
    char path[PATH_MAX];
    bool is_one;
    if (!t->tokenizer) return true;
    if (!directory_has(t->folder, GPT2_TOKENIZER_FILE)) return check_shards(t, err);
    if (!path_join(path, t->folder, GPT2_TOKENIZER_FILE, err)) return false;
    return has_tokenizer(path, t, &is_one) ||
           fail(err, EXIT_INPUT,
                "--export: %s, where a .bin's tokenizer is looked for, is %s; hint: another folder", path,
                is_one ? "another one than the model's" : "no tokenizer that can be read");
}

/* A folder's name that ends like a file's was meant as a file: "m.GGUF", "model.safetensors". */
static bool check_name(const Target *t, const char *path, Error *err) {
    static const char *const ends[] = {".gguf", ".ggml", ".bin",  ".safetensors", ".pt",
                                       ".pth",  ".ckpt", ".onnx", ".json",        ".txt"};
    const char *end = strrchr(t->name, '.');
    for (size_t i = 0; t->kind->is_folder && end && i < sizeof ends / sizeof *ends; i++)
        if (strcasecmp(end, ends[i]) == 0)
            return fail(err, EXIT_INPUT,
                        "--export %s: expected NAME.gguf, NAME.bin or the name of a Hugging Face directory, "
                        "found a name that ends with %s",
                        path, end);
    return true;
}

static bool check_kind(const Target *t, const GPT2Config *c, Error *err) {
    const struct Kind *kind = t->kind;
    if (kind->needs_tokenizer && !t->tokenizer)
        return fail(err, EXIT_INPUT,
                    "--export: a %s holds the tokenizer, and the model has none; hint: --tokenizer PATH",
                    kind->end);
    char seen[80];
    const char *key;
    int from;
    if (!kind->has_window && attention_is_cut(seen, sizeof seen, c, &key, &from))
        return fail(err, EXIT_INPUT,
                    "--export: %s has no window, and the model's attention sees %s of %d; hint: "
                    "a Hugging Face directory, or --%s 0, which changes what it computes",
                    kind->reader, seen, c->max_seq_len, c->window ? "window" : "sparse");
    return kind->write != write_bin || check_beside(t, err);
}

static bool check_target(Target *t, const char *path, const GPT2Config *config, Error *err) {
    if (!find_target(t, path, err) || !check_name(t, path, err)) return false;
    if (!directory_is_writable(t->folder, err)) return fail_flag("export", err);
    if (!check_type(t, config, err) || !check_free(t, t->name, err)) return false;
    if (t->kind->write == write_gguf && !check_free(t, t->modelfile, err)) return false;
    return check_kind(t, config, err);
}

bool export_check(const char *path, ExportType type, const GPT2Config *config, const Tokenizer *tokenizer,
                  Error *err) {
    Target t = {.type = type, .tokenizer = tokenizer};
    return check_target(&t, path, config, err);
}

/* ---- into place ---- */

/* What exports of that name left that were killed: ".tmp-NAME-PID" of a process that is no more, or of this one's number. */
static void remove_leftovers(int folder, const Target *t) {
    char prefix[PATH_MAX + 8], **names;
    int n;
    Error ignored;
    snprintf(prefix, sizeof prefix, ".tmp-%s-", t->name);
    if (!directory_list_open(folder, t->folder, prefix, &names, &n, &ignored)) return;
    for (int i = 0; i < n; i++) {
        const char *digits = names[i] + strlen(prefix);
        const long pid = strtol(digits, NULL, 10);
        const bool is_ours = *digits && strspn(digits, "0123456789") == strlen(digits) && pid > 0;
        if (is_ours && (pid == getpid() || (kill((pid_t)pid, 0) && errno == ESRCH)))
            directory_remove(folder, names[i], NULL, &ignored);
    }
    names_free(names, n);
}

static bool move(int from, int to, const Target *t, const char *name, Error *err) {
    char path[PATH_MAX];
    return check_free(t, name, err) && path_join(path, t->folder, name, err) &&
           (renameat(from, name, to, name) == 0 || fail_errno(err, "cannot create", path));
}

/* The files out of the temporary directory, the model last; or none. */
static bool move_files(int folder, const char *directory, const Target *t, Error *err) {
    char **names;
    int n, n_moved = 0;
    const int from = directory_open(directory, err);
    if (from < 0) return false;
    bool ok = directory_list_open(from, directory, "", &names, &n, err);
    if (ok) {
        for (int i = 0; i < n; i++) /* the model's name goes to the end of the list */
            if (i < n - 1 && strcmp(names[i], t->name) == 0) {
                char *model = names[i];
                memmove(&names[i], &names[i + 1], (size_t)(n - 1 - i) * sizeof *names);
                names[n - 1] = model;
            }
        while (ok && n_moved < n) ok = move(from, folder, t, names[n_moved], err) && ++n_moved;
        for (int i = 0; !ok && i < n_moved; i++) unlinkat(folder, names[i], 0);
        names_free(names, n);
    }
    close(from);
    return ok;
}

static bool publish(int folder, const char *directory, const Target *t, Error *err) {
    if (!t->kind->is_folder) return move_files(folder, directory, t, err);
    return check_free(t, t->name, err) && (renameat(folder, path_name(directory), folder, t->name) == 0 ||
                                           fail_errno(err, "cannot create", directory));
}

/* A failure names what was asked for, not the temporary directory that holds it until it is whole. */
static bool fail_in_place(const char *temporary, const Target *t, Error *err) {
    const Error cause = *err;
    char shown[PATH_MAX]; /* as fail() makes it */
    snprintf(shown, sizeof shown, "%s", temporary);
    shown[make_printable(shown, strlen(shown), false)] = '\0';
    const char *at = strstr(cause.text, shown);
    if (!at) return false;
    const char *behind = at + strlen(shown);
    const bool is_beside = !t->kind->is_folder && *behind == '/';
    return fail(err, cause.exit_code, "--export: %.*s%s%s", (int)(at - cause.text), cause.text,
                is_beside ? "" : t->name, behind + is_beside);
}

/* The size of all files. */
static int64_t bytes_in(const char *directory) {
    char **names, path[PATH_MAX];
    int n;
    int64_t bytes = 0;
    struct stat info;
    Error ignored;
    if (!directory_list(directory, "", &names, &n, &ignored)) return 0;
    for (int i = 0; i < n; i++)
        if (path_join(path, directory, names[i], &ignored) && stat(path, &info) == 0)
            bytes += (int64_t)info.st_size;
    names_free(names, n);
    return bytes;
}

static bool write_in(int folder, const Target *t, GPT2 *model, int64_t *bytes, Error *err) {
    char temporary[PATH_MAX], directory[PATH_MAX];
    Error ignored;
    if (snprintf(temporary, sizeof temporary, ".tmp-%s-%ld", t->name, (long)getpid()) >=
        (int)sizeof temporary)
        return fail(err, EXIT_INPUT, "--export: the name is too long");
    if (!path_join(directory, t->folder, temporary, err)) return false;
    if (mkdirat(folder, temporary, 0777))
        return fail_errno(err, "cannot create", directory) || fail_in_place(temporary, t, err);
    bool ok = t->kind->write(directory, t, model, err) && directory_sync(directory, err);
    *bytes = ok ? bytes_in(directory) : 0;
    if (ok && file_writes_end && file_writes_end()) ok = fail(err, EXIT_RUN, "--export: it was to end");
    ok = ok && publish(folder, directory, t, err) && file_sync(folder, t->folder, err);
    if (!ok || !t->kind->is_folder) directory_remove(folder, temporary, NULL, &ignored);
    return ok || fail_in_place(temporary, t, err);
}

bool export_model(const char *path, ExportType type, GPT2 *model, const Tokenizer *tokenizer, int64_t *bytes,
                  Error *err) {
    Target t = {.type = type, .tokenizer = tokenizer};
    if (!check_target(&t, path, &model->config, err)) return false;
    const int folder = directory_open(t.folder, err);
    if (folder < 0) return false;
    remove_leftovers(folder, &t);
    const bool ok = write_in(folder, &t, model, bytes, err);
    close(folder);
    return ok;
}
