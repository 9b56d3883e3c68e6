/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which (state, event) pairs the roles went through, of those that their machines allow
 * (base/machine.h). In a program whose roles do not tell (sim_mutants) none is reached.
 */
#ifndef TQ_TESTS_SIM_PAIRS_H
#define TQ_TESTS_SIM_PAIRS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/machine.h"

/* From now on fn is called whenever the machine has a step that leads to the state, before its owner
 * goes on. One at a time; NULL: none. */
void pairs_watch(const tqi_machine_t *machine, unsigned state, void (*fn)(void *ctx), void *ctx);
/* Whether the seed that ended last met a pair that fewer than `times` of the seeds that this said true
 * of have met; for lists of seeds that meet them all. */
bool pairs_adds(unsigned times);
/* Writes machine, pairs that are legal, pairs reached, and each that was not. Whether all were. */
bool pairs_report(FILE *out);

#endif
