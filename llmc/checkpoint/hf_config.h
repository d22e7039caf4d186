/* config.json, as Hugging Face transformers writes and reads it for GPT-2. */
#pragma once
#include "llmc/base/json.h"
#include "llmc/model/gpt2.h"

/* Refuses what this program cannot run exactly as transformers would: another model type, activation,
 * epsilon, hidden size of the MLP, an untied head; and values that are no model. Messages name file, field,
 * expected, found. A window of attention is read from this program's own key, attention_window; dropout belongs
 * to a run: it is written under Hugging Face's three names, and not read. */
bool hf_config_read(const char *path, GPT2Config *config, Error *err);
/* A token below n_tokens other than eot at which transformers would end a text too, by eos_token_id of the directory's
 * generation_config.json or config.json; -1: there is none, or no such file that can be read. */
int hf_config_other_end(const char *directory, int n_tokens, int eot);
/* eot: id of end-of-text, -1 where there is none. */
void hf_config_write(JsonWriter *w, const GPT2Config *config, int eot);
