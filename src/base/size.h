/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on sizes that can't wrap unnoticed, and the byte order of everything on the wire:
 * little-endian, at any alignment.
 */
#ifndef TQI_BASE_SIZE_H
#define TQI_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a + b (a * b); false on overflow, *out is then meaningless. */
static inline bool tqi_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool tqi_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool tqi_u64_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool tqi_u64_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* size rounded up to a multiple of align, a power of two; false on overflow. */
static inline bool tqi_size_align(size_t size, size_t align, size_t *out)
{
    size_t sum;

    if (!tqi_size_add(size, align - 1, &sum))
        return false;
    *out = sum & ~(align - 1);
    return true;
}

static inline uint64_t tqi_u64_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tqi_u64_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline size_t tqi_size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t tqi_size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Compilers turn these into one move where the machine is little-endian. */
static inline uint16_t tqi_load_le16(const void *src)
{
    const uint8_t *p = src;

    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t tqi_load_le32(const void *src)
{
    const uint8_t *p = src;

    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t tqi_load_le64(const void *src)
{
    const uint8_t *p = src;

    return (uint64_t)tqi_load_le32(p) | (uint64_t)tqi_load_le32(p + 4) << 32;
}

static inline void tqi_store_le16(void *dst, uint16_t v)
{
    uint8_t *p = dst;

    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void tqi_store_le32(void *dst, uint32_t v)
{
    uint8_t *p = dst;

    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static inline void tqi_store_le64(void *dst, uint64_t v)
{
    uint8_t *p = dst;

    tqi_store_le32(p, (uint32_t)v);
    tqi_store_le32(p + 4, (uint32_t)(v >> 32));
}

#define tqi_array_len(array) (sizeof(array) / sizeof((array)[0]))

/* The struct of the given type that `ptr` is the `member` of; ptr must not be NULL. */
#define tqi_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#endif
