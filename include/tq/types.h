/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words that the whole API speaks: rows, values and how one value is described.
 */
#ifndef TQ_TYPES_H
#define TQ_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <tq/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Identity of a row: its index, unique for the life of a store and never used twice. */
typedef uint64_t tq_row_t;
#define TQ_ROW_NONE UINT64_MAX /* where a key has no row */
#define TQ_ROW_MAX INT64_MAX

/* Limits, enforced wherever bytes or arguments come in. */
#define TQ_NDIM_MAX 16
#define TQ_NAME_MAX 1024              /* bytes of a key, field, task or partition name */
#define TQ_TAGS_BYTES_MAX (64u << 10) /* one row's tag map */
#define TQ_TAGS_ENTRIES_MAX 256u      /* entries of one row's tag map */
#define TQ_REQUEST_ROWS_MAX 65536u    /* rows in one request */
#define TQ_REQUEST_DESCS_MAX 262144u  /* descriptors in one request; a uniform run counts one */
#define TQ_PARTITION_FIELDS_MAX 4096u
#define TQ_PARTITION_TASKS_MAX 64u
#define TQ_PARTITION_READY_SETS_MAX 64u
#define TQ_PARTITION_ROWS_MAX (16u << 20)
#define TQ_PARTITIONS_MAX 65536u
#define TQ_MESSAGE_BYTES_MAX (16u << 20)
#define TQ_OUTSTANDING_MAX 1024u        /* requests of one session to one peer */
#define TQ_INLINE_BYTES_MAX (64u << 10) /* payload that travels inside a control message */

/* Element types. Numbers travel on the wire: never changed or reused. X(name, number, bytes). */
#define TQ_DTYPE_TABLE(X)                                                                          \
    X(NONE, 0, 0) /* not a tensor */                                                               \
    X(BOOL, 1, 1)                                                                                  \
    X(U8, 2, 1)                                                                                    \
    X(I8, 3, 1)                                                                                    \
    X(U16, 4, 2)                                                                                   \
    X(I16, 5, 2)                                                                                   \
    X(U32, 6, 4)                                                                                   \
    X(I32, 7, 4)                                                                                   \
    X(U64, 8, 8)                                                                                   \
    X(I64, 9, 8)                                                                                   \
    X(F16, 10, 2)                                                                                  \
    X(BF16, 11, 2)                                                                                 \
    X(F32, 12, 4)                                                                                  \
    X(F64, 13, 8)                                                                                  \
    X(C32, 14, 4)                                                                                  \
    X(C64, 15, 8)                                                                                  \
    X(C128, 16, 16)                                                                                \
    X(F8_E4M3FN, 17, 1)                                                                            \
    X(F8_E5M2, 18, 1)                                                                              \
    X(F8_E4M3FNUZ, 19, 1)                                                                          \
    X(F8_E5M2FNUZ, 20, 1)                                                                          \
    X(F8_E8M0FNU, 21, 1)

typedef enum tq_dtype {
#define TQ_DTYPE_ENUM_(name, number, bytes) TQ_DTYPE_##name = number,
    TQ_DTYPE_TABLE(TQ_DTYPE_ENUM_)
#undef TQ_DTYPE_ENUM_
} tq_dtype_t;

/* Bytes of one element; 0 for TQ_DTYPE_NONE and for numbers that are not in the table. */
TQ_API size_t tq_dtype_size(tq_dtype_t dtype);
/* "f32", or "?" for a number that is not in the table. Static memory. */
TQ_API const char *tq_dtype_name(tq_dtype_t dtype);

/* How the bytes of one value are to be read. tq moves them all alike and interprets none; servers
 * never decode MSGPACK or PICKLE values. Numbers travel on the wire. */
typedef enum tq_encoding {
    TQ_ENC_TENSOR = 1,  /* row-major elements, little-endian, of dtype and shape */
    TQ_ENC_BYTES = 2,   /* as they are */
    TQ_ENC_TEXT = 3,    /* UTF-8 */
    TQ_ENC_MSGPACK = 4, /* one msgpack value */
    TQ_ENC_PICKLE = 5,  /* a Python object with no msgpack form */
} tq_encoding_t;

/* One value's descriptor: it travels and is stored with the value, so that bytes are never read
 * as another writer's type. For TENSOR, len == product(shape) * element size (checked). For the
 * others dtype is NONE, ndim 0 and len any. */
typedef struct tq_desc {
    uint8_t encoding; /* tq_encoding_t */
    uint8_t dtype;    /* tq_dtype_t */
    uint8_t ndim;     /* 0 is a scalar */
    uint64_t len;     /* bytes */
    uint64_t shape[TQ_NDIM_MAX];
} tq_desc_t;

/* A list of strings, or of any byte strings: item i is bytes[offsets[i] .. offsets[i+1]).
 * cnt 0: offsets may be NULL. Items are not terminated. */
typedef struct tq_strs {
    uint32_t cnt;
    const uint32_t *offsets; /* cnt + 1, ascending, offsets[0] == 0 */
    const char *bytes;
} tq_strs_t;

/* How the rows of one column lie in memory. */
typedef enum tq_layout {
    TQ_LAYOUT_UNIFORM = 1, /* one descriptor; row r at data + r * row_stride */
    TQ_LAYOUT_RAGGED = 2,  /* tensors equal but for shape[0]; rows packed one after another:
                              row r is data[offsets[r] * unit_bytes .. offsets[r+1] * unit_bytes) */
    TQ_LAYOUT_EACH = 3,    /* a descriptor and a pointer for each row */
} tq_layout_t;

typedef struct tq_cell {
    const void *data; /* may be NULL when desc.len == 0 */
    tq_desc_t desc;
} tq_cell_t;

/* One field's values for the n rows of a put, in the order of the rows. Memory is the caller's,
 * only read, and must stay unchanged until the op has completed. */
typedef struct tq_column {
    const char *field; /* terminated name, 1 to TQ_NAME_MAX bytes */
    tq_layout_t layout;
    tq_desc_t desc;     /* UNIFORM: of every row. RAGGED: shape[0] and len ignored. EACH: ignored */
    const void *data;   /* UNIFORM, RAGGED */
    int64_t row_stride; /* UNIFORM: bytes from row to row; 0 repeats one value */
    const int64_t *offsets; /* RAGGED: n + 1, ascending, in units of unit_bytes */
    uint64_t unit_bytes;    /* RAGGED: bytes of one step of shape[0]; 0 only for empty rows */
    const tq_cell_t *cells; /* EACH: n */
} tq_column_t;

/* Memory that a get filled, counted. Any thread. The last unref gives it back to the client's
 * receive-buffer cache (or to the system, when the client is closed). */
typedef struct tq_buffer tq_buffer_t;
TQ_API void tq_buffer_ref(tq_buffer_t *buffer);
TQ_API void tq_buffer_unref(tq_buffer_t *buffer); /* NULL is fine */
TQ_API void *tq_buffer_data(const tq_buffer_t *buffer);
TQ_API size_t tq_buffer_size(const tq_buffer_t *buffer);

/* One field's values as a get returns them, in the order of the rows asked for. */
typedef struct tq_column_out {
    const char *field;      /* terminated */
    tq_layout_t layout;     /* UNIFORM when all descriptors are equal (row_stride == desc.len);
                               RAGGED when they differ in shape[0] only; else EACH */
    tq_desc_t desc;         /* UNIFORM, RAGGED (shape[0] and len are 0) */
    const tq_desc_t *descs; /* EACH: n */
    const int64_t *offsets; /* n + 1 byte offsets into the buffer; row r starts at offsets[r].
                               EACH: starts are aligned to 16 and row r has descs[r].len bytes */
    tq_buffer_t *buffer;    /* aligned to 64; NULL when the column has no bytes. The op holds one
                               reference; take your own to keep it longer */
} tq_column_out_t;

/* What is known of a field in a partition: a hint for planning, never used to read bytes. */
typedef struct tq_schema {
    uint8_t encoding; /* tq_encoding_t; 0: nothing was written yet */
    uint8_t dtype;
    uint8_t is_nested; /* shapes differ between rows: ndim and shape say nothing */
    uint8_t ndim;
    uint64_t shape[TQ_NDIM_MAX]; /* of one row */
} tq_schema_t;

#ifdef __cplusplus
}
#endif
#endif
