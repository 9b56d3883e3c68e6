/* SPDX-License-Identifier: Apache-2.0 */
#include "mutants.h"

unsigned sim_mutant;
const unsigned sim_mutants_cnt = 0;
