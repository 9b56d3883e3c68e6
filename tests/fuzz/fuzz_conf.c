/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's options: a file of YAML; or, by the first byte, variables of the environment (2) or
 * arguments (3), separated by zero bytes. What was taken is printed as YAML that says the same.
 */
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf/conf.h"

static const char *file_of(int *fd, const uint8_t *data, size_t len)
{
    static char path[64];
    if (*fd < 0)
        *fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (ftruncate(*fd, 0) != 0 || pwrite(*fd, data, len, 0) != (ssize_t)len)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    return path;
}

static tqi_conf_t *conf_new(void)
{
    tqi_conf_t *conf;
    tqi_err_t err;
    if (tqi_conf_new(&conf, &err) != TQ_OK)
        abort();
    return conf;
}

static tq_status_t load_variables(tqi_conf_t *conf, char *text, size_t len, tqi_err_t *err)
{
    static char *names[64];
    size_t cnt = 0;
    for (size_t at = 0; at < len && cnt < 64; at += strlen(text + at) + 1) {
        char *equals = strchr(text + at, '=');
        if (strncmp(text + at, "TQ_", 3) != 0 || !equals)
            continue;
        *equals = 0;
        if (setenv(text + at, equals + 1, 1) == 0)
            names[cnt++] = text + at;
        *equals = '=';
    }
    tq_status_t rc = tqi_conf_load_environment(conf, err);
    while (cnt > 0) {
        char *name = names[--cnt], *equals = strchr(name, '=');
        if (equals)
            *equals = 0;
        unsetenv(name);
    }
    return rc;
}

static tq_status_t load_arguments(tqi_conf_t *conf, char *text, size_t len, tqi_err_t *err)
{
    for (size_t at = 0; at < len;) {
        size_t next = at + strlen(text + at) + 1;
        int used = 0;
        tq_status_t rc =
            tqi_conf_load_flag(conf, text + at, next < len ? text + next : NULL, &used, err);
        if (rc != TQ_OK)
            return rc;
        fuzz_require(used >= 0 && used <= (next < len ? 2 : 1), "%d arguments were taken", used);
        at = used == 2 ? next + strlen(text + next) + 1 : next;
    }
    return TQ_OK;
}

/* What --print-config writes, --config reads. Line ends in values are folded by YAML's own rules. */
static void comes_back(const tqi_conf_t *conf)
{
    static int fd = -1;
    char *text = NULL;
    size_t len = 0;
    tqi_err_t err = {0};
    for (int i = 0; i < TQI_OPTIONS_CNT; i++)
        for (const char *c = tqi_conf_text(conf, (tqi_option_t)i); *c; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
                return;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        abort();
    tqi_conf_print(conf, out);
    fclose(out);
    tqi_conf_t *back = conf_new();
    tq_status_t rc = tqi_conf_load_file(back, file_of(&fd, (uint8_t *)text, len), &err);
    fuzz_require(rc == TQ_OK, "its own YAML is refused: %s", err.text);
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        tqi_option_t option = (tqi_option_t)i;
        fuzz_require(strcmp(tqi_conf_text(conf, option), tqi_conf_text(back, option)) == 0 &&
                         tqi_conf_number(conf, option) == tqi_conf_number(back, option),
                     "'%s' comes back as '%s'", tqi_conf_text(conf, option),
                     tqi_conf_text(back, option));
    }
    tqi_conf_free(back);
    free(text);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static int fd = -1;
    tqi_conf_t *conf = conf_new();
    tqi_err_t err = {0};
    tq_status_t rc;
    if (len > 0 && (data[0] == 2 || data[0] == 3)) {
        char *text = calloc(len + 1, 1);
        memcpy(text, data + 1, len - 1);
        rc = data[0] == 2 ? load_variables(conf, text, len - 1, &err)
                          : load_arguments(conf, text, len - 1, &err);
        free(text);
    } else {
        rc = tqi_conf_load_file(conf, file_of(&fd, data, len), &err);
    }
    if (rc == TQ_OK)
        comes_back(conf);
    else
        fuzz_require(err.text[0] != 0, "a refusal without a sentence");
    tqi_conf_free(conf);
}
