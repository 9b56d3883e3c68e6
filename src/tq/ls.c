/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/cli.h"

static void show_partitions(const cli_t *cli, const tq_result_t *result)
{
    cli_table_t *table = cli->is_json ? NULL : cli_table_new("PARTITION");
    if (cli->is_json)
        putchar('[');
    for (uint32_t i = 0; i < result->names.cnt; i++) {
        size_t len;
        const char *name = cli_strs_at(&result->names, i, &len);
        if (cli->is_json) {
            fputs(i ? "," : "", stdout);
            cli_json_string(name, len);
        } else {
            cli_table_cell_bytes(table, name, len);
            cli_table_end_row(table);
        }
    }
    if (cli->is_json)
        puts("]");
    else
        cli_table_print(table);
}

/* Names of the fields of a row whose status is `wanted`, with `separator` between them. */
static char *fields_of(const tq_result_t *result, uint32_t row, uint8_t wanted, bool is_json)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    bool is_first = true;
    if (!out)
        return NULL;
    for (uint32_t f = 0; f < result->fields.cnt; f++) {
        size_t name_len;
        const char *name = cli_strs_at(&result->fields, f, &name_len);
        if (!result->status || result->status[(size_t)row * result->fields.cnt + f] != wanted)
            continue;
        fputs(is_first ? "" : ",", out);
        is_first = false;
        if (is_json) {
            char *json = tq_json_string(name, name_len);
            fputs(json ? json : "null", out);
            tq_free(json);
        } else {
            fwrite(name, 1, name_len, out);
        }
    }
    fclose(out);
    return text;
}

static void json_row(const cli_t *cli, const tq_result_t *result, uint32_t row)
{
    size_t len;
    const char *key = cli_strs_at(&result->keys, row, &len);
    printf("{\"row\":%" PRIu64 ",\"key\":", result->rows[row]);
    if (result->has_key && result->has_key[row])
        cli_json_string(key, len);
    else
        fputs("null", stdout);
    printf(",\"unit\":%" PRIu32 ",\"tags\":", result->units ? result->units[row] : 0);
    const char *tags = cli_strs_at(&result->tags, row, &len);
    cli_json_value(tags, len);
    if (cli->is_fields || cli->is_stuck) {
        char *have = fields_of(result, row, 1, true), *lack = fields_of(result, row, 0, true);
        printf(",\"fields\":[%s],\"missing\":[%s]", have ? have : "", lack ? lack : "");
        free(have);
        free(lack);
    }
    putchar('}');
}

static void table_row(const cli_t *cli, cli_table_t *table, const tq_result_t *result, uint32_t row)
{
    size_t len;
    const char *key = cli_strs_at(&result->keys, row, &len);
    cli_table_cell(table, "%" PRIu64, result->rows[row]);
    cli_table_cell_bytes(table, key, len);
    cli_table_cell(table, "%" PRIu32, result->units ? result->units[row] : 0);
    if (cli->is_fields || cli->is_stuck) {
        char *shown = fields_of(result, row, cli->is_stuck ? 0 : 1, false);
        cli_table_cell(table, "%s", shown ? shown : "");
        free(shown);
    }
    char *json = NULL;
    const char *tags = cli_strs_at(&result->tags, row, &len);
    if (tq_value_to_json(tags, len, &json, &(tq_error_t){0}) == TQ_OK)
        cli_table_cell(table, "%s", json);
    tq_free(json);
    cli_table_end_row(table);
}

int cli_ls(cli_t *cli)
{
    if (cli->words_cnt > 1)
        return cli_usage(cli, "one PARTITION at a time");
    if (cli->words_cnt == 0 && (cli->is_stuck || cli->is_fields))
        return cli_usage(cli, "--fields and --stuck need a PARTITION");
    int code = cli_connect(cli);
    if (code != CLI_OK)
        return code;
    tq_list_args_t args = {.partition = cli->words_cnt ? cli->words[0] : NULL,
                           .is_keys_only = !cli->is_all && !cli->is_stuck,
                           .is_stuck_only = cli->is_stuck,
                           .want_fields = cli->is_fields || cli->is_stuck,
                           .timeout_ms = cli->timeout_ms};
    tq_op_t *op;
    tq_error_t err;
    tq_status_t rc = tq_list_submit(cli->client, NULL, &args, NULL, &op, &err);
    code = cli_finish(cli, rc, &err, &op);
    if (code != CLI_OK)
        return code;
    const tq_result_t *result = tq_op_result(op);
    if (cli->words_cnt == 0) {
        show_partitions(cli, result);
    } else if (!result->is_known) {
        fprintf(stderr, "tq ls: no partition '%s'\n", cli->words[0]);
        code = CLI_NO;
    } else if (cli->is_json) {
        putchar('[');
        for (uint32_t r = 0; r < result->rows_cnt; r++) {
            fputs(r ? ",\n" : "", stdout);
            json_row(cli, result, r);
        }
        puts("]");
    } else {
        cli_table_t *table = cli_table_new(cli->is_stuck    ? "ROW\tKEY\tUNIT\tMISSING\tTAGS"
                                           : cli->is_fields ? "ROW\tKEY\tUNIT\tFIELDS\tTAGS"
                                                            : "ROW\tKEY\tUNIT\tTAGS");
        for (uint32_t r = 0; r < result->rows_cnt; r++)
            table_row(cli, table, result, r);
        cli_table_print(table);
    }
    tq_op_free(op);
    return code;
}
