/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A configuration file: libyaml's events, and the path of mapping keys to where we are. A sequence
 * of scalars is one value, joined by commas; nothing else nests.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "conf/conf.h"

#define DEPTH_MAX 8
#define PATH_MAX_BYTES 256
#define VALUE_MAX 4096

typedef struct reader {
    tqi_conf_t *conf;
    const char *file;
    char path[PATH_MAX_BYTES]; /* "unit.capacity" */
    size_t lens[DEPTH_MAX];    /* length of path in each open mapping */
    unsigned depth;            /* open mappings */
    bool has_key;              /* path ends with a key whose value comes next */
    bool has_document;
    bool is_list;
    char list[VALUE_MAX];
} reader_t;

static tq_status_t fail_at(const reader_t *r, const yaml_event_t *event, const char *what,
                           tqi_err_t *err)
{
    return tqi_fail(err, TQ_E_CONFIG, "%s:%zu: %s%s%s", r->file, event->start_mark.line + 1,
                    r->path, r->path[0] ? ": " : "", what);
}

static tq_status_t set(reader_t *r, const yaml_event_t *event, const char *text, tqi_err_t *err)
{
    char place[512];
    snprintf(place, sizeof place, "%s:%zu", r->file, event->start_mark.line + 1);
    tq_status_t rc = tqi_conf_set(r->conf, r->path, text, TQI_CONF_FILE, place, err);
    r->path[r->lens[r->depth - 1]] = 0;
    r->has_key = false;
    return rc;
}

static tq_status_t on_scalar(reader_t *r, const yaml_event_t *event, tqi_err_t *err)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return fail_at(r, event, "a value has a zero byte", err);
    if (r->depth == 0)
        return fail_at(r, event, "expected a mapping of options, such as 'unit:'", err);
    if (r->is_list) {
        size_t at = strlen(r->list);
        if (strchr(text, ','))
            return fail_at(r, event, "an item of a list has a comma", err);
        if (at + strlen(text) + 2 > sizeof r->list)
            return fail_at(r, event, "the list is too long", err);
        snprintf(r->list + at, sizeof r->list - at, "%s%s", at ? "," : "", text);
        return TQ_OK;
    }
    if (r->has_key)
        return set(r, event, text, err);
    size_t at = r->lens[r->depth - 1];
    if (at + strlen(text) + 2 > sizeof r->path)
        return fail_at(r, event, "a name is too long", err);
    snprintf(r->path + at, sizeof r->path - at, "%s%s", at ? "." : "", text);
    r->has_key = true;
    return TQ_OK;
}

static tq_status_t on_event(reader_t *r, const yaml_event_t *event, tqi_err_t *err)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->has_document)
            return fail_at(r, event, "a second document; a file has one document", err);
        r->has_document = true;
        return TQ_OK;
    case YAML_SCALAR_EVENT:
        return on_scalar(r, event, err);
    case YAML_MAPPING_START_EVENT:
        if (r->is_list || r->depth == DEPTH_MAX || (r->depth > 0 && !r->has_key))
            return fail_at(r, event, "a mapping is not expected here", err);
        r->lens[r->depth++] = strlen(r->path);
        r->has_key = false;
        return TQ_OK;
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        r->path[r->depth > 0 ? r->lens[r->depth - 1] : 0] = 0;
        r->has_key = false;
        return TQ_OK;
    case YAML_SEQUENCE_START_EVENT:
        if (r->is_list || !r->has_key)
            return fail_at(r, event, "a list is not expected here", err);
        r->is_list = true;
        r->list[0] = 0;
        return TQ_OK;
    case YAML_SEQUENCE_END_EVENT:
        r->is_list = false;
        return set(r, event, r->list, err);
    case YAML_ALIAS_EVENT:
        return fail_at(r, event, "aliases are not supported", err);
    default:
        return TQ_OK;
    }
}

tq_status_t tqi_conf_load_file(tqi_conf_t *conf, const char *path, tqi_err_t *err)
{
    reader_t r = {.conf = conf, .file = path};
    yaml_parser_t parser;
    FILE *file = fopen(path, "re");
    if (!file)
        return tqi_fail(err, TQ_E_CONFIG, "cannot read %s: %s", path, strerror(errno));
    if (!yaml_parser_initialize(&parser)) {
        fclose(file);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to read %s", path);
    }
    yaml_parser_set_input_file(&parser, file);
    tq_status_t rc = TQ_OK;
    bool is_end = false;
    while (rc == TQ_OK && !is_end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = tqi_fail(err, TQ_E_CONFIG, "%s:%zu: not YAML: %s", path,
                          parser.problem_mark.line + 1, parser.problem ? parser.problem : "?");
            break;
        }
        rc = on_event(&r, &event, err);
        is_end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    fclose(file);
    return rc;
}
