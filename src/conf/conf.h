/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's options: values, where each came from, and the texts made from their table.
 *
 * A value may be set several times; a later set of the same or a stronger source wins. Command line
 * beats environment beats file beats default. Every error names the place, the option, what was
 * expected, and the nearest known name where the name is unknown. One thread.
 */
#ifndef TQI_CONF_CONF_H
#define TQI_CONF_CONF_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum tqi_option {
#define X(id, name, type, default_text, roles, doc) TQI_OPTION_##id,
#include "conf/options.def"
#undef X
    TQI_OPTIONS_CNT
} tqi_option_t;

typedef enum tqi_conf_source {
    TQI_CONF_DEFAULT,
    TQI_CONF_FILE,
    TQI_CONF_ENVIRONMENT,
    TQI_CONF_FLAG,
} tqi_conf_source_t;

typedef struct tqi_conf tqi_conf_t;

/* All at their defaults. E_NO_MEMORY. */
tq_status_t tqi_conf_new(tqi_conf_t **out, tqi_err_t *err);
void tqi_conf_free(tqi_conf_t *conf); /* NULL is fine */

/* Sets one option by its name in the table. `place` is for messages ("tq.yaml:3"). E_CONFIG. */
tq_status_t tqi_conf_set(tqi_conf_t *conf, const char *name, const char *text,
                         tqi_conf_source_t source, const char *place, tqi_err_t *err);

/* Reads a YAML file: mappings of the table's names, scalars, and sequences of scalars for lists.
 * E_CONFIG with file and line. */
tq_status_t tqi_conf_load_file(tqi_conf_t *conf, const char *path, tqi_err_t *err);
/* Reads TQ_<NAME> for each option; other variables that begin with TQ_ are left alone. */
tq_status_t tqi_conf_load_environment(tqi_conf_t *conf, tqi_err_t *err);
/* Takes one command-line argument of the form --name=value, or --name with the value in `next`.
 * *used: 0 it is no option of ours, 1 or 2 arguments were taken. E_CONFIG. */
tq_status_t tqi_conf_load_flag(tqi_conf_t *conf, const char *arg, const char *next, int *used,
                               tqi_err_t *err);

/* Values. A string lives until the option is set again or conf is freed. */
const char *tqi_conf_text(const tqi_conf_t *conf, tqi_option_t option);
uint64_t tqi_conf_number(const tqi_conf_t *conf,
                         tqi_option_t option); /* bytes, ms, count, percent */
tqi_conf_source_t tqi_conf_source(const tqi_conf_t *conf, tqi_option_t option);

/* The options as YAML that tqi_conf_load_file reads, each with where it came from. */
void tqi_conf_print(const tqi_conf_t *conf, FILE *out);
/* The options as help text, and as the table of docs/operations.md. */
void tqi_conf_help(FILE *out);
void tqi_conf_markdown(FILE *out);

#endif
