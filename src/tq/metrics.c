/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures of `tq stat` as Prometheus text. Each metric is a line of a table: its name (those that
 * TransferQueue has keep it, so that its dashboards go on working), what it is one of each for, and
 * where its number stands in the JSON. A number that is not there is a series that is left out.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/cli.h"

/* ---- reading JSON that we wrote ourselves ------------------------------------------------------ */

static const char *skip_blank(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Behind the value that begins here. */
static const char *skip_value(const char *at)
{
    unsigned depth = 0;
    do {
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++)
                at += *at == '\\' && at[1];
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        }
        at += *at != 0;
    } while (*at && (depth > 0 || !strchr(",}]", *at)));
    return at;
}

/* The first value of a container, and the one behind `at`; NULL at the end. In an object these are
 * its keys, each of which json_of leads on from. */
static const char *json_first(const char *container)
{
    if (!container || (*container != '{' && *container != '['))
        return NULL;
    container = skip_blank(container + 1);
    return *container && *container != '}' && *container != ']' ? container : NULL;
}

static const char *json_next(const char *at)
{
    at = skip_blank(skip_value(at));
    return *at == ',' ? skip_blank(at + 1) : NULL;
}

/* The value of a key. */
static const char *json_of(const char *key)
{
    const char *at = key;
    for (at++; *at && *at != '"'; at++)
        at += *at == '\\' && at[1];
    at = skip_blank(at + (*at == '"'));
    return skip_blank(at + (*at == ':'));
}

/* "a.b" of an object; NULL where it is not. */
static const char *json_find(const char *object, const char *path)
{
    while (object && *path) {
        size_t len = strcspn(path, ".");
        const char *key = *object == '{' ? json_first(object) : NULL;
        while (key && !(strncmp(key + 1, path, len) == 0 && key[1 + len] == '"'))
            key = json_next(key);
        object = key ? json_of(key) : NULL;
        path += len + (path[len] == '.');
    }
    return object;
}

/* NaN for what is no number. */
static double number_of(const char *value)
{
    char *end;
    if (!value)
        return NAN;
    if (strncmp(value, "true", 4) == 0)
        return 1;
    if (strncmp(value, "false", 5) == 0)
        return 0;
    double number = strtod(value, &end);
    return end == value ? NAN : number;
}

static void print_label_char(unsigned code)
{
    if (code == '\n')
        fputs("\\n", stdout);
    else if (code == '\\' || code == '"')
        printf("\\%c", (int)code);
    else if (code < 0x80)
        putchar((int)code);
    else if (code < 0x800)
        printf("%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 0x3f)));
    else
        printf("%c%c%c", (int)(0xe0 | code >> 12), (int)(0x80 | (code >> 6 & 0x3f)),
               (int)(0x80 | (code & 0x3f)));
}

/* A JSON string as the inside of a label's quotes. */
static void print_label(const char *text)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    for (text++; *text && *text != '"'; text++) {
        const char *simple;
        if (*text != '\\') {
            putchar(*text); /* a byte of UTF-8, as it is */
        } else if (*++text == 'u') {
            char digits[5] = {0};
            memcpy(digits, text + 1, strnlen(text + 1, 4));
            print_label_char((unsigned)strtoul(digits, NULL, 16));
            text += strlen(digits);
        } else {
            simple = strchr(from, *text);
            print_label_char(simple ? (unsigned char)to[simple - from] : (unsigned char)*text);
        }
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum per {
    PER_STORE,     /* the controller's object */
    PER_PARTITION, /* of controller.partitions */
    PER_TASK,      /* of a partition's tasks */
    PER_MEMBER,    /* of controller.units: what the controller knows of a unit */
    PER_UNIT,      /* of units: what the unit says itself */
} per_t;

/* Produced cells over all cells of a partition. */
static double production(const char *partition)
{
    double cells = 0, fields = 0, rows = number_of(json_find(partition, "rows"));
    for (const char *key = json_first(json_find(partition, "produced")); key;
         key = json_next(key)) {
        cells += number_of(json_of(key));
        fields++;
    }
    return rows * fields > 0 ? cells / (rows * fields) : 0;
}

static double utilization(const char *unit)
{
    return number_of(json_find(unit, "used_bytes")) / number_of(json_find(unit, "capacity_bytes"));
}

static double parked(const char *unit)
{
    double cnt = 0;
    for (const char *at = json_first(json_find(unit, "waiters")); at; at = json_next(at))
        cnt += number_of(at);
    return cnt;
}

static double rows_in_use(const char *controller)
{
    double rows = 0;
    for (const char *at = json_first(json_find(controller, "partitions")); at; at = json_next(at))
        rows += number_of(json_find(at, "rows"));
    return rows;
}

static double never(const char *object)
{
    (void)object;
    return 0;
}

static const struct {
    const char *name;
    const char *type;
    per_t per;
    const char *path; /* NULL: made by `make` */
    double factor;
    double (*make)(const char *object);
    const char *labels; /* more of them */
    const char *help;   /* NULL: more series of the metric in front */
} metrics[] = {
    {"tq_controller_uptime_seconds", "gauge", PER_STORE, "store.uptime_ms", 1e-3, NULL, "",
     "Time since this incarnation of the store began."},
    {"tq_controller_sessions", "gauge", PER_STORE, "sessions_cnt", 1, NULL, "",
     "Client sessions alive."},
    {"tq_controller_requests_under_way", "gauge", PER_STORE, "store.requests_under_way", 1, NULL,
     "", "Requests that are not answered yet."},
    {"tq_controller_puts_pending", "gauge", PER_STORE, "store.puts_pending", 1, NULL, "",
     "Puts that were begun and not ended."},
    {"tq_controller_puts_homeless", "gauge", PER_STORE, "store.puts_homeless", 1, NULL, "",
     "Puts that wait for a storage unit to join."},
    {"tq_partitions_total", "gauge", PER_STORE, "partitions_cnt", 1, NULL, "", "Partitions."},
    {"tq_global_index_allocated_total", "gauge", PER_STORE, NULL, 1, rows_in_use, "",
     "Indexes in use by rows."},
    {"tq_global_index_reusable_total", "gauge", PER_STORE, NULL, 1, never, "",
     "Always 0: an index is never used twice."},
    {"tq_partition_samples_total", "gauge", PER_PARTITION, "rows", 1, NULL, "",
     "Rows of the partition that are not cleared."},
    {"tq_partition_production_progress", "gauge", PER_PARTITION, NULL, 1, production, "",
     "Produced cells over all cells of the partition."},
    {"tq_controller_queued_requests", "gauge", PER_PARTITION, "queued", 1, NULL, "",
     "Requests queued behind one that runs on the same partition."},
    {"tq_partition_consumption_progress", "gauge", PER_TASK, "consumed", 1, NULL, "",
     "Rows that the task has consumed over all rows of the partition."},
    {"tq_controller_waiters", "gauge", PER_TASK, "waiters", 1, NULL, "",
     "Fetches that wait for rows."},
    {"tq_storage_unit_lost", "gauge", PER_MEMBER, "lost", 1, NULL, "",
     "1 when the controller has not heard the unit for too long."},
    {"tq_storage_capacity_total", "gauge", PER_MEMBER, "capacity_bytes", 1, NULL, "",
     "Bytes that the unit may hold."},
    {"tq_storage_active_keys_total", "gauge", PER_UNIT, "cells_published", 1, NULL, "",
     "Values (cells) held."},
    {"tq_storage_utilization_ratio", "gauge", PER_UNIT, NULL, 1, utilization, "",
     "Bytes held over capacity."},
    {"tq_storage_zombie_bytes", "gauge", PER_UNIT, "zombie_bytes", 1, NULL, "",
     "Bytes of cleared or replaced values that readers still pin."},
    {"tq_storage_parked_prepares", "gauge", PER_UNIT, NULL, 1, parked, "",
     "Puts that wait for space."},
    {"tq_storage_ssd_offload_enabled", "gauge", PER_UNIT, NULL, 1, never, "",
     "1 when the unit offloads to an SSD."},
    {"tq_storage_requests_arrived", "gauge", PER_UNIT, "messages", 1, NULL, "",
     "Messages that reached the unit."},
    {"tq_storage_payload_transfers_total", "counter", PER_UNIT, "puts", 1, NULL,
     ",direction=\"put\"", "Transfers that were granted."},
    {"tq_storage_payload_transfers_total", "counter", PER_UNIT, "gets", 1, NULL,
     ",direction=\"get\"", NULL},
    {"tq_storage_payload_bytes_total", "counter", PER_UNIT, "put_bytes", 1, NULL,
     ",direction=\"put\"", "Payload bytes of transfers."},
    {"tq_storage_payload_bytes_total", "counter", PER_UNIT, "get_bytes", 1, NULL,
     ",direction=\"get\"", NULL},
    {"tq_storage_payload_expired_prepares_total", "counter", PER_UNIT, "transfers.expired", 1, NULL,
     "", "Transfers whose lease ran out."},
};

/* ---- writing --------------------------------------------------------------------------------- */

static void print_head(const char *name, const char *type, const char *help)
{
    printf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_number(double value)
{
    if (value == floor(value) && fabs(value) < 9e15)
        printf(" %.0f\n", value);
    else
        printf(" %.9g\n", value);
}

static double value_of(size_t m, const char *object)
{
    return metrics[m].make ? metrics[m].make(object)
                           : metrics[m].factor * number_of(json_find(object, metrics[m].path));
}

/* Units: id is the member that has theirs. */
static void print_units(size_t m, const char *list, const char *id)
{
    for (const char *at = json_first(list); at; at = json_next(at)) {
        double number = number_of(json_find(at, id)), value = value_of(m, at);
        /* A unit that did not answer has no figures. */
        if (isnan(number) || isnan(value))
            continue;
        printf("%s{storage_unit_id=\"%.0f\"%s}", metrics[m].name, number, metrics[m].labels);
        print_number(value);
    }
}

static void print_tasks(size_t m, const char *partition, const char *name)
{
    double rows = number_of(json_find(partition, "rows"));
    for (const char *key = json_first(json_find(partition, "tasks")); key; key = json_next(key)) {
        double value = value_of(m, json_of(key));
        if (strcmp(metrics[m].path, "consumed") == 0)
            value = rows > 0 ? value / rows : 0;
        printf("%s{partition_id=\"", metrics[m].name);
        print_label(name);
        fputs("\",task_name=\"", stdout);
        print_label(key);
        fputs("\"}", stdout);
        print_number(value);
    }
}

static void print_partitions(size_t m, const char *controller)
{
    for (const char *at = json_first(json_find(controller, "partitions")); at; at = json_next(at)) {
        const char *name = json_find(at, "name");
        if (!name || *name != '"')
            continue;
        if (metrics[m].per == PER_TASK) {
            print_tasks(m, at, name);
            continue;
        }
        printf("%s{partition_id=\"", metrics[m].name);
        print_label(name);
        fputs("\"}", stdout);
        print_number(value_of(m, at));
    }
}

void cli_print_metrics(const char *json)
{
    const char *controller = json_find(json, "controller");
    for (size_t m = 0; m < sizeof metrics / sizeof metrics[0]; m++) {
        if (metrics[m].help)
            print_head(metrics[m].name, metrics[m].type, metrics[m].help);
        switch (metrics[m].per) {
        case PER_STORE:
            fputs(metrics[m].name, stdout);
            print_number(value_of(m, controller));
            break;
        case PER_PARTITION:
        case PER_TASK:
            print_partitions(m, controller);
            break;
        case PER_MEMBER:
            print_units(m, json_find(controller, "units"), "id");
            break;
        case PER_UNIT:
            print_units(m, json_find(json, "units"), "unit_id");
            break;
        }
    }
    for (const char *key = json_first(json_find(controller, "counters")); key;
         key = json_next(key)) {
        int len = (int)strcspn(key + 1, "\"");
        printf("# TYPE tq_controller_%.*s_total counter\ntq_controller_%.*s_total", len, key + 1,
               len, key + 1);
        print_number(number_of(json_of(key)));
    }
}
