/* SPDX-License-Identifier: Apache-2.0 */
/* Which planted fault this run has (tools/mutants, mutants.toml). */
#ifndef TQ_TESTS_SIM_MUTANTS_H
#define TQ_TESTS_SIM_MUTANTS_H

extern unsigned sim_mutant; /* 0: none */
extern const unsigned sim_mutants_cnt;

#endif
