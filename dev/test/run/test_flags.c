/* The command line: every form that is right, every way to be wrong, recipes, contradictions, help, JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/run/flags_table.h"
#include "llmc/base/json.h"
#include "dev/test/check.h"

enum { MAX_ARGS = 16 };

/* Splits at spaces ("_" stands for an empty argument) and parses; the strings live until the next call. */
static bool parse(Settings *s, Error *err, const char *line) {
    static char text[1024];
    char *argv[MAX_ARGS] = {"train_gpt2"};
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word && argc < MAX_ARGS; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "_") == 0 ? "" : word;
    *err = (Error){0};
    return flags_parse(s, argc, argv, err);
}

static void test_forms(void) {
    Settings s;
    Error err;
    CHECK(parse(&s, &err, "--train a.txt --batch=8 -t 128 -l 3e-4 --schedule wsd --resume"), "%s", err.text);
    CHECK(strcmp(s.train, "a.txt") == 0 && s.batch == 8 && s.seq == 128 && s.lr == 3e-4, "values");
    CHECK(s.schedule == SCHEDULE_WSD && s.resume, "choice and switch");
    CHECK(flags_was_set(&s, "batch") && !flags_was_set(&s, "steps"), "what was set is known");
    CHECK(parse(&s, &err, "-y 1 -a 0 --eval-only=1"), "llm.c's form of a switch: %s", err.text);
    CHECK(s.resume && !s.overfit && s.eval_only, "switches with 0 and 1");
    CHECK(parse(&s, &err, "--resume --seed 7"), "a switch takes no other value: %s", err.text);
    CHECK(s.resume && s.seed == 7, "switch before a flag");
    CHECK(parse(&s, &err, "--prompt=--x --lr .5 --eps=1E-9 --seed +3"), "%s", err.text);
    CHECK(strcmp(s.prompt, "--x") == 0 && s.lr == 0.5 && s.eps == 1e-9 && s.seed == 3,
          "odd but right values");
    CHECK(parse(&s, &err, "--prompt _"), "an empty prompt is a prompt: %s", err.text);
    CHECK(parse(&s, &err, "--prompt -hello"), "a text may begin with a dash: %s", err.text);
    CHECK(parse(&s, &err, "--seed 9007199254740991"), "2^53 - 1: %s", err.text);
    CHECK(s.seed == 9007199254740991, "exactly");
    CHECK(parse(&s, &err, "--gpus 1024 --restarts 3") && s.gpus == 1024 && s.restarts == 3, "%s", err.text);
    CHECK(parse(&s, &err, ""), "no flags: %s", err.text);
    CHECK(strcmp(s.train, "data/default.txt") == 0 && s.clip == 1 && s.device == DEVICE_AUTO, "defaults");
    CHECK(parse(&s, &err, "--help --nonsense"), "help before a mistake is help: %s", err.text);
    CHECK(s.help, "help");
}

/* Every letter and name of the table is its own, and sets its own field alone. */
static void test_table(void) {
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        CHECK(flag_find(flag->name) == i, "--%s stands twice", flag->name);
        CHECK(!flag->letter || flag_find_letter(flag->letter) == i, "-%c stands twice", flag->letter);
        CHECK(strlen(flag->name) < 32 && !strchr(flag->name, '_'), "--%s: name", flag->name);
        CHECK(flag->default_text || flag_recipe(flag->name) || flag->type == FLAG_TEXT ||
                  flag->type == FLAG_SWITCH || flag->answers,
              "--%s has no default", flag->name);
        CHECK(!flag->default_text || !flag_recipe(flag->name), "--%s has two defaults", flag->name);
        for (int j = 0; j < i; j++)
            CHECK(flags_table[j].offset != flag->offset, "--%s and --%s share a field", flag->name,
                  flags_table[j].name);
    }
    for (int i = 0; i < recipe_rows_count; i++) {
        int row = flag_find(recipe_rows[i].flag);
        if (!CHECK(row >= 0, "recipe of unknown flag %s", recipe_rows[i].flag)) continue;
        for (int r = 0; r < N_RECIPES; r++) {
            Settings s = {0};
            Error err = {0};
            CHECK(flag_set_value(&s, &flags_table[row], "recipe", recipe_rows[i].value[r], &err), "%s",
                  err.text);
        }
    }
}

/* A command line that is refused, and what the one line must say. */
typedef struct Refusal {
    const char *line, *says[3];
} Refusal;

static const Refusal refusals[] = {
    {"--bacth 4",                       {"--bacth", "did you mean --batch?"}                                },
    {"--tokens_per_step 4",             {"did you mean --tokens-per-step?"}                                 },
    {"--eval 4",                        {"--eval", "did you mean --eval-"}                                  },
    {"-batch 4",                        {"-batch", "did you mean --batch?"}                                 },
    {"--stesp=100",                     {"did you mean --steps?"}                                           },
    {"--learning_rate 1e-3",            {"unknown flag --learning_rate; did you mean --lr?"}                },
    {"--max_new_tokens 9",              {"did you mean --sample-tokens?"}                                   },
    {"--data=x.txt",                    {"did you mean --train?"}                                           },
    {"--epochs 3",                      {"did you mean --steps?"}                                           },
    {"--n_layer 3",                     {"unknown flag --n_layer; did you mean --layers?"}                  },
    {"--OUT x",                         {"unknown flag --OUT; did you mean --out?"}                         },
    {"--cpu",                           {"did you mean --device cpu?"}                                      },
    {"--threads 3",                     {"did you mean OMP_NUM_THREADS=N before"}                           },
    {"\xe2\x80\x93train x",             {"did you mean --train?"}                                           }, /* two hyphens as one dash */
    {"\xe2\x80\x94train=x",             {"did you mean --train?"}                                           },
    {"--prompt Once upon",              {"unexpected argument 'upon'", "stands in quotes: --prompt"}        },
    {"--stop THE END",                  {"unexpected argument 'END'", "stands in quotes: --prompt"}         },
    {"--prompt Once --lr 1 upon",       {"'upon': expected a flag, such as --train FILE (--help lists all)"}},
    {"--xyzzy 4",                       {"unknown flag --xyzzy", "--help"}                                  },
    {"--ba 4",                          {"unknown flag --ba", "--batch"}                                    }, /* no prefix matching */
    {"-Q 4",                            {"unknown flag -Q"}                                                 },
    {"-b4",                             {"unknown flag -b4"}                                                },
    {"-",                               {"unknown flag -"}                                                  },
    {"--",                              {"unknown flag --"}                                                 },
    {"--=",                             {"unknown flag --="}                                                },
    {"--help 0 --version=0 --bacth 4",  {"--bacth"}                                                         },
    {"--completion none",               {"--completion: 'none' is not one of bash, zsh, fish"}              },
    {"my.txt",                          {"unexpected argument 'my.txt'", "--train"}                         },
    {"_",                               {"unexpected argument ''"}                                          },
    {"--batch",                         {"--batch", "value missing", "a whole number from 1"}               },
    {"--train --val x",                 {"--train", "value missing"}                                        },
    {"--train -j x",                    {"--train", "value missing"}                                        },
    {"-b",                              {"-b (--batch)", "value missing"}                                   },
    {"--batch x",                       {"--batch", "'x'", "a whole number from 1 to 1048576"}              },
    {"--batch 4x",                      {"'4x'"}                                                            },
    {"--batch=",                        {"--batch", "''"}                                                   },
    {"--batch 0",                       {"'0'", "from 1"}                                                   },
    {"--batch -4",                      {"'-4'", "from 1"}                                                  },
    {"--batch 4.0",                     {"'4.0'", "plain digits"}                                           },
    {"--steps 1e6",                     {"'1e6'", "plain digits"}                                           },
    {"--steps 1_000",                   {"'1_000'", "plain digits"}                                         },
    {"--steps 1k",                      {"'1k'", "plain digits"}                                            },
    {"--batch 0x10",                    {"'0x10'"}                                                          },
    {"--steps 99999999999999999999999", {"--steps", "from 1 to 1099511627776"}                              },
    {"--seed 9007199254740992",         {"--seed"}                                                          },
    {"--sample-tokens -1",              {"--sample-tokens", "from 0"}                                       },
    {"--eval-batches 0",                {"--eval-batches", "from 1"}                                        },
    {"--lr nan",                        {"--lr", "'nan'", "a number from 0 to 100"}                         },
    {"--lr inf",                        {"'inf'"}                                                           },
    {"--lr 0x1p-3",                     {"'0x1p-3'"}                                                        },
    {"--lr 1e-3x",                      {"'1e-3x'"}                                                         },
    {"--lr 1e999",                      {"'1e999'"}                                                         },
    {"--clip 1e-400",                   {"--clip", "'1e-400' is too small to be told from 0"}               },
    {"--clip 1e-40",                    {"expected 0, or 1.17549e-38 at least"}                             },
    {"--lr 0,1",                        {"'0,1'"}                                                           },
    {"--lr -1",                         {"'-1'"}                                                            },
    {"--lr 1e",                         {"'1e'"}                                                            },
    {"--lr .",                          {"'.'"}                                                             },
    {"--beta2 1",                       {"--beta2", "0.999999"}                                             },
    {"--final-lr-fraction 1.5",         {"from 0 to 1"}                                                     },
    {"--device gpu",                    {"--device", "'gpu'", "one of auto, cuda, cpu"}                     },
    {"--device CPU",                    {"'CPU'"}                                                           },
    {"--schedule cos",                  {"'cos'", "one of cosine, linear, constant, wsd"}                   },
    {"--precision fp16",                {"one of bf16, fp32"}                                               },
    {"--restarts -1",                   {"--restarts", "from 0 to"}                                         },
    {"--gpus 0",                        {"--gpus", "from 1 to 1024"}                                        },
    {"--resume=yes",                    {"--resume", "'yes'", "no value, 0 or 1"}                           },
    {"--resume yes",                    {"unexpected argument 'yes'"}                                       },
    {"--out=",                          {"--out", "''"}                                                     },
    {"--batch 4 --batch 4",             {"--batch", "given twice"}                                          },
    {"--batch 4 -b 8",                  {"-b (--batch)", "given twice"}                                     },
};

static void test_refusals(void) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const Refusal *r = &refusals[i];
        Settings s;
        Error err;
        CHECK(!parse(&s, &err, r->line), "accepted: %s", r->line);
        CHECK(err.exit_code == EXIT_INPUT, "%s: exit code %d", r->line, err.exit_code);
        CHECK(!strchr(err.text, '\n'), "%s: more than one line", r->line);
        for (int j = 0; j < 3 && r->says[j]; j++)
            CHECK(strstr(err.text, r->says[j]), "%s: '%s' does not say '%s'", r->line, err.text, r->says[j]);
    }
}

static void test_hostile_text(void) {
    char name[5000] = "--", value[5000] = "--device=";
    memset(name + 2, 'x', sizeof name - 3);
    memset(value + 9, '\n', sizeof value - 10);
    for (int i = 0; i < 2; i++) {
        Settings s;
        Error err = {0};
        char *argv[] = {"train_gpt2", i ? value : name};
        CHECK(!flags_parse(&s, 2, argv, &err) && err.exit_code == EXIT_INPUT, "long argument %d", i);
        CHECK(strlen(err.text) < 300 && !strchr(err.text, '\n'), "one short line: %s", err.text);
    }
}

/* ---- completion and contradictions ---- */

static bool complete(Settings *s, Error *err, const char *line, bool on_gpu, int n_ranks) {
    if (!CHECK(parse(s, err, line), "%s: %s", line, err->text)) return false;
    settings_complete(s, on_gpu, n_ranks);
    return flags_check(s, n_ranks, err);
}

static void test_recipes(void) {
    static const struct {
        const char *line;
        bool on_gpu;
        const char *recipe, *model;
        int64_t batch, seq, tokens_per_step, steps;
    } rows[] = {
        {"",                                     false, "cpu-small", "nano",     24, 64,     1536,    540   },
        {"",                                     true,  "gpu-small", "baby",     64, 256,    16384,   580   },
        {"--train my.txt",                       true,  "gpu-small", "baby",     64, 256,    16384,   580   },
        {"--train x_*.bin",                      true,  "gpt2",      "d12",      64, 1024,   524288,  19073 },
        {"--train x_*.bin",                      false, "cpu-small", "nano",     24, 64,     1536,    540   },
        {"--model nano",                         true,  "gpu-small", "nano",     64, 256,    16384,   580   },
        {"--model d24 --batch 16",               true,  "gpt2",      "d24",      16, 1024,   524288,  19073 },
        {"--model out/124M",                     true,  "gpt2",      "out/124M", 64, 1024,   524288,  19073 },
        {"--model d12",                          false, "gpt2-cpu",  "d12",      4,  256,    1024,    200   },
        {"--batch 5 --steps 9",                  false, "cpu-small", "nano",     5,  64,     320,     9     },
        {"--model d12 --batch 60",               true,  "gpt2",      "d12",      60, 1024,   552960,  19073 }, /* 9 x 61440 is nearest */
        {"--model d12 --seq 131072 --batch 8",   true,  "gpt2",      "d12",      8,  131072, 1048576, 19073 },
        {"--reproducible 4",                     false, "cpu-small", "nano",     24, 64,     6144,    540   },
        {"--model d12 --reproducible 12",        true,  "gpt2",      "d12",      64, 1024,   786432,  19073 }, /* 1 x 12 x 65536 */
        {"--tokens-per-step 4608",               false, "cpu-small", "nano",     24, 64,     4608,    540   },
        {"--recipe llm.c",                       true,  "llm.c",     "d12",      64, 1024,   524288,  18865 },
        {"--recipe llm.c",                       false, "llm.c",     "d12",      64, 1024,   524288,  18865 },
        {"--model d24 --recipe llm.c --steps 5", true,  "llm.c",     "d24",      64, 1024,   524288,  5     },
        {"--recipe nanogpt",                     true,  "nanogpt",   "d12",      12, 1024,   491520,  600000},
        {"--recipe gpu-small",                   false, "gpu-small", "baby",     64, 256,    16384,   580   },
        {"--train x_*.bin --recipe auto",        true,  "gpt2",      "d12",      64, 1024,   524288,  19073 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Settings s;
        Error err;
        CHECK(complete(&s, &err, rows[i].line, rows[i].on_gpu, 1), "%s: %s", rows[i].line, err.text);
        CHECK(strcmp(flags_choice(&s, "recipe"), rows[i].recipe) == 0, "%s: recipe %s", rows[i].line,
              flags_choice(&s, "recipe"));
        CHECK(strcmp(s.model, rows[i].model) == 0, "%s: model %s", rows[i].line, s.model);
        CHECK(s.batch == rows[i].batch && s.seq == rows[i].seq && s.steps == rows[i].steps,
              "%s: batch %d seq %d steps %d", rows[i].line, (int)s.batch, (int)s.seq, (int)s.steps);
        CHECK(s.tokens_per_step == rows[i].tokens_per_step, "%s: tokens per step %lld", rows[i].line,
              (long long)s.tokens_per_step);
        CHECK(s.precision == (rows[i].on_gpu ? PRECISION_BF16 : PRECISION_FP32), "%s: precision",
              rows[i].line);
        const bool adamw =
            s.recipe == RECIPE_GPT2_CPU || s.recipe == RECIPE_LLM_C || s.recipe == RECIPE_NANOGPT;
        CHECK(s.optimizer == (adamw ? OPTIMIZER_ADAMW : OPTIMIZER_MUON), "%s: optimizer", rows[i].line);
    }
}

/* What others published for GPT-2 124M. */
static void test_published(void) {
    static const struct {
        const char *line;
        double lr, weight_decay, final_lr_fraction, beta2, clip;
        int64_t warmup;
        OptimizerKind optimizer;
    } rows[] = {
        {"--recipe llm.c",                                             6e-4, 0.1, 0,   0.95, 1, 700,  OPTIMIZER_ADAMW},
        {"--recipe nanogpt",                                           6e-4, 0.1, 0.1, 0.95, 1, 2000, OPTIMIZER_ADAMW},
        {"--lr 1e-3 --beta2 0.9 --warmup 5 --recipe nanogpt --clip 2", 1e-3, 0.1, 0.1, 0.9,  2, 5,
         OPTIMIZER_ADAMW                                                                                             },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Settings s;
        Error err;
        CHECK(complete(&s, &err, rows[i].line, true, 1), "%s: %s", rows[i].line, err.text);
        CHECK(s.lr == rows[i].lr && s.weight_decay == rows[i].weight_decay && s.beta2 == rows[i].beta2 &&
                  s.final_lr_fraction == rows[i].final_lr_fraction && s.clip == rows[i].clip &&
                  s.warmup == rows[i].warmup && s.optimizer == rows[i].optimizer &&
                  s.schedule == SCHEDULE_COSINE && s.dropout == 0,
              "%s", rows[i].line);
    }
}

static void test_completion(void) {
    Settings s;
    Error err;
    CHECK(complete(&s, &err, "--recipe gpt2", false, 1) && !s.out,
          "a recipe that is named keeps nothing unasked");
    settings_set_default_out(&s);
    CHECK(!s.out, "not in out/default either");
    CHECK(complete(&s, &err, "--resume", false, 1), "--resume alone is of out/default: %s", err.text);
    settings_set_default_out(&s);
    CHECK(s.out && strcmp(s.out, "out/default") == 0, "and goes on there");
    CHECK(complete(&s, &err, "--steps 50", false, 1), "%s", err.text);
    CHECK(s.warmup == 5, "the default warm-up shrinks with a short run: %d", (int)s.warmup);
    CHECK(complete(&s, &err, "--steps 50 --warmup 50", false, 1), "%s", err.text);
    CHECK(s.warmup == 50, "a warm-up that was asked for stays");
    CHECK(complete(&s, &err, "", false, 4), "%s", err.text);
    CHECK(s.tokens_per_step == 4 * 1536, "ranks count: %d", (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--context-gpus 2", false, 4), "%s", err.text);
    CHECK(s.tokens_per_step == 2 * 1536, "pairs count: %d", (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--model dir", true, 1), "%s", err.text);
    settings_limit_seq(&s, 768, 1);
    CHECK(s.seq == 768 && s.tokens_per_step == 11 * 64 * 768, "a checkpoint of context 768: %d",
          (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--model dir", false, 1), "%s", err.text);
    settings_limit_seq(&s, 64, 1);
    CHECK(s.seq == 64 && s.tokens_per_step == 4 * 64, "one micro-batch stays one: %d",
          (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--model dir --tokens-per-step 0", false, 1), "%s", err.text);
    settings_limit_seq(&s, 64, 1);
    CHECK(s.tokens_per_step == 4 * 64, "and so it does where it was asked for: %d", (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--model dir --tokens-per-step 1024", false, 1), "%s", err.text);
    settings_limit_seq(&s, 64, 1);
    CHECK(s.tokens_per_step == 1024, "tokens that were asked for stay: %d", (int)s.tokens_per_step);
    CHECK(complete(&s, &err, "--model dir --seq 128", false, 1), "%s", err.text);
    settings_limit_seq(&s, 64, 1);
    CHECK(s.seq == 128, "what the user asked is not bent");
    CHECK(complete(&s, &err, "--train a.bin", true, 1) && !settings_has_validation(&s),
          "shards are not split");
    CHECK(complete(&s, &err, "--train a.bin --val b.bin", true, 1) && settings_has_validation(&s),
          "own validation");
    CHECK(complete(&s, &err, "", true, 1) && settings_has_validation(&s), "text is split");
}

static void test_sample_only(void) {
    static const struct {
        const char *line;
        bool sample_only;
    } rows[] = {
        {"--model out/124M --prompt The",               true },
        {"--model out/124M",                            false},
        {"--prompt The",                                false},
        {"--model d12 --prompt The",                    false},
        {"--model out/124M --prompt The --train a.txt", false},
        {"--model out/124M --prompt The --eval-only",   false},
        {"--model out/124M --prompt-file x",            true },
        {"--model out/124M --chat",                     true },
        {"--prompt-file x",                             false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Settings s;
        Error err;
        CHECK(parse(&s, &err, rows[i].line), "%s", err.text);
        CHECK(settings_sample_only(&s) == rows[i].sample_only, "before completion: %s", rows[i].line);
        settings_complete(&s, false, 1);
        CHECK(settings_sample_only(&s) == rows[i].sample_only, "after completion: %s", rows[i].line);
    }
}

static const Refusal contradictions[] = {
    {"--tokens-per-step 1000",                                              {"--tokens-per-step 1000", "1536", "--tokens-per-step 1536 is nearest"}},
    {"--batch 8 --seq 64 --tokens-per-step 100",                            {"hint: --tokens-per-step 512"}                                        },
    {"--reproducible 4 --tokens-per-step 3072",
     {"4 leaves (--reproducible)", "--tokens-per-step 6144 is nearest"}                                                                            },
    {"--reproducible 2 --context-gpus 2",                                   {"--reproducible and --context-gpus"}                                  },
    {"--resume --train a.txt",                                              {"--resume", "--out"}                                                  },
    {"--resume --model nano",                                               {"--resume", "--out"}                                                  },
    {"--resume --profile",                                                  {"--profile and --resume"}                                             },
    {"--resume --restarts 2",                                               {"--restarts", "--out"}                                                },
    {"--resume --out x --model-only",                                       {"--model-only"}                                                       },
    {"--resume --out x --eval-only",                                        {"--eval-only"}                                                        },
    {"--save-every 5",                                                      {"--save-every", "--out"}                                              },
    {"--model-only",                                                        {"--model-only", "--out"}                                              },
    {"--model dir --export -",                                              {"--export -", "not stdout"}                                           },
    {"--out -",                                                             {"--out -", "not stdout"}                                              },
    {"--keep 2",                                                            {"--keep", "--out"}                                                    },
    {"--keep 2 --out x",                                                    {"--keep", "--save-every"}                                             },
    {"--warmup 20 --steps 10",                                              {"--warmup 20", "--steps 10"}                                          },
    {"--warmup 3000",                                                       {"--warmup 3000", "--steps 540"}                                       },
    {"--train a.bin --eval-only",                                           {"--eval-only", "--val"}                                               },
    {"--train a.bin --eval-every 5",                                        {"--eval-every", "--val"}                                              },
    {"--model dir --prompt x --out y",                                      {"--prompt", "--out"}                                                  },
    {"--prompt x --sample-tokens 0",                                        {"--prompt and --sample-tokens 0"}                                     },
    {"--prompt-file x --sample-tokens 0",                                   {"--prompt-file and --sample-tokens 0"}                                },
    {"--prompt x --prompt-file y",                                          {"--prompt", "--prompt-file"}                                          },
    {"--chat",                                                              {"--chat", "--model PATH"}                                             },
    {"--chat --model d12",                                                  {"--chat", "--model PATH"}                                             },
    {"--chat --model dir --samples 2",                                      {"--chat", "--samples"}                                                },
    {"--chat --model dir --prompt-file -",                                  {"--chat", "stdin"}                                                    },
    {"--restarts 1 --prompt-file - --train a.txt --out o",                  {"--restarts", "stdin"}                                                },
    {"--chat --model dir --sample-tokens 0",                                {"--chat and --sample-tokens 0"}                                       },
    {"--precision bf16",                                                    {"--precision bf16"}                                                   },
    {"--batch 32 --seq 67108864",                                           {"--batch 32", "2147483648 tokens", "2147483647"}                      },
    {"--steps 1099511627776 --batch 1 --seq 16 --tokens-per-step 16777216",
     {"--steps 1099511627776 of 16777216 tokens"}                                                                                                  },
    {"--context-gpus 2",                                                    {"--context-gpus 2 does not", "the 1 rank of", "else --context-gpus 1"}},
    {"--profile --out x",                                                   {"--profile", "--out"}                                                 },
    {"--profile --train a.bin --val b.bin --eval-only",                     {"--profile", "--eval-only"}                                           },
    {"--model m --prompt p --lr 1 --steps 5 --batch 2",
     {"--prompt and --batch --steps --lr: ", "leave --batch --steps --lr out"}                                                                     },
    {"--model m --chat --optimizer muon",                                   {"--chat and --optimizer: "}                                           },
    {"--model m --prompt-file f --val v --seq 8",                           {"--prompt-file and --val --seq: "}                                    },
    {"--model m --prompt p --hellaswag h",                                  {"--prompt and --hellaswag: "}                                         },
    {"--model m --eval-only --lr 1 --temperature 2",
     {"--eval-only and --lr --temperature: ", "leave --lr --temperature out"}                                                                      },
    {"--model m --export x --batch 2 --samples 2",                          {"--export and --batch --samples: "}                                   },
};

static void test_contradictions(void) {
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        Settings s;
        Error err;
        CHECK(!complete(&s, &err, contradictions[i].line, false, 1), "accepted: %s", contradictions[i].line);
        CHECK(err.exit_code == EXIT_INPUT, "%s: exit code %d", contradictions[i].line, err.exit_code);
        for (int j = 0; j < 3 && contradictions[i].says[j]; j++)
            CHECK(strstr(err.text, contradictions[i].says[j]), "%s: '%s' does not say '%s'",
                  contradictions[i].line, err.text, contradictions[i].says[j]);
    }
    Settings s;
    Error err;
    CHECK(complete(&s, &err, "--keep 2 --out x --save-every 9 --resume", false, 1), "%s", err.text);
    CHECK(complete(&s, &err, "--batch 31 --seq 67108864", false, 1), "%s", err.text);
    CHECK(!complete(&s, &err, "--tokens-per-step 1536", false, 2),
          "1536 tokens are half a step of two ranks");
    CHECK(complete(&s, &err, "--tokens-per-step 1536 --context-gpus 2", false, 2), "%s", err.text);
    CHECK(!complete(&s, &err, "--context-gpus 3", false, 4) && strstr(err.text, "--gpus 6") &&
              strstr(err.text, "else --context-gpus 2"),
          "4 GPUs in threes: %s", err.text);
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        CHECK(complete(&s, &err, "--reproducible 12", false, n_ranks) && s.tokens_per_step == 12 * 1536,
              "--reproducible 12 of %d ranks: %lld tokens a step; %s", n_ranks, (long long)s.tokens_per_step,
              err.text);
    CHECK(!complete(&s, &err, "--reproducible 12", false, 8) &&
              strstr(err.text, "--reproducible 12 is not a multiple of 8 ranks") &&
              strstr(err.text, "--reproducible 16 is nearest"),
          "--reproducible 12 of 8 ranks: %s", err.text);
}

/* What does something in a run that does not train is taken; a plan or a profile takes all that a run does. */
static void test_used_flags(void) {
    static const char *const lines[] = {
        "--model m --prompt p --samples 2 --stop x --top-k 3 --seed 4 --overfit 0",
        "--model m --eval-only --train a.txt --val b.txt --batch 2 --seq 8 --eval-batches 3 --out o",
        "--model m --eval-only --hellaswag h",
        "--model m --export x --export-type f16 --tokenizer t --window 0 --chat 0",
        "--model m --prompt p --lr 1 --steps 5 --warmup 0 --memory",
        "--prompt p --lr 1 --steps 5 --warmup 0 --profile",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        Settings s;
        Error err;
        CHECK(complete(&s, &err, lines[i], false, 1), "%s: %s", lines[i], err.text);
    }
}

/* What a hint proposes is accepted, and nothing of the line is lost but what it says. */
static void test_hints(void) {
    static const struct {
        const char *line, *hint, *followed;
    } rows[] = {
        {"--resume --train a.txt",                  "hint: --out DIR, its folder",                                 "--resume --train a.txt --out x"          },
        {"--resume --profile",                      "hint: leave --resume out",                                    "--profile"                               },
        {"--resume --out x --model-only",           "hint: leave --model-only out",                                "--resume --out x"                        },
        {"--resume --out x --model m --eval-only",  "hint: leave --resume out",
         "--out x --model m --eval-only"                                                                                                                     },
        {"--save-every 5",                          "hint: --out DIR",                                             "--save-every 5 --out x"                  },
        {"--model-only",                            "hint: --out DIR",                                             "--model-only --out x"                    },
        {"--keep 2 --save-every 5",                 "hint: --out DIR",                                             "--keep 2 --save-every 5 --out x"         },
        {"--keep 2 --out x",                        "hint: --save-every N",                                        "--keep 2 --out x --save-every 5"         },
        {"--keep-best",                             "hint: --out DIR",                                             "--keep-best --out x"                     },
        {"--keep-best --out x --train a.bin",       "hint: --val GLOB",
         "--keep-best --out x --train a.bin --val b.bin"                                                                                                     },
        {"--eval-only --model m --train a.bin",     "hint: --val GLOB",
         "--eval-only --model m --train a.bin --val b.bin"                                                                                                   },
        {"--eval-every 5 --train a.bin",            "hint: --val GLOB",                                            "--eval-every 5 --train a.bin --val b.bin"},
        {"--model m --prompt p --out x",            "leave --out out",                                             "--model m --prompt p"                    },
        {"--model m --prompt p --out x",            "--train GLOB to train",
         "--model m --prompt p --out x --train a.txt"                                                                                                        },
        {"--prompt p --sample-tokens 0",            "hint: leave one of them out",                                 "--prompt p"                              },
        {"--prompt p --sample-tokens 0",            "hint: leave one of them out",                                 "--sample-tokens 0"                       },
        {"--prompt-file f --sample-tokens 0",       "hint: leave one of them out",                                 "--prompt-file f"                         },
        {"--profile --out x",                       "hint: leave --out out",                                       "--profile"                               },
        {"--profile --prompt p --model m",          "hint: leave --profile out",                                   "--prompt p --model m"                    },
        {"--profile-trace t --profile 0",           "hint: leave --profile 0 out",                                 "--profile-trace t"                       },
        {"--profile --eval-only --model m",         "hint: leave --profile out",                                   "--eval-only --model m"                   },
        {"--export x --model m --out y --gpus 1",   "hint: leave --out out",                                       "--export x --model m"                    },
        {"--optimizer adamw --momentum 0.9",        "hint: --optimizer muon",                                      "--optimizer muon --momentum 0.9"         },
        {"--model d12 --muon-polynomial jordan",    "hint: --optimizer muon",
         "--model d12 --muon-polynomial jordan --optimizer muon"                                                                                             },
        {"--precision bf16",                        "hint: --precision fp32",                                      "--precision fp32"                        },
        {"--eval-only",                             "hint: --model PATH",                                          "--eval-only --model m"                   },
        {"--eval-only --model d12",                 "hint: --model PATH",                                          "--eval-only --model m"                   },
        {"--tokens-per-step 1000",                  "hint: --tokens-per-step 1536 ",                               "--tokens-per-step 1536"                  },
        {"--tokens-per-step 1",                     "hint: --tokens-per-step 1536 ",                               "--tokens-per-step 1536"                  },
        {"--reproducible 3 --tokens-per-step 5000", "hint: --tokens-per-step 4608 ",
         "--reproducible 3 --tokens-per-step 4608"                                                                                                           },
        {"--batch 3 --seq 7 --tokens-per-step 400", "hint: --tokens-per-step 399 ",
         "--batch 3 --seq 7 --tokens-per-step 399"                                                                                                           },
        {"--warmup 20 --steps 10",                  "hint: --warmup 10 at most",                                   "--warmup 10 --steps 10"                  },
        {"--batch 32 --seq 67108864",               "hint: a smaller --batch, and --tokens-per-step for the rest",
         "--batch 16 --seq 67108864 --tokens-per-step 2147483648"                                                                                            },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Settings s;
        Error err;
        CHECK(!complete(&s, &err, rows[i].line, false, 1) && strstr(err.text, rows[i].hint),
              "%s: '%s' without '%s'", rows[i].line, err.text, rows[i].hint);
        CHECK(complete(&s, &err, rows[i].followed, false, 1), "%s, as the hint of %s says: %s",
              rows[i].followed, rows[i].line, err.text);
    }
}

/* ---- texts ---- */

typedef void (*Printer)(FILE *out);

static void print_help(FILE *out) {
    flags_help(out, "train_gpt2");
}

/* malloc'ed */
static char *printed(Printer print) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    print(out);
    fclose(out);
    return text;
}

static void test_help(void) {
    char *help = printed(print_help), *markdown = printed(flags_help_markdown), form[48];
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        snprintf(form, sizeof form, "--%s", flag->name);
        CHECK(!strstr(help, form) == flag->hidden, "%s in --help", form);
        snprintf(form, sizeof form, "| `--%s", flag->name);
        CHECK(!strstr(markdown, form) == flag->hidden, "%s in the table of FLAGS.md", form);
    }
    CHECK(strstr(markdown, "| `--batch` | 24 | 64 | 64 | 4 | 64 | 12 |"), "defaults by recipe in FLAGS.md");
    CHECK(strstr(help, "polar-express|jordan\n") != NULL, "a long flag runs into what it does");
    CHECK(strstr(help, "-l, --lr X ") && strstr(help, "[by recipe]"), "defaults by recipe in --help");
    int longest = 0;
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n"))
        if ((int)strlen(line) > longest) longest = (int)strlen(line);
    CHECK(longest <= 110, "--help has a line of %d characters", longest);
    free(help);
    free(markdown);
}

static void test_page(void) {
    static const char begin[] = "<!-- flags -->\n", end[] = "<!-- /flags -->", page[] = "llmc/run/FLAGS.md";
    FILE *file = fopen(page, "r");
    char *text = calloc(1, 1 << 20);
    if (file) {
        size_t n = fread(text, 1, (1 << 20) - 1, file);
        text[n] = '\0';
        fclose(file);
    }
    char *first = strstr(text, begin), *last = strstr(text, end);
    if (CHECK(first && last > first, "%s has a flag table between its markers", page)) {
        char *expected = printed(flags_help_markdown);
        *last = '\0';
        CHECK(strcmp(first + strlen(begin), expected) == 0,
              "%s: the flag table is not what --help-markdown prints; hint: make flags", page);
        free(expected);
    }
    free(text);
}

/* ---- JSON ---- */

static void test_json(void) {
    Settings s;
    Error err;
    FlagDifference found[FLAGS_MAX];
    CHECK(complete(&s, &err, "--lr 0.1 --prompt x\"y", false, 1), "%s", err.text);
    char *json = flags_to_json(&s);
    if (!CHECK(json, "no JSON")) return;
    Json *tree = json_parse(json, strlen(json), "flags", &err);
    int64_t batch = 0;
    double lr = 0;
    if (CHECK(tree, "strict JSON: %s", err.text)) {
        CHECK(json_int64(json_get(json_root(tree), "batch"), &batch) && batch == 24, "a number");
        CHECK(json_double(json_get(json_root(tree), "lr"), &lr) && lr == 0.1, "the same double");
        CHECK(json_equals(json_get(json_root(tree), "prompt"), "x\"y"), "a string");
        CHECK(json_equals(json_get(json_root(tree), "schedule"), "cosine"), "a choice");
        CHECK(json_get(json_root(tree), "val")->type == JSON_NULL, "no value is null");
    }
    json_free(tree);
    CHECK(flags_differences(json, &s, found) == 0, "nothing changed");
    CHECK(complete(&s, &err, "--lr 0.2 --prompt z --schedule linear --eval-every 3", false, 1), "%s",
          err.text);
    int n = flags_differences(json, &s, found);
    CHECK(n == 2 && strcmp(found[0].name, "lr") == 0 && strcmp(found[1].name, "schedule") == 0,
          "lr and schedule affect the run, prompt and eval-every do not: %d", n);
    CHECK(strcmp(found[0].saved, "0.1") == 0 && strcmp(found[0].now, "0.2") == 0 &&
              strcmp(found[1].saved, "cosine") == 0 && strcmp(found[1].now, "linear") == 0,
          "both values: %s %s, %s %s", found[0].saved, found[0].now, found[1].saved, found[1].now);
    CHECK(complete(&s, &err, "--lr 0.1 --tokenizer t --overfit", false, 1), "%s", err.text);
    n = flags_differences(json, &s, found);
    CHECK(n == 2 && strcmp(found[0].name, "tokenizer") == 0 && strcmp(found[1].name, "overfit") == 0,
          "text, switch: %d", n);
    CHECK(strcmp(found[0].saved, "nothing") == 0 && strcmp(found[0].now, "t") == 0 &&
              strcmp(found[1].saved, "off") == 0 && strcmp(found[1].now, "on") == 0,
          "both values: %s %s, %s %s", found[0].saved, found[0].now, found[1].saved, found[1].now);
    CHECK(flags_differences("{\"lr\": \"x\", \"warmup\": 1e999}", &s, found) != 0, "wrong types differ");
    CHECK(complete(&s, &err, "--gpus 2", false, 2), "%s", err.text);
    CHECK(flags_differences("{\"gpus\": 1, \"reproducible\": 0}", &s, found) == 1, "GPUs round differently");
    CHECK(complete(&s, &err, "--context-gpus 2", false, 2), "%s", err.text);
    CHECK(flags_differences("{\"context-gpus\": 1}", &s, found) == 1, "so do shares of a sequence");
    CHECK(complete(&s, &err, "--gpus 2 --reproducible 4", false, 2), "%s", err.text);
    CHECK(flags_differences("{\"gpus\": 1, \"reproducible\": 4}", &s, found) == 0 &&
              flags_differences("{\"gpus\": 1, \"reproducible\": 2}", &s, found) == 1 &&
              strcmp(found[0].name, "reproducible") == 0,
          "with --reproducible they do not: %s", found[0].name);
    CHECK(flags_differences("{}", &s, found) == 0, "what the checkpoint lacks does not count");
    CHECK(flags_differences("[1", &s, found) == -1 && flags_differences("7", &s, found) == -1, "no object");
    free(json);
}

static void test_value_text(void) {
    Settings s;
    Error err;
    char number[FORMAT_NUMBER], number_again[FORMAT_NUMBER];
    CHECK(complete(&s, &err, "--lr 0.3333333333333333", false, 1), "%s", err.text);
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        const char *text = flag_get_text(&s, flag, number);
        if (flag->type == FLAG_TEXT && !*text) continue;
        Settings copy = {0};
        CHECK(flag_set_value(&copy, flag, flag->name, text, &err), "%s: %s", text, err.text);
        const char *again = flag_get_text(&copy, flag, number_again);
        CHECK(strcmp(again, text) == 0, "--%s: %s, %s", flag->name, text, again);
    }
    CHECK(s.lr == 0.3333333333333333 && flags_was_set(&s, "lr") && !flags_was_set(&s, "no-such-flag"), "lr");
}

/* ---- fuzz ---- */

static uint64_t fuzz_state = 1;

static int fuzz(int n) {
    fuzz_state = fuzz_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((fuzz_state >> 33) % (uint64_t)n);
}

/* A flag, a value, or noise; and often one byte of it changed. */
static void fuzz_word(char word[64]) {
    static const char *const values[] = {
        "0",  "1",     "-1",    "64",     "1e-3", "nan",  "",         "=",
        "--", "a.txt", "*.bin", "cosine", "cpu",  "bf16", "\x01\xff", "99999999999999999999"};
    const Flag *flag = &flags_table[fuzz(flags_count)];
    const char *value = values[fuzz(sizeof values / sizeof *values)];
    switch (fuzz(6)) {
    case 0:
    case 1:
        snprintf(word, 64, "--%s", flag->name);
        break;
    case 2:
        snprintf(word, 64, "--%s=%s", flag->name, value);
        break;
    case 3:
        snprintf(word, 64, "-%c", flag->letter ? flag->letter : 'Z');
        break;
    default:
        snprintf(word, 64, "%s", value);
    }
    size_t n = strlen(word);
    if (n && fuzz(8) == 0) word[fuzz((int)n)] = (char)(1 + fuzz(255));
}

static void test_fuzz(void) {
    int accepted = 0, refused = 0, wrong = 0;
    for (int round = 0; round < 100000; round++) {
        char words[8][64], *argv[9] = {"train_gpt2"};
        int argc = 1 + fuzz(8);
        for (int i = 1; i < argc; i++) {
            fuzz_word(words[i - 1]);
            argv[i] = words[i - 1];
        }
        Settings s;
        Error err = {0};
        bool good = flags_parse(&s, argc, argv, &err);
        if (good && !s.help && !s.version && !s.help_markdown) {
            settings_complete(&s, fuzz(2), 1 + fuzz(3));
            good = flags_check(&s, 1, &err);
        }
        accepted += good;
        refused += !good;
        wrong +=
            good ? err.exit_code != 0 : err.exit_code != EXIT_INPUT || !*err.text || strchr(err.text, '\n');
    }
    CHECK(wrong == 0, "%d command lines neither accepted nor refused with exit 2 and one line", wrong);
    CHECK(accepted > 1000 && refused > 1000, "the fuzzer reaches both: %d, %d", accepted, refused);
}

int main(void) {
    test_forms();
    test_table();
    test_refusals();
    test_hostile_text();
    test_recipes();
    test_published();
    test_completion();
    test_sample_only();
    test_contradictions();
    test_used_flags();
    test_hints();
    test_help();
    test_page();
    test_json();
    test_value_text();
    test_fuzz();
    return check_finish("flags");
}
