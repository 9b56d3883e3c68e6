/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run as its clients saw it, one line of JSON for each call and each end (docs/testing.md), for
 * the checker of tests/oracle. Without a file nothing happens.
 */
#ifndef TQ_TESTS_SIM_HISTORY_H
#define TQ_TESTS_SIM_HISTORY_H

#include <stdio.h>

#include "world.h"

/* NULL: no history. The file is the caller's, and is that of the next runs. */
void history_to(FILE *file);

void history_call(const work_t *work);
/* The op is complete, and told to its caller: of a fetch with a grant, when it was taken. */
void history_done(const work_t *work);
/* The rows of a fetch were given back unseen. */
void history_returned(const work_t *work);
/* A unit's or the controller's memory died. */
void history_loss(world_t *w);
/* From here on nothing is disturbed, and nobody is busy with what was; or no longer so. */
void history_quiet(world_t *w, bool is_quiet);

#endif
