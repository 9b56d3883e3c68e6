/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about the store as a whole: stat, clear, unit, doctor. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "tq/cli.h"

int cli_stat(cli_t *cli)
{
    tq_op_t *op;
    tq_error_t err;
    if (cli->words_cnt > 0)
        return cli_usage(cli, "takes no arguments");
    int code = cli_connect(cli);
    if (code != CLI_OK)
        return code;
    tq_status_t rc = tq_stat_submit(cli->client, NULL, cli->timeout_ms, NULL, &op, &err);
    code = cli_finish(cli, rc, &err, &op);
    if (code == CLI_OK) {
        if (cli->is_metrics)
            cli_print_metrics(tq_op_result(op)->json);
        else
            puts(tq_op_result(op)->json);
        tq_op_free(op);
    }
    return code;
}

int cli_clear(cli_t *cli)
{
    tq_op_t *op;
    tq_error_t err;
    if (cli->words_cnt < 1)
        return cli_usage(cli, "expected PARTITION, and KEY... or --all");
    if ((cli->words_cnt == 1) != cli->is_all)
        return cli_usage(cli, "expected either KEY... or --all");
    int code = cli_connect(cli);
    if (code != CLI_OK)
        return code;
    tq_strs_t keys = cli_strs(&cli->words[1], cli->words_cnt - 1);
    tq_clear_args_t args = {.partition = cli->words[0],
                            .rows_cnt = keys.cnt,
                            .keys = cli->is_all ? NULL : &keys,
                            .is_all = cli->is_all,
                            .timeout_ms = cli->timeout_ms};
    tq_status_t rc = tq_clear_submit(cli->client, NULL, &args, NULL, &op, &err);
    code = cli_finish(cli, rc, &err, &op);
    if (code == CLI_OK) {
        printf(cli->is_json ? "{\"cleared\":%" PRIu64 "}\n" : "%" PRIu64 " rows cleared\n",
               tq_op_result(op)->count);
        tq_op_free(op);
    }
    cli_strs_free(&keys);
    return code;
}

int cli_unit(cli_t *cli)
{
    tq_op_t *op;
    tq_error_t err;
    char *end = NULL;
    unsigned long id = 0;
    if (cli->words_cnt == 2)
        id = strtoul(cli->words[1], &end, 10);
    if (cli->words_cnt != 2 || strcmp(cli->words[0], "forget") != 0 || *end != 0 || id == 0 ||
        id > UINT32_MAX)
        return cli_usage(cli, "expected forget and a unit's number");
    int code = cli_connect(cli);
    if (code != CLI_OK)
        return code;
    tq_status_t rc =
        tq_unit_forget_submit(cli->client, NULL, (uint32_t)id, cli->timeout_ms, NULL, &op, &err);
    code = cli_finish(cli, rc, &err, &op);
    if (code == CLI_OK) {
        printf(cli->is_json ? "{\"forgotten\":%lu}\n" : "unit %lu is forgotten\n", id);
        tq_op_free(op);
    }
    return code;
}

/* ---- doctor ---------------------------------------------------------------------------------- */

typedef struct findings {
    cli_table_t *table; /* NULL: JSON */
    unsigned cnt;
    unsigned bad;
} findings_t;

static void find(findings_t *f, const char *what, bool is_good, const char *text)
{
    f->bad += !is_good;
    if (f->table) {
        cli_table_cell(f->table, "%s", is_good ? "ok" : "LOOK");
        cli_table_cell(f->table, "%s", what);
        cli_table_cell(f->table, "%s", text);
        cli_table_end_row(f->table);
    } else {
        printf("%s{\"check\":", f->cnt ? ",\n" : "[");
        cli_json_string(what, strlen(what));
        printf(",\"ok\":%s,\"text\":", is_good ? "true" : "false");
        cli_json_string(text, strlen(text));
        putchar('}');
    }
    f->cnt++;
}

static void find_limit(findings_t *f, const char *what, int resource, rlim_t wanted,
                       const char *remedy)
{
    struct rlimit limit;
    char text[256];
    if (getrlimit(resource, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, sizeof text, "unlimited");
    else
        snprintf(text, sizeof text, "%llu%s%s", (unsigned long long)limit.rlim_cur,
                 limit.rlim_cur < wanted ? "; " : "", limit.rlim_cur < wanted ? remedy : "");
    find(f, what, limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted, text);
}

static unsigned count(const char *json, const char *what)
{
    unsigned cnt = 0;
    for (const char *at = json; (at = strstr(at, what)); at++)
        cnt++;
    return cnt;
}

static bool is_tcp_loopback(const char *address)
{
    return strncmp(address, "tcp://127.", 10) == 0 || strncmp(address, "tcp://[::1]", 11) == 0;
}

/* Where clients are told to find a unit: its addresses but the one inside its own process. */
static void find_unit(findings_t *f, const char *store, unsigned id, const char *addresses)
{
    char what[32], text[600], one[256];
    size_t len = 0;
    bool is_good = true;

    text[0] = 0;
    for (const char *at = addresses; *at && *at != '"'; at += *at == ',') {
        size_t one_len = strcspn(at, ",\"");
        if (strncmp(at, "inproc://", 9) != 0 && one_len < sizeof one && len + one_len < 300) {
            memcpy(one, at, one_len);
            one[one_len] = 0;
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", len ? "," : "", one);
            if (is_tcp_loopback(one) && strncmp(store, "tcp://", 6) == 0 && !is_tcp_loopback(store))
                is_good = false;
        }
        at += one_len;
    }
    if (len == 0)
        snprintf(text, sizeof text, "reached inside its own process only");
    else if (!is_good)
        snprintf(text + len, sizeof text - len,
                 "; not from other machines: set unit.listen, or unit.advertise");
    snprintf(what, sizeof what, "unit %u", id);
    find(f, what, is_good, text);
}

static void find_units(findings_t *f, const char *store, tq_status_t status, const char *json)
{
    char text[128];
    unsigned id = 0;
    if (status != TQ_OK) {
        find(f, "units", false, "no answer to stat");
        return;
    }
    unsigned lost = count(json, "\"lost\":true"), mute = count(json, "\"error\":");
    if (lost)
        snprintf(text, sizeof text, "%u LOST; see tq stat", lost);
    else if (mute)
        snprintf(text, sizeof text, "%u can't be reached from here; see tq stat", mute);
    else
        snprintf(text, sizeof text, "all answer");
    find(f, "units", lost + mute == 0, text);
    for (const char *at = json; (at = strstr(at, "\"addresses\":\""));)
        find_unit(f, store, ++id, at += strlen("\"addresses\":\""));
}

static void find_store(findings_t *f, cli_t *cli)
{
    tq_error_t err;
    tq_op_t *op;
    char text[TQ_ERROR_TEXT_MAX + 64];
    const char *address = cli->address ? cli->address : getenv("TQ_ADDRESS");
    if (!address) {
        find(f, "store", false, "no address: give --address or set TQ_ADDRESS");
        return;
    }
    tq_status_t rc = cli_open(cli, &err);
    if (rc != TQ_OK) {
        find(f, "store", false, err.text);
        return;
    }
    snprintf(text, sizeof text, "%s, incarnation %016" PRIx64, address,
             tq_client_incarnation(cli->client));
    find(f, "store", true, text);
    rc = tq_stat_submit(cli->client, NULL, cli->timeout_ms, NULL, &op, &err);
    if (rc == TQ_OK) {
        tq_op_wait(op, -1);
        find_units(f, address, tq_op_status(op), tq_op_result(op)->json);
        tq_op_free(op);
    }
}

int cli_doctor(cli_t *cli)
{
    findings_t f = {.table = cli->is_json ? NULL : cli_table_new("\tCHECK\tFINDING")};
    struct statvfs shm;
    char text[256];
    if (cli->words_cnt > 0)
        return cli_usage(cli, "takes no arguments");
    snprintf(text, sizeof text, "tq %s; ways for payload: direct (same process), zmq",
             tq_version());
    find(&f, "version", true, text);
    find_limit(&f, "open files", RLIMIT_NOFILE, 4096,
               "raise it (ulimit -n 65536): each connection takes several");
    find_limit(&f, "locked memory", RLIMIT_MEMLOCK, 0, "");
    if (statvfs("/dev/shm", &shm) == 0) {
        uint64_t bytes = (uint64_t)shm.f_bavail * shm.f_frsize;
        snprintf(text, sizeof text, "%.1f GiB free", (double)bytes / (1u << 30));
        find(&f, "/dev/shm", true, text);
    }
    find_store(&f, cli);
    if (f.table)
        cli_table_print(f.table);
    else
        puts("]");
    return f.bad ? CLI_NO : CLI_OK;
}
