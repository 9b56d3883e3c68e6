/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tq/cli.h"

#define SHOWN_ELEMENTS 16 /* of a tensor, and SHOWN_BYTES of a text, in a table */
#define SHOWN_BYTES 80
#define KEYS_SAID 5 /* rows whose missing fields are named */

/* One value of a column. */
typedef struct value {
    tq_desc_t desc;
    const uint8_t *data;
} value_t;

static value_t value_at(const tq_column_out_t *column, uint32_t row)
{
    value_t v = {.desc = column->layout == TQ_LAYOUT_EACH ? column->descs[row] : column->desc};
    uint64_t start = (uint64_t)column->offsets[row];
    if (column->layout == TQ_LAYOUT_RAGGED) {
        uint64_t unit = tq_dtype_size((tq_dtype_t)v.desc.dtype);
        for (unsigned i = 1; i < v.desc.ndim; i++)
            unit *= v.desc.shape[i];
        v.desc.len = (uint64_t)column->offsets[row + 1] - start;
        v.desc.shape[0] = unit ? v.desc.len / unit : 0;
    }
    if (column->buffer)
        v.data = (const uint8_t *)tq_buffer_data(column->buffer) + start;
    return v;
}

static void print_number(FILE *out, double f, bool is_json)
{
    if (is_json && !isfinite(f))
        fputs("null", out);
    else
        fprintf(out, "%.9g", f);
}

/* 16-bit floats, widened by moving their bits. */
static double half_of(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double fraction = h & 1023;
    double f = exponent == 31  ? (fraction ? NAN : INFINITY)
               : exponent == 0 ? ldexp(fraction, -24)
                               : ldexp(1024 + fraction, exponent - 25);
    return h >> 15 ? -f : f;
}

static void print_element(FILE *out, tq_dtype_t dtype, const uint8_t *at, bool is_json)
{
    uint64_t bits = 0;
    size_t size = tq_dtype_size(dtype);
    memcpy(&bits, at, size < 8 ? size : 8);
    unsigned shift = 64 - 8 * (unsigned)(size < 8 ? size : 8);
    switch (dtype) {
    case TQ_DTYPE_BOOL:
        fputs(bits ? "true" : "false", out);
        return;
    case TQ_DTYPE_I8:
    case TQ_DTYPE_I16:
    case TQ_DTYPE_I32:
    case TQ_DTYPE_I64:
        fprintf(out, "%" PRId64, (int64_t)(bits << shift) >> shift);
        return;
    case TQ_DTYPE_F16:
        print_number(out, half_of((uint16_t)bits), is_json);
        return;
    case TQ_DTYPE_BF16:
        bits <<= 16;
        __attribute__((fallthrough));
    case TQ_DTYPE_F32: {
        float f;
        memcpy(&f, &bits, 4);
        print_number(out, (double)f, is_json);
        return;
    }
    case TQ_DTYPE_F64: {
        double f;
        memcpy(&f, &bits, 8);
        print_number(out, f, is_json);
        return;
    }
    case TQ_DTYPE_U8:
    case TQ_DTYPE_U16:
    case TQ_DTYPE_U32:
    case TQ_DTYPE_U64:
        fprintf(out, "%" PRIu64, bits);
        return;
    default:
        fprintf(out, is_json ? "\"0x%" PRIx64 "\"" : "0x%" PRIx64, bits);
    }
}

static void print_shape(FILE *out, const tq_desc_t *desc)
{
    fputc('[', out);
    for (unsigned i = 0; i < desc->ndim; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", desc->shape[i]);
    fputc(']', out);
}

static uint64_t elements_of(const value_t *v)
{
    size_t size = tq_dtype_size((tq_dtype_t)v->desc.dtype);
    return size ? v->desc.len / size : 0;
}

static const char *const encodings[] = {"", "tensor", "bytes", "text", "msgpack", "pickle"};

/* For a table: what it is, and as much of it as a line takes. */
static void show_value(cli_table_t *table, const value_t *v)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return;
    if (v->desc.encoding == TQ_ENC_TENSOR) {
        uint64_t cnt = elements_of(v);
        fputs(tq_dtype_name((tq_dtype_t)v->desc.dtype), out);
        print_shape(out, &v->desc);
        for (uint64_t i = 0; i < cnt && i < SHOWN_ELEMENTS; i++) {
            fputc(' ', out);
            print_element(out, (tq_dtype_t)v->desc.dtype,
                          v->data + i * tq_dtype_size((tq_dtype_t)v->desc.dtype), false);
        }
        fputs(cnt > SHOWN_ELEMENTS ? " ..." : "", out);
    } else if (v->desc.encoding == TQ_ENC_TEXT) {
        size_t shown = v->desc.len < SHOWN_BYTES ? v->desc.len : SHOWN_BYTES;
        fwrite(v->data, 1, shown, out);
        fputs(shown < v->desc.len ? "..." : "", out);
    } else if (v->desc.encoding == TQ_ENC_MSGPACK) {
        char *json = NULL;
        if (tq_value_to_json(v->data, v->desc.len, &json, &(tq_error_t){0}) == TQ_OK)
            fprintf(out, "%.*s%s", SHOWN_BYTES, json, strlen(json) > SHOWN_BYTES ? "..." : "");
        tq_free(json);
    } else {
        fprintf(out, "%s, %" PRIu64 " bytes", encodings[v->desc.encoding % 6], v->desc.len);
    }
    fclose(out);
    cli_table_cell_bytes(table, text, len);
    free(text);
}

static void json_value(const value_t *v)
{
    printf("{\"encoding\":\"%s\",", encodings[v->desc.encoding % 6]);
    if (v->desc.encoding == TQ_ENC_TENSOR) {
        printf("\"dtype\":\"%s\",\"shape\":", tq_dtype_name((tq_dtype_t)v->desc.dtype));
        print_shape(stdout, &v->desc);
        fputs(",\"values\":[", stdout);
        for (uint64_t i = 0, cnt = elements_of(v); i < cnt; i++) {
            fputs(i ? "," : "", stdout);
            print_element(stdout, (tq_dtype_t)v->desc.dtype,
                          v->data + i * tq_dtype_size((tq_dtype_t)v->desc.dtype), true);
        }
        fputs("]}", stdout);
        return;
    }
    printf("\"bytes\":%" PRIu64, v->desc.len);
    if (v->desc.encoding == TQ_ENC_TEXT) {
        fputs(",\"value\":", stdout);
        cli_json_string(v->data, v->desc.len);
    } else if (v->desc.encoding == TQ_ENC_MSGPACK) {
        fputs(",\"value\":", stdout);
        cli_json_value(v->data, v->desc.len);
    }
    putchar('}');
}

/* Writes one value to FOLDER/KEY.FIELD. A name that is no file name is refused. */
static int write_value(const cli_t *cli, const char *key, size_t key_len, const char *field,
                       const value_t *v)
{
    char path[4096];
    if (memchr(key, '/', key_len) || strchr(field, '/') || key_len == 0 || key[0] == '.')
        return cli_usage(cli, "-o: key '%.*s', field '%s' make no file name", (int)key_len, key,
                         field);
    snprintf(path, sizeof path, "%s/%.*s.%s", cli->out, (int)key_len, key, field);
    FILE *file = fopen(path, "we");
    bool is_ok = file && (v->desc.len == 0 || fwrite(v->data, v->desc.len, 1, file) == 1);
    if (file && fclose(file) != 0)
        is_ok = false;
    if (!is_ok) {
        fprintf(stderr, "tq get: cannot write %s: %s\n", path, strerror(errno));
        return CLI_OTHER;
    }
    printf("%s\n", path);
    return CLI_OK;
}

static int show(const cli_t *cli, const tq_result_t *result, const tq_strs_t *keys)
{
    int code = CLI_OK;
    cli_table_t *table = NULL;
    if (cli->out && mkdir(cli->out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "tq get: cannot make %s: %s\n", cli->out, strerror(errno));
        return CLI_OTHER;
    }
    if (cli->is_json && !cli->out)
        putchar('{');
    else if (!cli->out)
        table = cli_table_new("KEY\tFIELD\tVALUE");
    for (uint32_t r = 0; r < result->rows_cnt && code == CLI_OK; r++) {
        size_t key_len;
        const char *key = cli_strs_at(keys, r, &key_len);
        if (cli->is_json && !cli->out) {
            fputs(r ? "," : "", stdout);
            cli_json_string(key, key_len);
            fputs(":{", stdout);
        }
        for (uint32_t c = 0; c < result->columns_cnt && code == CLI_OK; c++) {
            const tq_column_out_t *column = &result->columns[c];
            value_t v = value_at(column, r);
            if (cli->out) {
                code = write_value(cli, key, key_len, column->field, &v);
            } else if (cli->is_json) {
                fputs(c ? "," : "", stdout);
                cli_json_string(column->field, strlen(column->field));
                putchar(':');
                json_value(&v);
            } else {
                cli_table_cell_bytes(table, key, key_len);
                cli_table_cell(table, "%s", column->field);
                show_value(table, &v);
                cli_table_end_row(table);
            }
        }
        if (cli->is_json && !cli->out)
            putchar('}');
    }
    if (cli->is_json && !cli->out)
        puts("}");
    else if (table)
        cli_table_print(table);
    return code;
}

/* No field is produced for all of the rows: says what each lacks, of the fields that there are. */
static int say_missing(cli_t *cli, const tq_strs_t *keys)
{
    tq_list_args_t args = {.partition = cli->words[0],
                           .is_keys_only = true,
                           .want_fields = true,
                           .timeout_ms = cli->timeout_ms};
    tq_error_t err;
    tq_op_t *op;
    char *text = NULL;
    size_t len = 0, said_cnt = 0;
    tq_status_t rc = tq_list_submit(cli->client, NULL, &args, NULL, &op, &err);
    int code = cli_finish(cli, rc, &err, &op);
    FILE *out = code == CLI_OK ? open_memstream(&text, &len) : NULL;
    if (!out)
        return code == CLI_OK ? CLI_OTHER : code;
    const tq_result_t *list = tq_op_result(op);
    fputs("no field is produced for ", out);
    fputs(keys->cnt > 1 ? "all of the rows" : "the row", out);
    for (uint32_t r = 0; r < list->rows_cnt && said_cnt < KEYS_SAID; r++) {
        size_t key_len, wanted_len;
        const char *key = cli_strs_at(&list->keys, r, &key_len);
        bool is_wanted = false;
        for (uint32_t k = 0; k < keys->cnt && !is_wanted; k++) {
            const char *wanted = cli_strs_at(keys, k, &wanted_len);
            is_wanted = wanted_len == key_len && memcmp(wanted, key, key_len) == 0;
        }
        if (!is_wanted)
            continue;
        fprintf(out, "; '%.*s' lacks ", (int)key_len, key);
        unsigned cnt = 0;
        for (uint32_t f = 0; f < list->fields.cnt; f++) {
            size_t name_len;
            const char *name = cli_strs_at(&list->fields, f, &name_len);
            if (list->status[(size_t)r * list->fields.cnt + f] == 0)
                fprintf(out, "%s%.*s", cnt++ ? ", " : "", (int)name_len, name);
        }
        if (cnt == 0)
            fputs("any: the partition has none", out);
        said_cnt++;
    }
    fclose(out);
    code = cli_fail(cli, TQ_E_NOT_PRODUCED, text);
    free(text);
    tq_op_free(op);
    return code;
}

int cli_get(cli_t *cli)
{
    if (cli->words_cnt < 2)
        return cli_usage(cli, "expected PARTITION and at least one KEY");
    int code = cli_connect(cli);
    if (code != CLI_OK)
        return code;
    tq_strs_t keys = cli_strs(&cli->words[1], cli->words_cnt - 1);
    tq_strs_t fields = cli_strs(cli->fields, cli->fields_cnt);
    tq_get_args_t args = {.partition = cli->words[0],
                          .keys = &keys,
                          .rows_cnt = keys.cnt,
                          .fields = cli->fields_cnt ? &fields : NULL,
                          .timeout_ms = cli->timeout_ms};
    tq_op_t *op;
    tq_error_t err;
    tq_status_t rc = tq_get_submit(cli->client, NULL, &args, NULL, &op, &err);
    code = cli_finish(cli, rc, &err, &op);
    if (code == CLI_OK) {
        bool is_empty = tq_op_result(op)->columns_cnt == 0;
        if (!is_empty)
            code = show(cli, tq_op_result(op), &keys);
        tq_op_free(op);
        if (is_empty)
            code = say_missing(cli, &keys);
    }
    cli_strs_free(&keys);
    cli_strs_free(&fields);
    return code;
}
