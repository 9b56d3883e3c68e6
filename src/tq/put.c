/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/cli.h"

/* A column of one row, with the memory that it points at. */
typedef struct column {
    char *field;
    void *data;
    tq_cell_t cell;
} column_t;

static tq_dtype_t dtype_of(const char *name, size_t len)
{
    for (int d = TQ_DTYPE_BOOL; d <= TQ_DTYPE_F8_E8M0FNU; d++) {
        const char *known = tq_dtype_name((tq_dtype_t)d);
        if (strlen(known) == len && memcmp(known, name, len) == 0)
            return (tq_dtype_t)d;
    }
    return TQ_DTYPE_NONE;
}

/* "[2,3]", or "" for a scalar. */
static bool parse_shape(const char *text, size_t len, tq_desc_t *desc)
{
    desc->ndim = 0;
    if (len == 0)
        return true;
    if (len < 2 || text[0] != '[' || text[len - 1] != ']')
        return false;
    const char *at = text + 1, *end = text + len - 1;
    while (at < end) {
        char *next;
        if (desc->ndim == TQ_NDIM_MAX || *at < '0' || *at > '9')
            return false;
        desc->shape[desc->ndim++] = strtoull(at, &next, 10);
        if (next != end && *next != ',')
            return false;
        at = next + (next != end);
    }
    return true;
}

/* One element at `at` from its text. False for what is no number of the type. */
static bool parse_element(tq_dtype_t dtype, const char *text, char **end, void *at)
{
    errno = 0;
    switch (dtype) {
    case TQ_DTYPE_F32: {
        float f = strtof(text, end);
        memcpy(at, &f, 4);
        return *end != text;
    }
    case TQ_DTYPE_F64: {
        double f = strtod(text, end);
        memcpy(at, &f, 8);
        return *end != text;
    }
    case TQ_DTYPE_U64: {
        uint64_t u = strtoull(text, end, 10);
        memcpy(at, &u, 8);
        return *end != text && errno == 0 && *text != '-';
    }
    case TQ_DTYPE_BOOL:
    case TQ_DTYPE_U8:
    case TQ_DTYPE_I8:
    case TQ_DTYPE_U16:
    case TQ_DTYPE_I16:
    case TQ_DTYPE_U32:
    case TQ_DTYPE_I32:
    case TQ_DTYPE_I64: {
        int64_t i = strtoll(text, end, 10);
        unsigned bits = 8 * (unsigned)tq_dtype_size(dtype);
        bool is_signed = dtype == TQ_DTYPE_I8 || dtype == TQ_DTYPE_I16 || dtype == TQ_DTYPE_I32 ||
                         dtype == TQ_DTYPE_I64;
        int64_t max = dtype == TQ_DTYPE_BOOL ? 1
                      : bits == 64           ? INT64_MAX
                                             : (INT64_C(1) << (bits - is_signed)) - 1;
        memcpy(at, &i, tq_dtype_size(dtype)); /* little-endian */
        return *end != text && errno == 0 && i <= max && i >= (is_signed ? -max - 1 : 0);
    }
    default:
        return false;
    }
}

static int parse_tensor(cli_t *cli, column_t *column, const char *type, size_t type_len,
                        const char *text)
{
    size_t name_len = strcspn(type, "[=");
    name_len = name_len < type_len ? name_len : type_len;
    tq_desc_t *desc = &column->cell.desc;
    desc->encoding = TQ_ENC_TENSOR;
    desc->dtype = (uint8_t)dtype_of(type, name_len);
    size_t size = tq_dtype_size((tq_dtype_t)desc->dtype);
    if (size == 0)
        return cli_usage(cli, "field %s: no element type '%.*s'", column->field, (int)name_len,
                         type);
    if (!parse_shape(type + name_len, type_len - name_len, desc))
        return cli_usage(cli, "field %s: '%.*s' is no shape such as [2,3]", column->field,
                         (int)(type_len - name_len), type + name_len);
    uint64_t cnt = 1, have = 0;
    for (unsigned i = 0; i < desc->ndim; i++)
        if (__builtin_mul_overflow(cnt, desc->shape[i], &cnt))
            cnt = UINT64_MAX;
    if (cnt > strlen(text)) /* a number takes a character at least */
        return cli_usage(cli, "field %s: fewer numbers than the %" PRIu64 " of its shape",
                         column->field, cnt);
    column->data = calloc(cnt + 1, size);
    if (!column->data)
        return cli_fail(cli, TQ_E_NO_MEMORY, column->field);
    for (const char *at = text; *at;) {
        char *end = NULL;
        if (have == cnt)
            return cli_usage(cli, "field %s: more than the %" PRIu64 " numbers of its shape",
                             column->field, cnt);
        if (!parse_element((tq_dtype_t)desc->dtype, at, &end, (char *)column->data + have * size) ||
            (*end != ',' && *end != 0))
            return cli_usage(cli, "field %s: '%s' is no %s number", column->field, at,
                             tq_dtype_name((tq_dtype_t)desc->dtype));
        have++;
        at = end + (*end == ',');
    }
    if (have != cnt)
        return cli_usage(cli, "field %s: %" PRIu64 " numbers, but its shape has %" PRIu64,
                         column->field, have, cnt);
    desc->len = cnt * size;
    return CLI_OK;
}

static int read_file(cli_t *cli, column_t *column, const char *path)
{
    FILE *file = fopen(path, "re");
    size_t cap = 0, len = 0, got;
    char *data = NULL;
    if (!file)
        return cli_usage(cli, "field %s: cannot read %s: %s", column->field, path, strerror(errno));
    do {
        if (len == cap) {
            cap = cap ? 2 * cap : 65536;
            char *grown = realloc(data, cap);
            if (!grown) {
                free(data);
                fclose(file);
                return cli_fail(cli, TQ_E_NO_MEMORY, path);
            }
            data = grown;
        }
        got = fread(data + len, 1, cap - len, file);
        len += got;
    } while (got > 0);
    fclose(file);
    column->data = data;
    column->cell.desc.encoding = TQ_ENC_BYTES;
    column->cell.desc.len = len;
    return CLI_OK;
}

/* FIELD=TEXT, FIELD=@FILE or FIELD:DTYPE[SHAPE]=NUMBERS. */
static int parse_column(cli_t *cli, const char *word, column_t *column)
{
    const char *equals = strchr(word, '=');
    int code = CLI_OK;
    if (!equals || equals == word)
        return cli_usage(cli, "'%s' is not FIELD=VALUE", word);
    const char *colon = memchr(word, ':', (size_t)(equals - word));
    column->field = strndup(word, (size_t)((colon ? colon : equals) - word));
    if (!column->field)
        return cli_fail(cli, TQ_E_NO_MEMORY, word);
    if (colon)
        code = parse_tensor(cli, column, colon + 1, (size_t)(equals - colon - 1), equals + 1);
    else if (equals[1] == '@')
        code = read_file(cli, column, equals + 2);
    else {
        column->data = strdup(equals + 1);
        if (!column->data)
            return cli_fail(cli, TQ_E_NO_MEMORY, word);
        column->cell.desc.encoding = TQ_ENC_TEXT;
        column->cell.desc.len = strlen(equals + 1);
    }
    column->cell.data = column->data;
    return code;
}

/* --tag NAME=VALUE ... as one map. */
static int parse_tags(cli_t *cli, void **map, size_t *len)
{
    const char *names[CLI_LISTS_MAX] = {0}, *texts[CLI_LISTS_MAX] = {0};
    char *copies[CLI_LISTS_MAX];
    tq_error_t err;
    int code = CLI_OK;
    unsigned cnt = 0;
    for (; cnt < cli->tags_cnt && code == CLI_OK; cnt++) {
        copies[cnt] = strdup(cli->tags[cnt]);
        char *equals = copies[cnt] ? strchr(copies[cnt], '=') : NULL;
        if (!equals) {
            code = cli_usage(cli, "--tag '%s' is not NAME=VALUE", cli->tags[cnt]);
        } else {
            *equals = 0;
            names[cnt] = copies[cnt];
            texts[cnt] = equals + 1;
        }
    }
    if (code == CLI_OK) {
        tq_status_t rc = tq_map_from_texts(names, texts, cnt, map, len, &err);
        if (rc != TQ_OK)
            code = cli_fail(cli, rc, err.text);
    }
    while (cnt > 0)
        free(copies[--cnt]);
    return code;
}

int cli_put(cli_t *cli)
{
    column_t *columns = calloc(CLI_WORDS_MAX, sizeof *columns);
    tq_column_t *args = calloc(CLI_WORDS_MAX, sizeof *args);
    void *map = NULL;
    size_t map_len = 0;
    unsigned cnt = 0;
    int code = columns && args ? CLI_OK : CLI_OTHER;
    if (cli->words_cnt < 2 || (cli->words_cnt == 2 && cli->tags_cnt == 0))
        code = cli_usage(cli, "expected PARTITION KEY and a FIELD=VALUE or --tag");
    for (; code == CLI_OK && cnt + 2 < cli->words_cnt; cnt++) {
        code = parse_column(cli, cli->words[cnt + 2], &columns[cnt]);
        args[cnt] = (tq_column_t){
            .field = columns[cnt].field, .layout = TQ_LAYOUT_EACH, .cells = &columns[cnt].cell};
    }
    if (code == CLI_OK)
        code = parse_tags(cli, &map, &map_len);
    if (code == CLI_OK)
        code = cli_connect(cli);
    if (code == CLI_OK) {
        tq_strs_t key = cli_strs(&cli->words[1], 1);
        uint32_t offsets[2] = {0, (uint32_t)map_len};
        tq_strs_t tags = {1, offsets, map};
        tq_put_args_t put = {.partition = cli->words[0],
                             .rows_cnt = 1,
                             .keys = &key,
                             .columns_cnt = cnt,
                             .columns = args,
                             .tags = cli->tags_cnt ? &tags : NULL,
                             .timeout_ms = cli->timeout_ms};
        tq_op_t *op;
        tq_error_t err;
        tq_status_t rc = tq_put_submit(cli->client, NULL, &put, NULL, &op, &err);
        code = cli_finish(cli, rc, &err, &op);
        if (code == CLI_OK) {
            const tq_result_t *result = tq_op_result(op);
            if (cli->is_json)
                printf("{\"row\":%" PRIu64 "}\n", result->rows[0]);
            else
                printf("row %" PRIu64 "\n", result->rows[0]);
            tq_op_free(op);
        }
        cli_strs_free(&key);
    }
    for (unsigned i = 0; columns && i < CLI_WORDS_MAX; i++) {
        free(columns[i].field);
        free(columns[i].data);
    }
    tq_free(map);
    free(columns);
    free(args);
    return code;
}
