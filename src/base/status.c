/* SPDX-License-Identifier: Apache-2.0 */
#include <tq/status.h>

const char *tq_status_name(tq_status_t status)
{
    switch (status) {
#define STATUS_NAME_(name, number, cls, text)                                                      \
    case TQ_##name:                                                                                \
        return #name;
        TQ_STATUS_TABLE(STATUS_NAME_)
#undef STATUS_NAME_
    }
    return "E_?";
}

const char *tq_status_text(tq_status_t status)
{
    switch (status) {
#define STATUS_TEXT_(name, number, cls, text)                                                      \
    case TQ_##name:                                                                                \
        return text;
        TQ_STATUS_TABLE(STATUS_TEXT_)
#undef STATUS_TEXT_
    }
    return "unknown status";
}

tq_status_class_t tq_status_class(tq_status_t status)
{
    switch (status) {
#define STATUS_CLASS_(name, number, cls, text)                                                     \
    case TQ_##name:                                                                                \
        return TQ_CLASS_##cls;
        TQ_STATUS_TABLE(STATUS_CLASS_)
#undef STATUS_CLASS_
    }
    return TQ_CLASS_BUG;
}
