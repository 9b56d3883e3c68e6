/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands share: arguments, the client, and output as a table or as JSON.
 *
 * Exit codes, by class of error (docs/operations.md):
 *   0 done   1 the answer is no (no such key, partition, row; nothing stuck is 0)   2 bad usage
 *   3 the store can't be reached, or went away   4 not now: full, busy, time is over   5 other
 */
#ifndef TQ_CLI_H
#define TQ_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <tq/tq.h>
#include <tq/value.h>

typedef enum cli_exit {
    CLI_OK = 0,
    CLI_NO = 1,
    CLI_USAGE = 2,
    CLI_UNREACHABLE = 3,
    CLI_NOT_NOW = 4,
    CLI_OTHER = 5,
} cli_exit_t;

#define CLI_WORDS_MAX 1024
#define CLI_LISTS_MAX 256

typedef struct cli {
    const char *command;
    const char *address;    /* NULL: TQ_ADDRESS */
    const char *server_key; /* file with it; NULL: TQ_SERVER_KEY_FILE, or no CURVE */
    uint32_t timeout_ms;
    bool is_json;
    bool is_all;
    bool is_stuck;
    bool is_fields;
    bool is_metrics;                  /* stat */
    const char *out;                  /* get -o */
    const char *words[CLI_WORDS_MAX]; /* what is no option */
    unsigned words_cnt;
    const char *tags[CLI_LISTS_MAX]; /* --tag NAME=VALUE */
    unsigned tags_cnt;
    const char *fields[CLI_LISTS_MAX]; /* --field NAME */
    unsigned fields_cnt;
    tq_client_t *client; /* once connected */
} cli_t;

typedef int (*cli_command_t)(cli_t *cli);

int cli_put(cli_t *cli);
int cli_get(cli_t *cli);
int cli_ls(cli_t *cli);
int cli_stat(cli_t *cli);
int cli_clear(cli_t *cli);
int cli_unit(cli_t *cli);
int cli_doctor(cli_t *cli);

/* Says "tq COMMAND: text" on stderr and returns CLI_USAGE. */
int cli_usage(const cli_t *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Says the error and returns the exit code of its class. */
int cli_fail(const cli_t *cli, tq_status_t status, const char *text);

/* Opens cli->client. On failure err has the sentence; nothing is said yet. */
tq_status_t cli_open(cli_t *cli, tq_error_t *err);
/* The same. CLI_OK, or says why not and returns the exit code. */
int cli_connect(cli_t *cli);
/* Waits for a submitted op, unless submitting failed with err. CLI_OK and *op complete with success;
 * else says why and returns the exit code (*op is freed, and NULL). */
int cli_finish(const cli_t *cli, tq_status_t submitted, const tq_error_t *err, tq_op_t **op);

/* Strings as the API takes them; freed by cli_strs_free. */
tq_strs_t cli_strs(const char *const *words, unsigned cnt);
void cli_strs_free(tq_strs_t *strs);
/* Item i: not terminated, *len bytes. */
const char *cli_strs_at(const tq_strs_t *strs, uint32_t i, size_t *len);

/* Prints what stat says as Prometheus text (version 0.0.4). */
void cli_print_metrics(const char *json);

/* ---- tables ---- */

typedef struct cli_table cli_table_t;
/* Column heads, one string with '\t' between them. */
cli_table_t *cli_table_new(const char *heads);
/* Adds a row of cells, in order. Control characters become '?'. */
void cli_table_cell(cli_table_t *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_table_cell_bytes(cli_table_t *table, const void *data, size_t len);
void cli_table_end_row(cli_table_t *table);
/* Prints with aligned columns; on a terminal lines are cut to its width. Frees it. */
void cli_table_print(cli_table_t *table);

/* Prints a JSON string literal. */
void cli_json_string(const void *data, size_t len);
/* Prints a msgpack value as JSON. */
void cli_json_value(const void *data, size_t len);

#endif
