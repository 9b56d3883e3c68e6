/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samplers choose which of the ready rows a fetch is given. They look at a ready set and change
 * nothing; a run that needs more than a slice is continued where it stopped.
 *
 *   SequentialSampler   the oldest n rows
 *   GRPOGroupNSampler   the oldest n / g whole groups: g rows next to each other by position (which
 *                       is how they were inserted), or g rows with the same value of a tag
 */
#ifndef TQI_CORE_SAMPLER_H
#define TQI_CORE_SAMPLER_H

#include "core/ready.h"

typedef enum tqi_sample_result {
    TQI_SAMPLE_DONE = 1,   /* chosen has n rows */
    TQI_SAMPLE_NOT_ENOUGH, /* what is ready does not make n, or not enough whole groups */
    TQI_SAMPLE_AGAIN,      /* the budget is spent: call step again */
    TQI_SAMPLE_NO_MEMORY,
} tqi_sample_result_t;

struct tqi_sampler_ops;

/* A store's sampler with its arguments. */
typedef struct tqi_sampler {
    const struct tqi_sampler_ops *ops;
    uint32_t group;       /* rows in a group, >= 1 */
    const char *group_by; /* tag, or NULL: by position. The caller's */
} tqi_sampler_t;

/* One run. */
typedef struct tqi_sample {
    tqi_partition_t *p;
    tqi_ready_t *set;
    uint32_t need;
    TQI_VEC(uint64_t) chosen; /* positions, in the order of the answer */
    uint64_t at;              /* positions before it were looked at */
    uint64_t run_lo;          /* by position: the run that ends at `at` */
    uint32_t run_len;
    tqi_map_str_t groups; /* by tag: value to rows seen so far */
} tqi_sample_t;

/* By the reference's name; NULL is the sequential one. E_NO_SAMPLER names those there are; E_CONFIG. */
tq_status_t tqi_sampler_init(tqi_sampler_t *sampler, const char *name, uint32_t group,
                             const char *group_by, tqi_err_t *err);
const char *tqi_sampler_name(const tqi_sampler_t *sampler);
/* E_INVALID when n rows can never be answered. */
tq_status_t tqi_sampler_admit(const tqi_sampler_t *sampler, uint32_t need, tqi_err_t *err);

void tqi_sample_init(tqi_sample_t *sample, tqi_partition_t *p, tqi_ready_t *set, uint32_t need);
void tqi_sample_fini(tqi_sample_t *sample);
/* Looks at up to *budget rows and reduces it. The set must not change between the steps of a run. */
tqi_sample_result_t tqi_sampler_step(const tqi_sampler_t *sampler, tqi_sample_t *sample,
                                     uint32_t *budget);

#endif
