/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both maps hand uthash a hash of their own (its default one is weak on short keys), from which it
 * keeps 32 bits. A refused allocation leaves an entry with no table, which is how a put learns of
 * it. The uthash macros find their environment in a variable `env` of the calling function.
 */
#include "base/map.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/size.h"

#include <string.h>

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) tqi_env_alloc(env, size)
#define uthash_free(ptr, size) tqi_env_free(env, ptr, size)
#include <uthash.h>

/* ---- from numbers ---- */

typedef struct tqi_map_u64_entry {
    tqi_map_u64_item_t item; /* first: items lead back to their entries */
    UT_hash_handle hh;
} u64_entry_t;

/* The finaliser of splitmix64: numbers that differ in their high bits alone (an epoch, a unit) must
 * not meet in one bucket. */
static unsigned u64_hash(const tqi_map_u64_t *map, uint64_t key)
{
    key ^= map->env->hash_seed;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)(key ^ (key >> 31));
}

static u64_entry_t *u64_find(const tqi_map_u64_t *map, uint64_t key)
{
    u64_entry_t *entry;

    HASH_FIND_BYHASHVALUE(hh, map->head, &key, sizeof key, u64_hash(map, key), entry);
    return entry;
}

void tqi_map_u64_init(tqi_map_u64_t *map, const tqi_env_t *env)
{
    *map = (tqi_map_u64_t){.env = env};
}

void tqi_map_u64_fini(tqi_map_u64_t *map, tqi_map_value_fini_t value_fini, void *ctx)
{
    const tqi_env_t *env = map->env;
    u64_entry_t *entry = map->head;

    HASH_CLEAR(hh, map->head); /* the table; the entries stay linked by hh.next */
    while (entry != NULL) {
        u64_entry_t *next = entry->hh.next;

        if (value_fini != NULL)
            value_fini(ctx, entry->item.value);
        tqi_env_free(env, entry, sizeof *entry);
        entry = next;
    }
}

void *tqi_map_u64_get(const tqi_map_u64_t *map, uint64_t key)
{
    const u64_entry_t *entry = u64_find(map, key);

    return entry == NULL ? NULL : entry->item.value;
}

tq_status_t tqi_map_u64_put(tqi_map_u64_t *map, uint64_t key, void *value, void **old)
{
    const tqi_env_t *env = map->env;
    u64_entry_t *entry = u64_find(map, key);

    tqi_assert(value != NULL);
    if (entry != NULL) {
        tqi_assert(old != NULL);
        *old = entry->item.value;
        entry->item.value = value;
        return TQ_OK;
    }
    entry = tqi_env_zalloc(env, sizeof *entry);
    if (entry == NULL)
        return TQ_E_NO_MEMORY;
    entry->item.key = key;
    entry->item.value = value;
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, map->head, &entry->item.key, sizeof key, u64_hash(map, key),
                                entry);
    if (entry->hh.tbl == NULL) {
        tqi_env_free(env, entry, sizeof *entry);
        return TQ_E_NO_MEMORY;
    }
    if (old != NULL)
        *old = NULL;
    return TQ_OK;
}

void *tqi_map_u64_take(tqi_map_u64_t *map, uint64_t key)
{
    const tqi_env_t *env = map->env;
    u64_entry_t *entry = u64_find(map, key);

    if (entry == NULL)
        return NULL;
    void *value = entry->item.value;
    HASH_DELETE(hh, map->head, entry);
    tqi_env_free(env, entry, sizeof *entry);
    return value;
}

size_t tqi_map_u64_count(const tqi_map_u64_t *map)
{
    return HASH_COUNT(map->head);
}

tqi_map_u64_item_t *tqi_map_u64_first(const tqi_map_u64_t *map)
{
    return map->head == NULL ? NULL : &map->head->item;
}

tqi_map_u64_item_t *tqi_map_u64_next(const tqi_map_u64_item_t *item)
{
    u64_entry_t *next = tqi_container_of(item, u64_entry_t, item)->hh.next;

    return next == NULL ? NULL : &next->item;
}

/* ---- from byte strings ---- */

typedef struct tqi_map_str_entry {
    tqi_map_str_item_t item;
    UT_hash_handle hh;
    char key[]; /* key_len bytes and a NUL */
} str_entry_t;

static size_t str_entry_size(size_t key_len)
{
    return sizeof(str_entry_t) + key_len + 1;
}

static unsigned str_hash(const tqi_map_str_t *map, const void *key, size_t key_len)
{
    return (unsigned)tqi_hash_bytes(key, key_len, map->env->hash_seed);
}

static str_entry_t *str_find(const tqi_map_str_t *map, const void *key, size_t key_len,
                             unsigned hash)
{
    str_entry_t *entry;

    if (key_len > UINT32_MAX)
        return NULL;
    if (key_len == 0)
        key = ""; /* memcmp wants an address */
    HASH_FIND_BYHASHVALUE(hh, map->head, key, key_len, hash, entry);
    return entry;
}

void tqi_map_str_init(tqi_map_str_t *map, const tqi_env_t *env)
{
    *map = (tqi_map_str_t){.env = env};
}

void tqi_map_str_fini(tqi_map_str_t *map, tqi_map_value_fini_t value_fini, void *ctx)
{
    const tqi_env_t *env = map->env;
    str_entry_t *entry = map->head;

    HASH_CLEAR(hh, map->head);
    while (entry != NULL) {
        str_entry_t *next = entry->hh.next;

        if (value_fini != NULL)
            value_fini(ctx, entry->item.value);
        tqi_env_free(env, entry, str_entry_size(entry->item.key_len));
        entry = next;
    }
}

tqi_map_str_item_t *tqi_map_str_find(const tqi_map_str_t *map, const void *key, size_t key_len)
{
    str_entry_t *entry = str_find(map, key, key_len, str_hash(map, key, key_len));

    return entry == NULL ? NULL : &entry->item;
}

void *tqi_map_str_get(const tqi_map_str_t *map, const void *key, size_t key_len)
{
    const tqi_map_str_item_t *item = tqi_map_str_find(map, key, key_len);

    return item == NULL ? NULL : item->value;
}

tq_status_t tqi_map_str_put(tqi_map_str_t *map, const void *key, size_t key_len, void *value,
                            void **old)
{
    const tqi_env_t *env = map->env;
    unsigned hash = str_hash(map, key, key_len);
    str_entry_t *entry = str_find(map, key, key_len, hash);

    tqi_assert(value != NULL && key_len <= UINT32_MAX);
    if (entry != NULL) {
        tqi_assert(old != NULL);
        *old = entry->item.value;
        entry->item.value = value;
        return TQ_OK;
    }
    entry = tqi_env_alloc(env, str_entry_size(key_len));
    if (entry == NULL)
        return TQ_E_NO_MEMORY;
    *entry = (str_entry_t){.item = {.key = entry->key, .key_len = key_len, .value = value}};
    if (key_len > 0)
        memcpy(entry->key, key, key_len);
    entry->key[key_len] = '\0';
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, map->head, entry->key, key_len, hash, entry);
    if (entry->hh.tbl == NULL) {
        tqi_env_free(env, entry, str_entry_size(key_len));
        return TQ_E_NO_MEMORY;
    }
    if (old != NULL)
        *old = NULL;
    return TQ_OK;
}

void *tqi_map_str_take(tqi_map_str_t *map, const void *key, size_t key_len)
{
    const tqi_env_t *env = map->env;
    str_entry_t *entry = str_find(map, key, key_len, str_hash(map, key, key_len));

    if (entry == NULL)
        return NULL;
    void *value = entry->item.value;
    HASH_DELETE(hh, map->head, entry);
    tqi_env_free(env, entry, str_entry_size(entry->item.key_len));
    return value;
}

size_t tqi_map_str_count(const tqi_map_str_t *map)
{
    return HASH_COUNT(map->head);
}

tqi_map_str_item_t *tqi_map_str_first(const tqi_map_str_t *map)
{
    return map->head == NULL ? NULL : &map->head->item;
}

tqi_map_str_item_t *tqi_map_str_next(const tqi_map_str_item_t *item)
{
    str_entry_t *next = tqi_container_of(item, str_entry_t, item)->hh.next;

    return next == NULL ? NULL : &next->item;
}
