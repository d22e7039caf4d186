/* The ladder of AdamW. op_adamw_args gives the arguments that the shipped op gets. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void adamw_per_tensor(const Call *c);
void adamw_one_launch(const Call *c);
void adamw_vectorised(const Call *c);

#ifdef __cplusplus
}
#endif
