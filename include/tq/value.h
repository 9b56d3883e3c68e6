/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tag maps for people: between msgpack, which the API takes and gives, and text.
 */
#ifndef TQ_VALUE_H
#define TQ_VALUE_H

#include <tq/status.h>
#include <tq/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A msgpack map from names and texts. A text that is an integer, a decimal number, true, false or
 * null becomes that; "..." in double quotes, and anything else, a string. *map is malloc's; release
 * it with tq_free. cnt 0 is the empty map. E_INVALID (a name twice), E_NO_MEMORY. Any thread. */
TQ_API tq_status_t tq_map_from_texts(const char *const *names, const char *const *texts,
                                     uint32_t cnt, void **map, size_t *len, tq_error_t *err);

/* One whole msgpack value as terminated JSON: NaN, infinities and what is nested deeper than 64 are
 * null, byte strings base64. len 0 is the empty map. *json is malloc's; release it with tq_free.
 * E_INVALID for what is no msgpack value, E_NO_MEMORY. Any thread. */
TQ_API tq_status_t tq_value_to_json(const void *value, size_t len, char **json, tq_error_t *err);

/* A JSON string literal with its quotes, terminated; bytes that are no UTF-8 become U+FFFD. Release
 * it with tq_free. NULL when out of memory. Any thread. */
TQ_API char *tq_json_string(const void *data, size_t len);

TQ_API void tq_free(void *data); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
