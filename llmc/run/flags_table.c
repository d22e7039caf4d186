/* Every flag, its default and its range; and the recipes: defaults that depend on model and device.
 *
 * To add a flag: README.md, "Add a flag". To make a default depend on the recipe: leave default_text out and add a row to
 * recipe_rows. */
#include "flags_table.h"
#include "llmc/model/gpt2.h"

#define AT(field) offsetof(Settings, field)
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

const char *const flag_group_names[N_GROUPS] = {
    "Data and model", "Optimisation", "Evaluation and sampling", "Checkpoints and log", "System", "Tools",
};

/* clang-format off */
const Flag flags_table[] = {
    {GROUP_DATA, "train", 'i', FLAG_TEXT, AT(train), "data/default.txt", .use = OF_EVALUATION, .affects_training = true, .value_name = "GLOB",
     .help = "training data: token shards (*.bin) or plain text files; a mixture: 'a_*.bin:0.7,b_*.bin:0.3', the share of each"},
    {GROUP_DATA, "val", 'j', FLAG_TEXT, AT(val), .use = OF_EVALUATION, .affects_training = true, .value_name = "GLOB",
     .help = "validation data; without it the last tenth of a text validates"},
    {GROUP_DATA, "tokenizer", 0, FLAG_TEXT, AT(tokenizer), .of_command = true, .affects_training = true, .value_name = "bytes|PATH",
     .help = "how text becomes tokens: bytes, a tokenizer .bin or .json, or a directory that holds one; default: the model's own; for a new model bytes, of shards the gpt2_tokenizer.bin in their folder, or GPT-2's in the one above. A new model of any size has as many tokens as its tokenizer"},
    {GROUP_DATA, "model", 'e', FLAG_TEXT, AT(model), .value_name = "NAME|PATH",
     .help = "nano, baby, d6..d84, gpt3:cN; a checkpoint or Hugging Face directory; an llm.c .bin"},
    {GROUP_DATA, "layers", 0, FLAG_INT, AT(layers), "0", 0, MAX_LAYERS, .value_name = "N",
     .help = "layers, in place of the descriptor's; 0: as --model says"},
    {GROUP_DATA, "heads", 0, FLAG_INT, AT(heads), "0", 0, MAX_HEADS, .value_name = "N",
     .help = "attention heads, in place of the descriptor's; 0: as --model says. Channels / heads of 64, 80, 96, 112 and 128 are fast on Hopper"},
    {GROUP_DATA, "channels", 0, FLAG_INT, AT(channels), "0", 0, MAX_CHANNELS, .value_name = "N",
     .help = "width, in place of the descriptor's; 0: as --model says"},
    {GROUP_DATA, "window", 0, FLAG_INT, AT(window), "0", 0, MAX_CONTEXT, .of_command = true, .affects_training = true, .value_name = "N",
     .help = "attention sees the last N positions, its own among them; 0: all; not given: as --model's files say"},
    {GROUP_DATA, "documents", 0, FLAG_SWITCH, AT(documents), .of_command = true, .affects_training = true,
     .help = "attention sees its own document only, which ends at the tokenizer's end-of-text token; not given: as --model's files say"},
    {GROUP_DATA, "pack", 0, FLAG_SWITCH, AT(pack), .use = OF_TRAINING, .affects_training = true,
     .help = "training sequences are made of whole documents where they fit (best-fit packing): few are cut, none is padded; goes with --documents, but needs only the end-of-text token"},
    {GROUP_DATA, "sparse", 0, FLAG_TEXT, AT(sparse), .of_command = true, .affects_training = true, .value_name = "W,G,R",
     .help = "attention sees blocks of 64: those of the last W tokens, of the first G, and R at random; 0: all; not given: as --model's files say"},
    {GROUP_DATA, "batch", 'b', FLAG_INT, AT(batch), NULL, 1, MAX_BATCH, .use = OF_EVALUATION, .affects_training = true, .value_name = "B",
     .help = "sequences in one micro-batch of one GPU"},
    {GROUP_DATA, "seq", 't', FLAG_INT, AT(seq), NULL, 1, MAX_CONTEXT, .use = OF_EVALUATION, .affects_training = true, .value_name = "T",
     .help = "context: tokens in one sequence"},
    {GROUP_DATA, "tokens-per-step", 'd', FLAG_INT, AT(tokens_per_step), NULL, 0, 1LL << 40, .use = OF_TRAINING, .affects_training = true, .value_name = "N",
     .help = "tokens in one optimizer step over all GPUs, a multiple of batch x seq x GPUs; gradients accumulate; 0: one micro-batch"},

    {GROUP_OPTIMISATION, "recipe", 0, FLAG_CHOICE, AT(recipe), "auto", .value_name = "NAME",
     .choices = {"auto", "cpu-small", "gpu-small", "gpt2", "gpt2-cpu", "llm.c", "nanogpt"},
     .help = "a column of the last table: defaults for what the flags leave open; auto: by model and device; llm.c and nanogpt: the published settings of their GPT-2 124M"},
    {GROUP_OPTIMISATION, "steps", 'x', FLAG_INT, AT(steps), NULL, 1, 1LL << 40, .use = OF_TRAINING, .affects_training = true, .value_name = "N",
     .help = "optimizer steps of the whole run"},
    {GROUP_OPTIMISATION, "lr", 'l', FLAG_REAL, AT(lr), NULL, 0, 100, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "highest learning rate"},
    {GROUP_OPTIMISATION, "warmup", 'u', FLAG_INT, AT(warmup), NULL, 0, 1LL << 40, .use = OF_TRAINING, .affects_training = true, .value_name = "N",
     .help = "steps of linear warm-up; the default is at most a tenth of --steps"},
    {GROUP_OPTIMISATION, "final-lr-fraction", 'q', FLAG_REAL, AT(final_lr_fraction), NULL, 0, 1, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "learning rate that the schedule ends at, behind the last step, as a fraction of --lr"},
    {GROUP_OPTIMISATION, "schedule", 'k', FLAG_CHOICE, AT(schedule), "cosine", .use = OF_TRAINING, .affects_training = true,
     .choices = {"cosine", "linear", "constant", "wsd"}, .help = "shape of the learning rate after the warm-up; wsd decays in the last fifth of the steps, and not before the warm-up has ended"},
    {GROUP_OPTIMISATION, "optimizer", 0, FLAG_CHOICE, AT(optimizer), NULL, .use = OF_TRAINING, .choices = OPTIMIZER_FLAGS, .affects_training = true,
     .help = "muon: for the matrices of the blocks, with AdamW for embeddings, norms and biases, at the same rate and decay; less memory, at 124M about 2 % more time"},
    {GROUP_OPTIMISATION, "momentum", 0, FLAG_REAL, AT(momentum), "0.95", 0, 0.999999, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "Muon's average of gradients"},
    {GROUP_OPTIMISATION, "muon-polynomial", 0, FLAG_CHOICE, AT(muon_polynomial), "polar-express", .use = OF_TRAINING, .affects_training = true,
     .choices = {"polar-express", "jordan"}, .help = "what brings the singular values of an update to 1: of Amsel et al. 2025, or of Jordan et al. 2024"},
    {GROUP_OPTIMISATION, "weight-decay", 'c', FLAG_REAL, AT(weight_decay), NULL, 0, 100, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "decoupled decay, on matrices and embeddings"},
    {GROUP_OPTIMISATION, "beta1", 0, FLAG_REAL, AT(beta1), "0.9", 0, 0.999999, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "AdamW's average of gradients"},
    {GROUP_OPTIMISATION, "beta2", 0, FLAG_REAL, AT(beta2), NULL, 0, 0.999999, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "AdamW's average of squared gradients"},
    {GROUP_OPTIMISATION, "eps", 0, FLAG_REAL, AT(eps), "1e-8", 1e-16, 1, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "AdamW's epsilon"},
    {GROUP_OPTIMISATION, "dropout", 0, FLAG_REAL, AT(dropout), NULL, 0, 0.99, .use = OF_TRAINING, .affects_training = true, .value_name = "P",
     .help = "in training, of attention's probabilities, each branch's output and the embedding, as in GPT-2, in steps of 1/256"},
    {GROUP_OPTIMISATION, "clip", 0, FLAG_REAL, AT(clip), "1", 0, 1e9, .use = OF_TRAINING, .affects_training = true, .value_name = "X",
     .help = "largest global norm of the gradients; 0: no clipping"},
    {GROUP_OPTIMISATION, "seed", 0, FLAG_INT, AT(seed), "1337", 0, 9007199254740991.0, .affects_training = true, .value_name = "N",
     .help = "of initialisation, data order and sampling"},

    {GROUP_EVALUATION, "eval-every", 'v', FLAG_INT, AT(eval_every), NULL, 0, 1LL << 40, .use = OF_TRAINING, .value_name = "N",
     .help = "steps between validations; 0: only at the end"},
    {GROUP_EVALUATION, "eval-batches", 'm', FLAG_INT, AT(eval_batches), NULL, 1, 1LL << 31, .use = OF_EVALUATION, .value_name = "N",
     .help = "micro-batches in one validation"},
    {GROUP_EVALUATION, "eval-only", 0, FLAG_SWITCH, AT(eval_only), .help = "validate --model and exit; with --out a line in its log.jsonl has the loss and the data"},
    {GROUP_EVALUATION, "hellaswag", 0, FLAG_TEXT, AT(hellaswag), .use = OF_EVALUATION, .value_name = "FILE",
     .help = "multiple-choice items to score with each validation (data/hellaswag.py writes them); with --eval-only and no data, alone"},
    {GROUP_EVALUATION, "sample-every", 's', FLAG_INT, AT(sample_every), NULL, 0, 1LL << 40, .use = OF_TRAINING, .value_name = "N",
     .help = "steps between samples; 0: only at the end"},
    {GROUP_EVALUATION, "sample-tokens", 'g', FLAG_INT, AT(sample_tokens), "256", 0, 1 << 26, .use = OF_SAMPLES, .value_name = "N",
     .help = "tokens in one sample; 0: no samples"},
    {GROUP_EVALUATION, "prompt", 0, FLAG_TEXT, AT(prompt), .of_command = true, .use = OF_SAMPLES, .may_be_empty = true, .value_name = "TEXT",
     .help = "how a sample begins; with --model PATH and no --train: sample and exit, the text alone on stdout"},
    {GROUP_EVALUATION, "prompt-file", 0, FLAG_TEXT, AT(prompt_file), .of_command = true, .use = OF_SAMPLES, .value_name = "FILE",
     .help = "the same from a file; -: from stdin"},
    {GROUP_EVALUATION, "chat", 0, FLAG_SWITCH, AT(chat), .of_command = true, .use = OF_SAMPLES,
     .help = "with --model PATH: what you type, line by line, and what the model writes behind it; ctrl-C ends an answer, ctrl-D the chat"},
    {GROUP_EVALUATION, "samples", 0, FLAG_INT, AT(samples), "1", 1, 1 << 20, .use = OF_SAMPLES, .value_name = "N",
     .help = "samples at a time, decoded together; sample i is the same whatever N is, but for rounding (README.md)"},
    {GROUP_EVALUATION, "stop", 0, FLAG_TEXT, AT(stop), .use = OF_SAMPLES, .value_name = "TEXT",
     .help = "a sample ends before this text, as it does before end-of-text"},
    {GROUP_EVALUATION, "temperature", 0, FLAG_REAL, AT(temperature), "0.8", 0, 1000, .use = OF_SAMPLES, .value_name = "X",
     .help = "of sampling; 0: always the likeliest token"},
    {GROUP_EVALUATION, "top-k", 0, FLAG_INT, AT(top_k), "200", 0, 1 << 24, .use = OF_SAMPLES, .value_name = "N",
     .help = "sample among the N likeliest tokens; 0: all"},
    {GROUP_EVALUATION, "top-p", 0, FLAG_REAL, AT(top_p), "1", 0, 1, .use = OF_SAMPLES, .value_name = "P",
     .help = "sample among the likeliest tokens whose probabilities add up to P; 1: all"},
    {GROUP_EVALUATION, "min-p", 0, FLAG_REAL, AT(min_p), "0", 0, 1, .use = OF_SAMPLES, .value_name = "P",
     .help = "sample among tokens at least P times as probable as the likeliest; 0: all"},

    {GROUP_CHECKPOINTS, "out", 'o', FLAG_TEXT, AT(out), .of_command = true, .use = OF_EVALUATION, .value_name = "DIR",
     .help = "where checkpoints and log.jsonl go; without it nothing is written, but for a run without --train, --model and --recipe: its model goes to out/default, where the next such run replaces it"},
    {GROUP_CHECKPOINTS, "save-every", 'n', FLAG_INT, AT(save_every), NULL, 0, 1LL << 40, .use = OF_TRAINING, .value_name = "N",
     .help = "steps between checkpoints; 0: only at the end"},
    {GROUP_CHECKPOINTS, "keep", 0, FLAG_INT, AT(keep), "0", 0, 1LL << 40, .use = OF_TRAINING, .value_name = "N",
     .help = "newest checkpoints that stay; 0: all"},
    {GROUP_CHECKPOINTS, "keep-best", 0, FLAG_SWITCH, AT(keep_best), .use = OF_TRAINING, .help = "save at each new lowest validation loss; that checkpoint stays, whatever --keep says"},
    {GROUP_CHECKPOINTS, "resume", 'y', FLAG_SWITCH, AT(resume), .of_command = true, .use = OF_TRAINING, .help = "go on from the newest whole checkpoint in --out, with its flags for what is left open; where there is none, a new run begins; without --out: with the run in out/default"},
    {GROUP_CHECKPOINTS, "model-only", 0, FLAG_SWITCH, AT(model_only), .of_command = true, .use = OF_TRAINING, .help = "checkpoints without the optimizer: smaller, cannot be resumed"},
    {GROUP_CHECKPOINTS, "export", 0, FLAG_TEXT, AT(export_path), .value_name = "PATH",
     .help = "write --model for other programs and exit: NAME.gguf for llama.cpp, NAME.bin for llm.c, else a Hugging Face directory"},
    {GROUP_CHECKPOINTS, "export-type", 0, FLAG_CHOICE, AT(export_type), "f32", .choices = {"f32", "f16", "bf16", "q8_0"},
     .help = "of the matrices in a .gguf; a .bin takes f32 and bf16"},

    {GROUP_SYSTEM, "device", 0, FLAG_CHOICE, AT(device), "auto", .choices = {"auto", "cuda", "cpu"},
     .help = "where to compute; auto: the GPU if there is one"},
    {GROUP_SYSTEM, "precision", 0, FLAG_CHOICE, AT(precision), NULL, .choices = {"bf16", "fp32"}, .affects_training = true,
     .help = "of weights and activations; sums, gradients and master weights are always fp32"},
    {GROUP_SYSTEM, "reproducible", 0, FLAG_INT, AT(reproducible), "0", 0, 65536, .use = OF_TRAINING, .affects_training = true, .value_name = "N",
     .help = "the same weights, bit for bit, on any number of GPUs that divides N: the gradients of a step come from N leaves, equal groups of micro-batches, and are added in a fixed tree, which takes memory for up to log2 N more gradients; 0: off"},
    {GROUP_SYSTEM, "attention", 0, FLAG_CHOICE, AT(attention), "flash", .choices = {"flash", "standard"}, .affects_training = true,
     .help = "standard keeps the T x T matrix: for comparison only"},
    {GROUP_SYSTEM, "recompute", 'r', FLAG_CHOICE, AT(recompute), "none", .use = OF_TRAINING, .choices = {"none", "gelu", "linear", "block"},
     .help = "what backward computes again instead of keeping: less memory, more time; linear: a block but its attention"},
    {GROUP_SYSTEM, "graph", 0, FLAG_CHOICE, AT(graph), "on", .choices = {"off", "on"},
     .help = "on: forward and backward go to the GPU as one CUDA graph, with the same bits; off: launch by launch"},
    {GROUP_SYSTEM, "gpus", 0, FLAG_INT, AT(gpus), "1", 1, 1024, .of_command = true, .affects_training = true, .value_name = "N",
     .help = "trains on N GPUs of this host together, a process each; with --device cpu N processes; several hosts: torchrun, srun or mpirun start the ranks"},
    {GROUP_SYSTEM, "context-gpus", 0, FLAG_INT, AT(context_gpus), "1", 1, 1024, .of_command = true, .use = OF_EVALUATION, .affects_training = true, .value_name = "N",
     .help = "GPUs that share each sequence's tokens out, for a --seq that one does not hold; divides GPUs and heads"},
    {GROUP_SYSTEM, "verify-every", 0, FLAG_INT, AT(verify_every), "0", 0, 1LL << 40, .use = OF_TRAINING, .value_name = "N",
     .help = "every Nth step is computed twice and its gradients compared bit for bit; 0: never"},
    {GROUP_SYSTEM, "restarts", 0, FLAG_INT, AT(restarts), "0", 0, 1000000, .of_command = true, .use = OF_TRAINING, .value_name = "N",
     .help = "after a failure at run time other than divergence, start again from the newest checkpoint in --out, at most N times"},

    {GROUP_TOOLS, "memory", 0, FLAG_SWITCH, AT(memory), .help = "print the memory plan, tensor by tensor, and exit"},
    {GROUP_TOOLS, "profile", 0, FLAG_SWITCH, AT(profile), .of_command = true, .use = OF_TRAINING, .help = "print where the time of a step goes, op by op, beside the hardware's limits, and exit"},
    {GROUP_TOOLS, "profile-trace", 0, FLAG_TEXT, AT(profile_trace), .of_command = true, .use = OF_TRAINING, .value_name = "FILE",
     .help = "the same, with each op of one step on the device's time line in FILE (JSON), which ui.perfetto.dev and chrome://tracing open"},
    {GROUP_TOOLS, "overfit", 'a', FLAG_SWITCH, AT(overfit), .use = OF_TRAINING, .affects_training = true, .help = "train on the first batch only: the loss must go to 0"},
    {GROUP_TOOLS, "completion", 0, FLAG_CHOICE, AT(completion), .choices = {"bash", "zsh", "fish"}, .answers = true,
     .help = "print what the shell completes flags and their values with, and exit: source <(./train_gpt2 --completion bash)"},
    {GROUP_TOOLS, "help", 'h', FLAG_SWITCH, AT(help), .answers = true, .help = "print this and exit"},
    {GROUP_TOOLS, "help-markdown", 0, FLAG_SWITCH, AT(help_markdown), .hidden = true, .answers = true, .help = "print the table of FLAGS.md and exit"},
    {GROUP_TOOLS, "version", 0, FLAG_SWITCH, AT(version), .answers = true, .help = "print the version and exit"},
};
/* clang-format on */
const int flags_count = COUNT(flags_table);
_Static_assert(COUNT(flags_table) <= FLAGS_MAX, "raise FLAGS_MAX in flags.h");

/* Where the numbers come from; RECIPES.md has the measurements.
 *   cpu-small   nanoGPT's model and text for a CPU (config/train_shakespeare_char.py as its README runs it), by a sweep
 *   gpu-small   nanoGPT's baby GPT, by a sweep; it stops near the lowest validation loss
 *   gpt2        GPT-2 124M on 10^10 tokens: 10^10 / 524288 = 19073 steps. 160 batches of 64 x 1024 are the
 *               first 10 x 2^20 tokens of the validation shard, on which others report 3.28 as well. Muon's rate lies
 *               between the best of short runs and the published ones of long runs
 *   gpt2-cpu    the same model at a size of step that a CPU finishes while one watches
 *   llm.c       its run of GPT-2 124M on 10^10 tokens of FineWeb (scripts/run_gpt2_124M.sh there)
 *   nanogpt     its run of GPT-2 124M on OpenWebText (config/train_gpt2.py there) */
const RecipeRow recipe_rows[] = {
    {"model",             {"nano", "baby", "d12", "d12", "d12", "d12"}       },
    {"batch",             {"24", "64", "64", "4", "64", "12"}                },
    {"seq",               {"64", "256", "1024", "256", "1024", "1024"}       },
    {"tokens-per-step",   {"0", "0", "524288", "0", "524288", "491520"}      },
    {"steps",             {"540", "580", "19073", "200", "18865", "600000"}  },
    {"optimizer",         {"muon", "muon", "muon", "adamw", "adamw", "adamw"}},
    {"lr",                {"1.2e-2", "6e-3", "3e-3", "3e-4", "6e-4", "6e-4"} },
    {"weight-decay",      {"0.1", "0.5", "0.1", "0.1", "0.1", "0.1"}         },
    {"warmup",            {"30", "60", "700", "20", "700", "2000"}           },
    {"final-lr-fraction", {"0.1", "0.1", "0", "0.1", "0", "0.1"}             },
    {"beta2",             {"0.95", "0.99", "0.95", "0.95", "0.95", "0.95"}   },
    {"dropout",           {"0", "0.1", "0", "0", "0", "0"}                   },
    {"eval-every",        {"135", "145", "250", "50", "250", "1000"}         },
    {"eval-batches",      {"72", "7", "160", "4", "20", "200"}               },
    {"sample-every",      {"270", "290", "1000", "0", "20000", "0"}          },
    {"save-every",        {"0", "0", "1000", "0", "5000", "1000"}            },
    {"precision",         {"fp32", "bf16", "bf16", "fp32", "bf16", "bf16"}   },
};
const int recipe_rows_count = COUNT(recipe_rows);
