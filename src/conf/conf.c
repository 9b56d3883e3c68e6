/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/conf.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

typedef enum option_type {
    TYPE_STR,
    TYPE_LIST,
    TYPE_ROLE,
    TYPE_LEVEL,
    TYPE_BYTES,
    TYPE_MS,
    TYPE_COUNT,
    TYPE_PERCENT,
} option_type_t;

typedef struct option_info {
    const char *name;
    option_type_t type;
    const char *default_text;
    const char *roles;
    const char *doc;
} option_info_t;

static const option_info_t infos[TQI_OPTIONS_CNT] = {
#define X(id, name, type, default_text, roles, doc) {name, TYPE_##type, default_text, roles, doc},
#include "conf/options.def"
#undef X
};

static const struct {
    const char *what;  /* in messages */
    const char *shown; /* in help */
} types[] = {
    [TYPE_STR] = {"text", "TEXT"},
    [TYPE_LIST] = {"a list", "A,B"},
    [TYPE_ROLE] = {"store, controller or unit", "ROLE"},
    [TYPE_LEVEL] = {"off, error, warn, info or debug", "LEVEL"},
    [TYPE_BYTES] = {"bytes, such as 64, 4KiB or 2GiB", "BYTES"},
    [TYPE_MS] = {"a time, such as 500ms, 5s or 2m", "TIME"},
    [TYPE_COUNT] = {"a number", "N"},
    [TYPE_PERCENT] = {"a percentage from 0 to 50", "N"},
};

typedef struct value {
    char *text;
    uint64_t number;
    tqi_conf_source_t source;
    char place[128];
} value_t;

struct tqi_conf {
    value_t values[TQI_OPTIONS_CNT];
};

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct suffix {
    const char *text;
    uint64_t factor;
} suffix_t;

static const suffix_t byte_suffixes[] = {
    {"", 1},
    {"B", 1},
    {"K", 1u << 10},
    {"KiB", 1u << 10},
    {"kB", 1000},
    {"M", 1u << 20},
    {"MiB", 1u << 20},
    {"MB", 1000000},
    {"G", 1u << 30},
    {"GiB", 1u << 30},
    {"GB", 1000000000},
    {"T", UINT64_C(1) << 40},
    {"TiB", UINT64_C(1) << 40},
    {"TB", UINT64_C(1000000000000)},
    {NULL, 0},
};
static const suffix_t time_suffixes[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0},
};
static const suffix_t no_suffixes[] = {{"", 1}, {NULL, 0}};

/* Digits, spaces, a suffix of the list; false for anything else, and where it does not fit. */
static bool parse_number(const char *text, const suffix_t *suffixes, uint64_t max, uint64_t *out)
{
    uint64_t n = 0;
    const char *at = text;
    if (!isdigit((unsigned char)*at))
        return false;
    for (; isdigit((unsigned char)*at); at++)
        if (!tqi_u64_mul(n, 10, &n) || !tqi_u64_add(n, (uint64_t)(*at - '0'), &n))
            return false;
    at += strspn(at, " ");
    for (; suffixes->text; suffixes++)
        if (strcmp(at, suffixes->text) == 0)
            return tqi_u64_mul(n, suffixes->factor, out) && *out <= max;
    return false;
}

static bool is_word(const char *text, const char *const *words)
{
    while (*words && strcmp(text, *words) != 0)
        words++;
    return *words != NULL;
}

static bool parse(const option_info_t *info, const char *text, uint64_t *number)
{
    static const char *const roles[] = {"store", "controller", "unit", NULL};
    static const char *const levels[] = {"off", "error", "warn", "info", "debug", NULL};

    *number = 0;
    switch (info->type) {
    case TYPE_STR:
    case TYPE_LIST:
        return true;
    case TYPE_ROLE:
        return is_word(text, roles);
    case TYPE_LEVEL:
        return is_word(text, levels);
    case TYPE_BYTES:
        return parse_number(text, byte_suffixes, INT64_MAX, number);
    case TYPE_MS:
        return parse_number(text, time_suffixes, UINT32_MAX, number);
    case TYPE_COUNT:
        return parse_number(text, no_suffixes, UINT32_MAX, number);
    case TYPE_PERCENT:
        return parse_number(text, no_suffixes, 50, number);
    }
    return false;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Edits to make a into b, up to a few; longer names than the table's are far away anyway. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len >= 64 || b_len >= 64)
        return 64;
    for (unsigned j = 0; j <= b_len; j++)
        row[j] = j;
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= b_len; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_len];
}

static const char *nearest(const char *name)
{
    const char *best = infos[0].name;
    unsigned best_distance = UINT32_MAX;
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        unsigned d = distance(name, infos[i].name);
        /* "capacity" means "unit.capacity" before it means anything else of eight letters. */
        const char *dot = strchr(infos[i].name, '.');
        if (dot && distance(name, dot + 1) < d)
            d = distance(name, dot + 1);
        if (d < best_distance) {
            best_distance = d;
            best = infos[i].name;
        }
    }
    return best;
}

static int find(const char *name)
{
    for (int i = 0; i < TQI_OPTIONS_CNT; i++)
        if (strcmp(infos[i].name, name) == 0)
            return i;
    return -1;
}

/* "unit.capacity" -> "--unit-capacity" or "TQ_UNIT_CAPACITY". */
static void spelled(const char *name, bool is_flag, char *out, size_t len)
{
    size_t at = (size_t)snprintf(out, len, "%s", is_flag ? "--" : "TQ_");
    for (; *name && at + 1 < len; name++) {
        char c = *name;
        if (is_flag)
            out[at++] = c == '.' || c == '_' ? '-' : c;
        else
            out[at++] = c == '.' ? '_' : (char)toupper((unsigned char)c);
    }
    out[at] = 0;
}

/* ---- setting --------------------------------------------------------------------------------- */

tq_status_t tqi_conf_set(tqi_conf_t *conf, const char *name, const char *text,
                         tqi_conf_source_t source, const char *place, tqi_err_t *err)
{
    uint64_t number;
    int at = find(name);
    if (at < 0)
        return tqi_fail(err, TQ_E_CONFIG, "%s: no option '%s'; did you mean '%s'?", place, name,
                        nearest(name));
    if (!parse(&infos[at], text, &number))
        return tqi_fail(err, TQ_E_CONFIG, "%s: %s: '%s' is not %s", place, name, text,
                        types[infos[at].type].what);
    value_t *value = &conf->values[at];
    if (source < value->source)
        return TQ_OK;
    char *copy = strdup(text);
    if (!copy)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for option %s", name);
    free(value->text);
    value->text = copy;
    value->number = number;
    value->source = source;
    snprintf(value->place, sizeof value->place, "%s", place);
    return TQ_OK;
}

tq_status_t tqi_conf_new(tqi_conf_t **out, tqi_err_t *err)
{
    tqi_conf_t *conf = calloc(1, sizeof *conf);
    if (!conf)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for options");
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        tq_status_t rc = tqi_conf_set(conf, infos[i].name, infos[i].default_text, TQI_CONF_DEFAULT,
                                      "default", err);
        if (rc != TQ_OK) {
            tqi_conf_free(conf);
            return rc;
        }
    }
    *out = conf;
    return TQ_OK;
}

void tqi_conf_free(tqi_conf_t *conf)
{
    if (!conf)
        return;
    for (int i = 0; i < TQI_OPTIONS_CNT; i++)
        free(conf->values[i].text);
    free(conf);
}

tq_status_t tqi_conf_load_environment(tqi_conf_t *conf, tqi_err_t *err)
{
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        char variable[80];
        spelled(infos[i].name, false, variable, sizeof variable);
        const char *text = getenv(variable);
        tq_status_t rc =
            text ? tqi_conf_set(conf, infos[i].name, text, TQI_CONF_ENVIRONMENT, variable, err)
                 : TQ_OK;
        if (rc != TQ_OK)
            return rc;
    }
    return TQ_OK;
}

tq_status_t tqi_conf_load_flag(tqi_conf_t *conf, const char *arg, const char *next, int *used,
                               tqi_err_t *err)
{
    size_t len = strcspn(arg, "=");
    *used = 0;
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        char flag[80];
        spelled(infos[i].name, true, flag, sizeof flag);
        if (strlen(flag) != len || strncmp(flag, arg, len) != 0)
            continue;
        const char *text = arg[len] ? arg + len + 1 : next;
        if (!text)
            return tqi_fail(err, TQ_E_CONFIG, "%s needs a value: %s", flag,
                            types[infos[i].type].what);
        *used = arg[len] ? 1 : 2;
        return tqi_conf_set(conf, infos[i].name, text, TQI_CONF_FLAG, flag, err);
    }
    return TQ_OK;
}

const char *tqi_conf_text(const tqi_conf_t *conf, tqi_option_t option)
{
    return conf->values[option].text;
}

uint64_t tqi_conf_number(const tqi_conf_t *conf, tqi_option_t option)
{
    return conf->values[option].number;
}

tqi_conf_source_t tqi_conf_source(const tqi_conf_t *conf, tqi_option_t option)
{
    return conf->values[option].source;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* A YAML scalar in single quotes, where a quote is doubled. */
static void print_scalar(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

void tqi_conf_print(const tqi_conf_t *conf, FILE *out)
{
    const char *section = "";
    size_t section_len = 0;
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        const char *name = infos[i].name, *dot = strchr(name, '.');
        size_t len = dot ? (size_t)(dot - name) : 0;
        if (len > 0 && (len != section_len || strncmp(section, name, len) != 0)) {
            section = name;
            section_len = len;
            fprintf(out, "%.*s:\n", (int)len, name);
        }
        fprintf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : name);
        print_scalar(out, conf->values[i].text);
        fprintf(out, "  # %s\n", conf->values[i].place);
    }
}

void tqi_conf_help(FILE *out)
{
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        char flag[80];
        spelled(infos[i].name, true, flag, sizeof flag);
        fprintf(out, "  %s %s\n      %s", flag, types[infos[i].type].shown, infos[i].doc);
        if (infos[i].default_text[0])
            fprintf(out, " [%s]", infos[i].default_text);
        fputc('\n', out);
    }
}

void tqi_conf_markdown(FILE *out)
{
    fputs("| option | environment | default | for | what |\n| --- | --- | --- | --- | --- |\n",
          out);
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        char variable[80];
        spelled(infos[i].name, false, variable, sizeof variable);
        const char *roles = infos[i].roles, *unit = strchr(roles, 'U');
        fprintf(out, "| `%s` | `%s` | %s%s%s | %s%s%s | %s |\n", infos[i].name, variable,
                infos[i].default_text[0] ? "`" : "", infos[i].default_text,
                infos[i].default_text[0] ? "`" : "", strchr(roles, 'C') ? "controller, " : "",
                unit ? "unit" : "", strchr(roles, 'S') ? (unit ? ", store" : "store") : "",
                infos[i].doc);
    }
}
