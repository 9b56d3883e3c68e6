/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of this program's own objects into the system that fail when a test says so, each place once.
 * A place is a stack of calls: the same line reached from elsewhere is another place.
 */
#ifndef TQ_TESTS_FAULTS_H
#define TQ_TESTS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* Only each so many-th place fails. Before there are threads. */
void faults_init(unsigned every);
/* From now on the first call from a place that has not failed yet fails, in whichever thread. */
void faults_arm(void);
/* Nothing fails any more. What failed since faults_arm, or NULL. */
const char *faults_disarm(void);
/* Places that have failed so far. */
uint32_t faults_places(void);
/* Blocks of memory that our objects hold now. */
int64_t faults_blocks(void);
/* The stack of the last failure, to stderr. */
void faults_print(void);

#endif
