/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tags of a row: one msgpack map whose keys are strings or integers. Values are opaque: merging
 * copies whole entries. An empty map is no map at all (NULL).
 */
#ifndef TQI_CORE_TAGS_H
#define TQI_CORE_TAGS_H

#include <stdbool.h>
#include <stdint.h>

#include <tq/types.h>

#include "base/env.h"
#include "base/err.h"

typedef struct tqi_tags {
    uint32_t len;
    uint8_t data[]; /* one msgpack map, not empty */
} tqi_tags_t;

void tqi_tags_free(const tqi_env_t *env, tqi_tags_t *tags); /* NULL is fine */

/* *out = old with the entries of the map `add` put over it, the last of equal keys winning; or, with
 * is_replace, `add` alone. add_len 0 is an empty map. Nothing left: NULL. old is not changed.
 * E_INVALID (not a map, or a key that is neither string nor integer), E_TOO_LARGE (over
 * TQ_TAGS_BYTES_MAX or TQ_TAGS_ENTRIES_MAX), E_NO_MEMORY. */
tq_status_t tqi_tags_merge(const tqi_env_t *env, const tqi_tags_t *old, const void *add,
                           uint32_t add_len, bool is_replace, tqi_tags_t **out, tqi_err_t *err);

#endif
