/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash maps to pointers, walked in the order of insertion: tqi_map_u64_t from 64-bit numbers,
 * tqi_map_str_t from byte strings (user keys, partition and field names). They are made of uthash,
 * whose memory comes from the map's environment and whose refusals come back as E_NO_MEMORY; map.c
 * is the only file that knows it.
 *
 * A value is any pointer but NULL, and the caller's: the map frees none unless fini is told how.
 */
#ifndef TQI_BASE_MAP_H
#define TQI_BASE_MAP_H

#include "base/env.h"

#include <stddef.h>
#include <stdint.h>
#include <tq/status.h>

/* Called once per value that is left at fini. */
typedef void (*tqi_map_value_fini_t)(void *ctx, void *value);

/* ---- from numbers ---- */

/* Valid until its key is taken or the map is finished. value may be assigned (not NULL). */
typedef struct tqi_map_u64_item {
    uint64_t key;
    void *value;
} tqi_map_u64_item_t;

typedef struct tqi_map_u64 {
    const tqi_env_t *env;
    struct tqi_map_u64_entry *head;
} tqi_map_u64_t;

/* Allocates nothing. */
void tqi_map_u64_init(tqi_map_u64_t *map, const tqi_env_t *env);
/* value_fini may be NULL; it must not touch the map. */
void tqi_map_u64_fini(tqi_map_u64_t *map, tqi_map_value_fini_t value_fini, void *ctx);

/* NULL when the key is not there. */
void *tqi_map_u64_get(const tqi_map_u64_t *map, uint64_t key);
/* Inserts, or replaces in place (which can't fail). *old, if old is given, is the value that was
 * there, or NULL; without it the key must be new. OK, or E_NO_MEMORY and nothing changed. */
tq_status_t tqi_map_u64_put(tqi_map_u64_t *map, uint64_t key, void *value, void **old);
/* Takes the key out and returns its value, or NULL. */
void *tqi_map_u64_take(tqi_map_u64_t *map, uint64_t key);
size_t tqi_map_u64_count(const tqi_map_u64_t *map);

/* In insertion order; NULL at the end. Ask for the next one before taking the current one out. */
tqi_map_u64_item_t *tqi_map_u64_first(const tqi_map_u64_t *map);
tqi_map_u64_item_t *tqi_map_u64_next(const tqi_map_u64_item_t *item);

/* ---- from byte strings ---- */

/* key is the map's own copy; a NUL follows its key_len bytes. */
typedef struct tqi_map_str_item {
    const char *key;
    size_t key_len;
    void *value;
} tqi_map_str_item_t;

typedef struct tqi_map_str {
    const tqi_env_t *env;
    struct tqi_map_str_entry *head;
} tqi_map_str_t;

/* The same as above. Keys are copied once, when they are new; at most 4 GiB - 1 bytes, any bytes,
 * none at all included. */
void tqi_map_str_init(tqi_map_str_t *map, const tqi_env_t *env);
void tqi_map_str_fini(tqi_map_str_t *map, tqi_map_value_fini_t value_fini, void *ctx);
void *tqi_map_str_get(const tqi_map_str_t *map, const void *key, size_t key_len);
tq_status_t tqi_map_str_put(tqi_map_str_t *map, const void *key, size_t key_len, void *value,
                            void **old);
void *tqi_map_str_take(tqi_map_str_t *map, const void *key, size_t key_len);
size_t tqi_map_str_count(const tqi_map_str_t *map);
/* The item of a key, for its lasting copy; NULL when it is not there. */
tqi_map_str_item_t *tqi_map_str_find(const tqi_map_str_t *map, const void *key, size_t key_len);
tqi_map_str_item_t *tqi_map_str_first(const tqi_map_str_t *map);
tqi_map_str_item_t *tqi_map_str_next(const tqi_map_str_item_t *item);

#endif
