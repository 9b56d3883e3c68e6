/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer_queue._core: the C API of tq as Python objects, and no more than that.
 *
 *   Store   a controller and its units in this process
 *   Client  a session with a store; each of its calls submits one Op
 *   Queue   a completion queue: an event loop watches its fd and takes completed Ops
 *   Op      one operation, then its result
 *   Buffer  memory that a get filled, lent through the buffer protocol
 *
 * Arguments come as exact lists, so that a batch of keys or tags is turned into one tq_strs_t in
 * one pass. Tensors come and go as addresses: nothing here knows torch.
 *
 * Threads: everything runs with the interpreter lock held except what waits (open, close, wait),
 * which releases it; no thread of tq's ever enters Python. Column memory of a put is kept alive by
 * its Op until the C op has completed; if the Op goes first, by the Client until that is closed.
 *
 * Fork: an object remembers the process that made it. In another process its finaliser forgets it,
 * because locks and threads behind it stayed with the parent, and its methods raise E_FORKED.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h> /* the build defines Py_LIMITED_API as 3.11 */

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tq/host.h>
#include <tq/tq.h>

/* How long a waiting thread goes without looking for signals, and how long an interrupted one
 * waits for its op to take the cancel. */
#define WAIT_SLICE_MS 100
#define CANCEL_WAIT_MS 500
#define POLL_MAX 64

/* ---- module state and errors ----------------------------------------------------------------- */

typedef struct core_state {
    PyTypeObject *store_type;
    PyTypeObject *client_type;
    PyTypeObject *queue_type;
    PyTypeObject *op_type;
    PyTypeObject *buffer_type;
    PyObject *error_factory; /* (status, text) -> exception; NULL until set_error_factory */
} core_state_t;

static core_state_t *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

/* Raises the exception that errors.py makes of a status and its sentence. */
static void *raise_status(const core_state_t *state, tq_status_t status, const char *sentence)
{
    PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace");
    if (text == NULL) {
        return NULL;
    }
    if (state->error_factory == NULL) {
        PyErr_SetObject(PyExc_RuntimeError, text);
    } else {
        PyObject *exception = PyObject_CallFunction(state->error_factory, "iO", (int)status, text);
        if (exception != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
            Py_DECREF(exception);
        }
    }
    Py_DECREF(text);
    return NULL;
}

static void *raise_error(const core_state_t *state, tq_status_t status, const tq_error_t *error)
{
    return raise_status(state, status,
                        error->text[0] != '\0' ? error->text : tq_status_text(status));
}

static bool is_foreign(pid_t pid)
{
    return pid != getpid();
}

/* Gives the memory of a heap-type object back; the members are the caller's to release. */
static void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self); /* what the default tp_free does to objects without GC */
    Py_DECREF(type);
}

/* ---- scratch memory: the C form of one call's arguments -------------------------------------- */

typedef struct scratch_block scratch_block_t;
struct scratch_block {
    scratch_block_t *next;
    max_align_t bytes[];
};

typedef struct scratch {
    scratch_block_t *first;
} scratch_t;

/* Zeroed memory that lives until scratch_free; NULL with MemoryError. */
static void *scratch_take(scratch_t *scratch, size_t cnt, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(cnt, size, &bytes) ||
        __builtin_add_overflow(bytes, sizeof(scratch_block_t), &bytes)) {
        PyErr_NoMemory();
        return NULL;
    }
    scratch_block_t *block = calloc(1, bytes);
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    block->next = scratch->first;
    scratch->first = block;
    return block->bytes;
}

static void scratch_free(scratch_t *scratch)
{
    while (scratch->first != NULL) {
        scratch_block_t *block = scratch->first;
        scratch->first = block->next;
        free(block);
    }
}

/* Moves every block of `from` to `to`. */
static void scratch_move(scratch_t *to, scratch_t *from)
{
    scratch_block_t **last = &to->first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = from->first;
    from->first = NULL;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* For "O&": an int of 0 to UINT32_MAX. */
static int u32_arg(PyObject *value, void *out)
{
    unsigned long number = PyLong_AsUnsignedLong(value);
    if (number == (unsigned long)-1 && PyErr_Occurred()) {
        return 0;
    }
    if (number > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "number does not fit in 32 bits");
        return 0;
    }
    *(uint32_t *)out = (uint32_t)number;
    return 1;
}

/* For "O&": an int of 0 to UINT64_MAX. */
static int u64_arg(PyObject *value, void *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        return 0;
    }
    *(uint64_t *)out = number;
    return 1;
}

static bool is_list(PyObject *value, const char *what)
{
    if (PyList_Check(value)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a list or None", what);
    return false;
}

/* The bytes of a str (as UTF-8) or bytes object, owned by the object. */
static const char *bytes_of(PyObject *value, Py_ssize_t *len, const char *what)
{
    if (PyUnicode_Check(value)) {
        return PyUnicode_AsUTF8AndSize(value, len);
    }
    if (PyBytes_Check(value)) {
        char *bytes;
        return PyBytes_AsStringAndSize(value, &bytes, len) == 0 ? bytes : NULL;
    }
    PyErr_Format(PyExc_TypeError, "%s must hold str or bytes", what);
    return NULL;
}

/* A list of str or bytes as *out in scratch memory, NULL for None. -1 with an exception. */
static int strs_arg(scratch_t *scratch, PyObject *list, const char *what, const tq_strs_t **out)
{
    *out = NULL;
    if (list == Py_None) {
        return 0;
    }
    if (!is_list(list, what)) {
        return -1;
    }
    Py_ssize_t cnt = PyList_Size(list);
    size_t total = 0;
    for (Py_ssize_t i = 0; i < cnt; i++) {
        Py_ssize_t len;
        if (bytes_of(PyList_GetItem(list, i), &len, what) == NULL) {
            return -1;
        }
        total += (size_t)len;
    }
    if (total > UINT32_MAX || (size_t)cnt >= UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s: over 4 GiB in one call", what);
        return -1;
    }
    tq_strs_t *strs = scratch_take(scratch, 1, sizeof(*strs));
    uint32_t *offsets = scratch_take(scratch, (size_t)cnt + 1, sizeof(*offsets));
    char *bytes = scratch_take(scratch, total + 1, 1);
    if (strs == NULL || offsets == NULL || bytes == NULL) {
        return -1;
    }
    uint32_t at = 0;
    for (Py_ssize_t i = 0; i < cnt; i++) {
        Py_ssize_t len;
        const char *item = bytes_of(PyList_GetItem(list, i), &len, what);
        memcpy(bytes + at, item, (size_t)len);
        at += (uint32_t)len;
        offsets[i + 1] = at;
    }
    *strs = (tq_strs_t){.cnt = (uint32_t)cnt, .offsets = offsets, .bytes = bytes};
    *out = strs;
    return 0;
}

/* A list of row indexes as *out in scratch memory, NULL for None. -1 with an exception. */
static int rows_arg(scratch_t *scratch, PyObject *list, const tq_row_t **out, uint32_t *cnt_out)
{
    *out = NULL;
    if (list == Py_None) {
        return 0;
    }
    if (!is_list(list, "rows")) {
        return -1;
    }
    Py_ssize_t cnt = PyList_Size(list);
    tq_row_t *rows = scratch_take(scratch, (size_t)cnt, sizeof(*rows));
    if (rows == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < cnt; i++) {
        if (!u64_arg(PyList_GetItem(list, i), &rows[i])) {
            return -1;
        }
    }
    *out = rows;
    *cnt_out = (uint32_t)cnt;
    return 0;
}

/* Fills a tensor descriptor from a dtype number and a shape tuple. -1 with an exception. */
static int desc_arg(int dtype, PyObject *shape, tq_desc_t *desc)
{
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim < 0) {
        return -1;
    }
    if (ndim > TQ_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "a row has %zd dimensions, the limit is %d", ndim,
                     TQ_NDIM_MAX);
        return -1;
    }
    uint64_t len = tq_dtype_size((tq_dtype_t)dtype);
    desc->encoding = TQ_ENC_TENSOR;
    desc->dtype = (uint8_t)dtype;
    desc->ndim = (uint8_t)ndim;
    for (Py_ssize_t d = 0; d < ndim; d++) {
        if (!u64_arg(PyTuple_GetItem(shape, d), &desc->shape[d])) {
            return -1;
        }
        if (__builtin_mul_overflow(len, desc->shape[d], &len)) {
            PyErr_SetString(PyExc_OverflowError, "a row's size overflows");
            return -1;
        }
    }
    desc->len = len;
    return 0;
}

/* One value of an EACH column: str, bytes, (encoding, bytes) or (dtype, shape, address). */
static int cell_arg(PyObject *value, tq_cell_t *cell)
{
    Py_ssize_t len;
    if (PyUnicode_Check(value) || PyBytes_Check(value)) {
        cell->data = bytes_of(value, &len, "cells");
        cell->desc.encoding = PyUnicode_Check(value) ? TQ_ENC_TEXT : TQ_ENC_BYTES;
        cell->desc.len = (uint64_t)len;
        return cell->data != NULL ? 0 : -1;
    }
    if (!PyTuple_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "a cell must be str, bytes or a tuple");
        return -1;
    }
    if (PyTuple_Size(value) == 2) {
        int encoding;
        const char *bytes;
        if (!PyArg_ParseTuple(value, "iy#", &encoding, &bytes, &len)) {
            return -1;
        }
        cell->data = bytes;
        cell->desc.encoding = (uint8_t)encoding;
        cell->desc.len = (uint64_t)len;
        return 0;
    }
    int dtype;
    PyObject *shape;
    uint64_t address;
    if (!PyArg_ParseTuple(value, "iO!O&", &dtype, &PyTuple_Type, &shape, u64_arg, &address)) {
        return -1;
    }
    cell->data = (const void *)(uintptr_t)address;
    return desc_arg(dtype, shape, &cell->desc);
}

/* (field, UNIFORM, dtype, shape, address, row_stride)
 * (field, RAGGED, dtype, inner shape, address, address of offsets, unit_bytes)
 * (field, EACH, cells) */
static int column_arg(scratch_t *scratch, PyObject *spec, uint32_t rows_cnt, tq_column_t *column)
{
    if (!PyTuple_Check(spec) || PyTuple_Size(spec) < 3) {
        PyErr_SetString(PyExc_TypeError, "a column must be a tuple of 3 or more");
        return -1;
    }
    column->layout = (tq_layout_t)PyLong_AsLong(PyTuple_GetItem(spec, 1));
    int layout, dtype;
    PyObject *shape;
    uint64_t address, offsets;
    switch (column->layout) {
    case TQ_LAYOUT_UNIFORM: {
        long long row_stride;
        if (!PyArg_ParseTuple(spec, "siiO!O&L", &column->field, &layout, &dtype, &PyTuple_Type,
                              &shape, u64_arg, &address, &row_stride)) {
            return -1;
        }
        column->data = (const void *)(uintptr_t)address;
        column->row_stride = row_stride;
        return desc_arg(dtype, shape, &column->desc);
    }
    case TQ_LAYOUT_RAGGED:
        if (!PyArg_ParseTuple(spec, "siiO!O&O&O&", &column->field, &layout, &dtype, &PyTuple_Type,
                              &shape, u64_arg, &address, u64_arg, &offsets, u64_arg,
                              &column->unit_bytes)) {
            return -1;
        }
        column->data = (const void *)(uintptr_t)address;
        column->offsets = (const int64_t *)(uintptr_t)offsets;
        return desc_arg(dtype, shape, &column->desc);
    case TQ_LAYOUT_EACH: {
        PyObject *cells;
        if (!PyArg_ParseTuple(spec, "siO!", &column->field, &layout, &PyList_Type, &cells)) {
            return -1;
        }
        if (PyList_Size(cells) != (Py_ssize_t)rows_cnt) {
            PyErr_Format(PyExc_ValueError, "field '%s' has %zd values for %u rows", column->field,
                         PyList_Size(cells), rows_cnt);
            return -1;
        }
        tq_cell_t *array = scratch_take(scratch, rows_cnt, sizeof(*array));
        if (array == NULL) {
            return -1;
        }
        for (uint32_t r = 0; r < rows_cnt; r++) {
            if (cell_arg(PyList_GetItem(cells, (Py_ssize_t)r), &array[r]) < 0) {
                return -1;
            }
        }
        column->cells = array;
        return 0;
    }
    default:
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "unknown column layout");
        }
        return -1;
    }
}

static int columns_arg(scratch_t *scratch, PyObject *list, uint32_t rows_cnt,
                       const tq_column_t **out, uint32_t *cnt_out)
{
    *out = NULL;
    *cnt_out = 0;
    if (list == Py_None) {
        return 0;
    }
    if (!is_list(list, "columns")) {
        return -1;
    }
    Py_ssize_t cnt = PyList_Size(list);
    tq_column_t *columns = scratch_take(scratch, (size_t)cnt, sizeof(*columns));
    if (columns == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < cnt; i++) {
        if (column_arg(scratch, PyList_GetItem(list, i), rows_cnt, &columns[i]) < 0) {
            return -1;
        }
    }
    *out = columns;
    *cnt_out = (uint32_t)cnt;
    return 0;
}

/* ---- Buffer ---------------------------------------------------------------------------------- */

typedef struct buffer {
    PyObject_HEAD tq_buffer_t *buffer;
    pid_t pid;
} buffer_t;

/* A new reference to `buffer` as an object; None for NULL. */
static PyObject *buffer_object(const core_state_t *state, tq_buffer_t *buffer)
{
    if (buffer == NULL) {
        return Py_NewRef(Py_None);
    }
    buffer_t *self = (buffer_t *)PyType_GenericAlloc(state->buffer_type, 0);
    if (self != NULL) {
        tq_buffer_ref(buffer);
        self->buffer = buffer;
        self->pid = getpid();
    }
    return (PyObject *)self;
}

static void buffer_dealloc(PyObject *object)
{
    buffer_t *self = (buffer_t *)object;
    if (!is_foreign(self->pid)) {
        tq_buffer_unref(self->buffer);
    }
    object_free(object);
}

static int buffer_get(PyObject *object, Py_buffer *view, int flags)
{
    buffer_t *self = (buffer_t *)object;
    return PyBuffer_FillInfo(view, object, tq_buffer_data(self->buffer),
                             (Py_ssize_t)tq_buffer_size(self->buffer), 0, flags);
}

/* ---- Client (its calls are further down) ----------------------------------------------------- */

typedef struct queue queue_t;

typedef struct client {
    PyObject_HEAD tq_client_t *client; /* NULL once closed */
    queue_t *queues;                   /* open queues, linked; closed before the client is */
    PyObject *orphans;                 /* list: column memory of ops that outlived their objects */
    scratch_t orphaned;
    pid_t pid;
} client_t;

/* The client's handle if it can be used here and now; else NULL with the exception. */
static tq_client_t *client_use(client_t *self)
{
    if (is_foreign(self->pid)) {
        return raise_status(state_of((PyObject *)self), TQ_E_FORKED,
                            "the client belongs to the parent process");
    }
    if (self->client == NULL) {
        return raise_status(state_of((PyObject *)self), TQ_E_CLOSED, "the client is closed");
    }
    return self->client;
}

/* ---- Op -------------------------------------------------------------------------------------- */

typedef struct op {
    PyObject_HEAD client_t *client; /* owned */
    tq_op_t *op;                    /* NULL before submit, and once its queue was closed under it */
    PyObject *keep;                 /* owned: what the column memory belongs to */
    scratch_t scratch;
    pid_t pid;
    bool is_completed;
} op_t;

static op_t *op_new(client_t *client)
{
    op_t *self = (op_t *)PyType_GenericAlloc(state_of((PyObject *)client)->op_type, 0);
    if (self != NULL) {
        self->client = (client_t *)Py_NewRef((PyObject *)client);
        self->pid = client->pid;
    }
    return self;
}

static void op_complete(op_t *self)
{
    self->is_completed = true;
    Py_CLEAR(self->keep);
    scratch_free(&self->scratch);
}

/* The C op is on its own from here: its column memory stays until the client is closed. */
static void op_orphan(op_t *self)
{
    client_t *client = self->client;
    scratch_move(&client->orphaned, &self->scratch);
    if (self->keep != NULL && PyList_Append(client->orphans, self->keep) < 0) {
        PyErr_Clear();
        Py_INCREF(self->keep); /* rather lost than freed under a copy */
    }
    Py_CLEAR(self->keep);
    self->op = NULL;
}

static void op_dealloc(PyObject *object)
{
    op_t *self = (op_t *)object;
    if (self->op != NULL && !is_foreign(self->pid)) {
        tq_op_t *op = self->op;
        if (!self->is_completed) {
            op_orphan(self);
        }
        tq_op_free(op);
    }
    Py_CLEAR(self->keep);
    scratch_free(&self->scratch);
    Py_CLEAR(self->client);
    object_free(object);
}

/* True if the op can be asked anything; else an exception. */
static bool op_use(op_t *self)
{
    if (is_foreign(self->pid)) {
        raise_status(state_of((PyObject *)self), TQ_E_FORKED,
                     "the operation belongs to the parent process");
        return false;
    }
    if (self->op == NULL) {
        raise_status(state_of((PyObject *)self), TQ_E_CLOSED,
                     "the client was closed while the operation was under way");
        return false;
    }
    return true;
}

PyDoc_STRVAR(op_wait_doc,
             "wait()\n\nBlocks until the op has completed, without the interpreter lock. An\n"
             "exception raised by a signal handler (KeyboardInterrupt) cancels the op.");
static PyObject *op_wait(PyObject *object, PyObject *unused)
{
    (void)unused;
    op_t *self = (op_t *)object;
    while (!self->is_completed) {
        if (!op_use(self)) {
            return NULL;
        }
        tq_op_t *op = self->op;
        bool is_done;
        Py_BEGIN_ALLOW_THREADS is_done = tq_op_wait(op, WAIT_SLICE_MS);
        Py_END_ALLOW_THREADS if (is_done)
        {
            op_complete(self);
        }
        else if (PyErr_CheckSignals() < 0)
        {
            Py_BEGIN_ALLOW_THREADS tq_op_cancel(op);
            is_done = tq_op_wait(op, CANCEL_WAIT_MS);
            Py_END_ALLOW_THREADS if (is_done)
            {
                op_complete(self);
            }
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(op_cancel_doc, "cancel()\n\nAsks for cancellation. The op still completes, once.");
static PyObject *op_cancel(PyObject *object, PyObject *unused)
{
    (void)unused;
    op_t *self = (op_t *)object;
    if (self->op != NULL && !self->is_completed && !is_foreign(self->pid)) {
        tq_op_cancel(self->op);
    }
    Py_RETURN_NONE;
}

/* The result of an op that has completed well; else NULL with the op's exception. */
static const tq_result_t *op_answer(op_t *self)
{
    if (!op_use(self)) {
        return NULL;
    }
    if (!self->is_completed) {
        PyErr_SetString(PyExc_RuntimeError, "the op has not completed");
        return NULL;
    }
    tq_status_t status = tq_op_status(self->op);
    if (status != TQ_OK) {
        const char *text = tq_op_error(self->op);
        return raise_status(state_of((PyObject *)self), status,
                            text[0] != '\0' ? text : tq_status_text(status));
    }
    return tq_op_result(self->op);
}

PyDoc_STRVAR(op_check_doc, "check()\n\nRaises the op's error, if it ended with one.");
static PyObject *op_check(PyObject *object, PyObject *unused)
{
    (void)unused;
    return op_answer((op_t *)object) != NULL ? Py_NewRef(Py_None) : NULL;
}

static PyObject *op_is_completed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((op_t *)object)->is_completed);
}

static PyObject *op_status(PyObject *object, void *unused)
{
    (void)unused;
    op_t *self = (op_t *)object;
    if (self->op == NULL) {
        return PyLong_FromLong(TQ_E_CLOSED);
    }
    if (!self->is_completed) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(tq_op_status(self->op));
}

static PyObject *list_of_rows(const tq_row_t *rows, uint32_t cnt)
{
    PyObject *list = PyList_New((Py_ssize_t)cnt);
    for (uint32_t i = 0; list != NULL && i < cnt; i++) {
        PyObject *item =
            rows[i] == TQ_ROW_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(rows[i]);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

/* Item i of `strs` as str; None where `has` says that there is none. */
static PyObject *str_item(const tq_strs_t *strs, uint32_t i, const uint8_t *has)
{
    if (has != NULL && !has[i]) {
        return Py_NewRef(Py_None);
    }
    uint32_t at = strs->offsets[i];
    return PyUnicode_DecodeUTF8(strs->bytes + at, (Py_ssize_t)(strs->offsets[i + 1] - at), NULL);
}

static PyObject *list_of_strs(const tq_strs_t *strs, const uint8_t *has)
{
    PyObject *list = PyList_New((Py_ssize_t)strs->cnt);
    for (uint32_t i = 0; list != NULL && i < strs->cnt; i++) {
        PyObject *item = str_item(strs, i, has);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

static PyObject *op_rows(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? list_of_rows(result->rows, result->rows_cnt) : NULL;
}

static PyObject *op_keys(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? list_of_strs(&result->keys, result->has_key) : NULL;
}

static PyObject *op_fields(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? list_of_strs(&result->fields, NULL) : NULL;
}

static PyObject *op_names(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? list_of_strs(&result->names, NULL) : NULL;
}

/* One msgpack map a row, as bytes; a row that never had tags is an empty map like any other. */
static PyObject *op_tags(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    if (result == NULL) {
        return NULL;
    }
    const tq_strs_t *tags = &result->tags;
    PyObject *list = PyList_New((Py_ssize_t)tags->cnt);
    for (uint32_t i = 0; list != NULL && i < tags->cnt; i++) {
        uint32_t at = tags->offsets[i];
        uint32_t len = tags->offsets[i + 1] - at;
        PyObject *item = len > 0 ? PyBytes_FromStringAndSize(tags->bytes + at, (Py_ssize_t)len)
                                 : PyBytes_FromStringAndSize("\x80", 1);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

static PyObject *shape_tuple(const uint64_t *shape, uint8_t from, uint8_t ndim)
{
    Py_ssize_t cnt = ndim > from ? ndim - from : 0;
    PyObject *tuple = PyTuple_New(cnt);
    for (Py_ssize_t d = 0; tuple != NULL && d < cnt; d++) {
        PyObject *item = PyLong_FromUnsignedLongLong(shape[from + d]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SetItem(tuple, d, item);
        }
    }
    return tuple;
}

/* [(encoding, dtype, is_nested, shape)], one a field. */
static PyObject *op_schemas(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    if (result == NULL) {
        return NULL;
    }
    uint32_t cnt = result->schemas != NULL ? result->fields.cnt : 0;
    PyObject *list = PyList_New((Py_ssize_t)cnt);
    for (uint32_t i = 0; list != NULL && i < cnt; i++) {
        const tq_schema_t *schema = &result->schemas[i];
        PyObject *item = Py_BuildValue(
            "(iiON)", schema->encoding, schema->dtype, schema->is_nested ? Py_True : Py_False,
            shape_tuple(schema->shape, 0, schema->is_nested ? 0 : schema->ndim));
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

/* status_bytes(cnt): the first cnt status bytes. The caller knows the shape. */
static PyObject *op_status_bytes(PyObject *object, PyObject *args)
{
    Py_ssize_t cnt;
    if (!PyArg_ParseTuple(args, "n", &cnt)) {
        return NULL;
    }
    const tq_result_t *result = op_answer((op_t *)object);
    if (result == NULL) {
        return NULL;
    }
    if (result->status == NULL) {
        cnt = 0;
    }
    return PyByteArray_FromStringAndSize((const char *)result->status, cnt);
}

static PyObject *op_units(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    if (result == NULL) {
        return NULL;
    }
    uint32_t cnt = result->units != NULL ? result->rows_cnt : 0;
    PyObject *list = PyList_New((Py_ssize_t)cnt);
    for (uint32_t i = 0; list != NULL && i < cnt; i++) {
        PyObject *item = PyLong_FromUnsignedLong(result->units[i]);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

static PyObject *op_count(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? PyLong_FromUnsignedLongLong(result->count) : NULL;
}

static PyObject *op_is_known(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? PyBool_FromLong(result->is_known) : NULL;
}

static PyObject *op_json(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? PyUnicode_FromString(result->json != NULL ? result->json : "{}") : NULL;
}

static PyObject *op_incarnation(PyObject *object, void *unused)
{
    (void)unused;
    const tq_result_t *result = op_answer((op_t *)object);
    return result != NULL ? PyLong_FromUnsignedLongLong(result->incarnation) : NULL;
}

/* ---- columns that a get answers -------------------------------------------------------------- */

static const tq_desc_t *column_desc(const tq_column_out_t *column, uint32_t r)
{
    return column->layout == TQ_LAYOUT_EACH ? &column->descs[r] : &column->desc;
}

/* A row's value: (dtype, shape, start, len) of a tensor, the object of anything else. TEXT and
 * BYTES are made here; decode(encoding, bytes) makes the others. */
static PyObject *cell_object(const tq_column_out_t *column, uint32_t r, PyObject *decode)
{
    const tq_desc_t *desc = column_desc(column, r);
    int64_t start = column->offsets[r];
    if (desc->encoding == TQ_ENC_TENSOR) {
        return Py_BuildValue("(iNLK)", desc->dtype, shape_tuple(desc->shape, 0, desc->ndim),
                             (long long)start, (unsigned long long)desc->len);
    }
    const char *bytes = "";
    if (column->buffer != NULL) {
        bytes = (const char *)tq_buffer_data(column->buffer) + start;
    }
    Py_ssize_t len = (Py_ssize_t)desc->len;
    switch (desc->encoding) {
    case TQ_ENC_TEXT:
        return PyUnicode_DecodeUTF8(bytes, len, NULL);
    case TQ_ENC_BYTES:
        return PyBytes_FromStringAndSize(bytes, len);
    default:
        return PyObject_CallFunction(decode, "iy#", desc->encoding, bytes, len);
    }
}

/* (field, EACH, buffer, kinds, values): kinds has one encoding byte a row. */
static PyObject *each_object(const core_state_t *state, const tq_column_out_t *column,
                             uint32_t rows_cnt, PyObject *decode)
{
    PyObject *kinds = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)rows_cnt);
    PyObject *values = PyList_New((Py_ssize_t)rows_cnt);
    if (kinds == NULL || values == NULL) {
        goto fail;
    }
    for (uint32_t r = 0; r < rows_cnt; r++) {
        PyByteArray_AsString(kinds)[r] = (char)column_desc(column, r)->encoding;
        PyObject *value = cell_object(column, r, decode);
        if (value == NULL) {
            goto fail;
        }
        PyList_SetItem(values, (Py_ssize_t)r, value);
    }
    return Py_BuildValue("(siNNN)", column->field, TQ_LAYOUT_EACH,
                         buffer_object(state, column->buffer), kinds, values);
fail:
    Py_XDECREF(kinds);
    Py_XDECREF(values);
    return NULL;
}

/* (field, RAGGED, buffer, dtype, inner shape, offsets, min, max): offsets is a bytearray of
 * rows + 1 int64 in steps of the first dimension. */
static PyObject *ragged_object(const core_state_t *state, const tq_column_out_t *column,
                               uint32_t rows_cnt)
{
    const tq_desc_t *desc = &column->desc;
    uint64_t unit_bytes = tq_dtype_size((tq_dtype_t)desc->dtype);
    for (uint8_t d = 1; d < desc->ndim; d++) {
        unit_bytes *= desc->shape[d];
    }
    PyObject *steps = PyByteArray_FromStringAndSize(NULL, ((Py_ssize_t)rows_cnt + 1) *
                                                              (Py_ssize_t)sizeof(int64_t));
    if (steps == NULL) {
        return NULL;
    }
    char *out = PyByteArray_AsString(steps);
    int64_t last = 0, shortest = INT64_MAX, longest = 0;
    for (uint32_t r = 0; r <= rows_cnt; r++) {
        int64_t step = unit_bytes > 0 ? column->offsets[r] / (int64_t)unit_bytes : 0;
        memcpy(out + (size_t)r * sizeof(step), &step, sizeof(step));
        if (r > 0) {
            shortest = step - last < shortest ? step - last : shortest;
            longest = step - last > longest ? step - last : longest;
        }
        last = step;
    }
    return Py_BuildValue("(siNiNNLL)", column->field, TQ_LAYOUT_RAGGED,
                         buffer_object(state, column->buffer), desc->dtype,
                         shape_tuple(desc->shape, 1, desc->ndim), steps,
                         (long long)(rows_cnt > 0 ? shortest : 0), (long long)longest);
}

static PyObject *column_object(const core_state_t *state, const tq_column_out_t *column,
                               uint32_t rows_cnt, PyObject *decode)
{
    if (column->layout == TQ_LAYOUT_EACH || column->desc.encoding != TQ_ENC_TENSOR) {
        return each_object(state, column, rows_cnt, decode);
    }
    if (column->layout == TQ_LAYOUT_RAGGED) {
        return ragged_object(state, column, rows_cnt);
    }
    return Py_BuildValue("(siNiN)", column->field, TQ_LAYOUT_UNIFORM,
                         buffer_object(state, column->buffer), column->desc.dtype,
                         shape_tuple(column->desc.shape, 0, column->desc.ndim));
}

PyDoc_STRVAR(op_columns_doc,
             "columns(decode)\n\nThe columns of a get, as one tuple each:\n"
             "(field, UNIFORM, buffer, dtype, shape),\n"
             "(field, RAGGED, buffer, dtype, inner shape, offsets, min, max) or\n"
             "(field, EACH, buffer, kinds, values).\n"
             "decode(encoding, bytes) makes the value of a MSGPACK or PICKLE cell.");
static PyObject *op_columns(PyObject *object, PyObject *decode)
{
    const tq_result_t *result = op_answer((op_t *)object);
    if (result == NULL) {
        return NULL;
    }
    const core_state_t *state = state_of(object);
    PyObject *list = PyList_New((Py_ssize_t)result->columns_cnt);
    for (uint32_t i = 0; list != NULL && i < result->columns_cnt; i++) {
        PyObject *item = column_object(state, &result->columns[i], result->rows_cnt, decode);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

/* ---- Queue ----------------------------------------------------------------------------------- */

struct queue {
    PyObject_HEAD client_t *client; /* owned */
    tq_cq_t *cq;                    /* NULL once closed */
    PyObject *ops;                  /* set: outstanding Ops, kept alive until they are polled */
    queue_t *next;                  /* of the client */
    pid_t pid;
};

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    const core_state_t *state = PyType_GetModuleState(type);
    client_t *client;
    if (!PyArg_ParseTuple(args, "O!", state->client_type, &client)) {
        return NULL;
    }
    tq_client_t *handle = client_use(client);
    queue_t *self = handle != NULL ? (queue_t *)PyType_GenericAlloc(type, 0) : NULL;
    if (self == NULL) {
        return NULL;
    }
    self->client = (client_t *)Py_NewRef((PyObject *)client);
    self->pid = client->pid;
    self->ops = PySet_New(NULL);
    if (self->ops == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    tq_error_t error = {0};
    tq_status_t status = tq_cq_open(handle, &self->cq, &error);
    if (status != TQ_OK) {
        self->cq = NULL;
        Py_DECREF((PyObject *)self);
        return raise_error(state, status, &error);
    }
    self->next = client->queues;
    client->queues = self;
    return (PyObject *)self;
}

/* Closes the queue; ops that are outstanding on it go on by themselves. */
static void queue_shut(queue_t *self)
{
    if (self->cq == NULL) {
        return;
    }
    for (queue_t **at = &self->client->queues; *at != NULL; at = &(*at)->next) {
        if (*at == self) {
            *at = self->next;
            break;
        }
    }
    PyObject *op;
    while (PySet_Size(self->ops) > 0 && (op = PySet_Pop(self->ops)) != NULL) {
        op_orphan((op_t *)op);
        Py_DECREF(op);
    }
    tq_cq_t *cq = self->cq;
    self->cq = NULL;
    tq_cq_close(cq);
}

static void queue_dealloc(PyObject *object)
{
    queue_t *self = (queue_t *)object;
    if (!is_foreign(self->pid)) {
        queue_shut(self);
    }
    Py_CLEAR(self->ops);
    Py_CLEAR(self->client);
    object_free(object);
}

PyDoc_STRVAR(queue_close_doc,
             "close()\n\nCloses the queue; ops that are outstanding on it go on, unobserved.");
static PyObject *queue_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    queue_t *self = (queue_t *)object;
    if (!is_foreign(self->pid)) {
        queue_shut(self);
    }
    Py_RETURN_NONE;
}

static tq_cq_t *queue_use(queue_t *self)
{
    if (is_foreign(self->pid)) {
        return raise_status(state_of((PyObject *)self), TQ_E_FORKED,
                            "the queue belongs to the parent process");
    }
    if (self->cq == NULL) {
        return raise_status(state_of((PyObject *)self), TQ_E_CLOSED, "the client is closed");
    }
    return self->cq;
}

PyDoc_STRVAR(queue_fileno_doc, "fileno()\n\nReadable while completed ops wait in the queue.");
static PyObject *queue_fileno(PyObject *object, PyObject *unused)
{
    (void)unused;
    tq_cq_t *cq = queue_use((queue_t *)object);
    return cq != NULL ? PyLong_FromLong(tq_cq_fd(cq)) : NULL;
}

PyDoc_STRVAR(queue_poll_doc, "poll()\n\nTakes the completed ops, [] if none. Never blocks.");
static PyObject *queue_poll(PyObject *object, PyObject *unused)
{
    (void)unused;
    queue_t *self = (queue_t *)object;
    tq_cq_t *cq = queue_use(self);
    PyObject *list = cq != NULL ? PyList_New(0) : NULL;
    tq_op_t *taken[POLL_MAX];
    uint32_t cnt = POLL_MAX;
    while (list != NULL && cnt == POLL_MAX) {
        cnt = tq_cq_poll(cq, taken, POLL_MAX);
        for (uint32_t i = 0; i < cnt; i++) {
            op_t *op = tq_op_user(taken[i]);
            op_complete(op);
            if (list != NULL && PyList_Append(list, (PyObject *)op) < 0) {
                Py_CLEAR(list);
            }
            PySet_Discard(self->ops, (PyObject *)op);
        }
    }
    return list;
}

/* ---- Client: opening and closing ------------------------------------------------------------- */

/* A client that a thread of its own opens, so that whoever waits can be interrupted. Freed by the
 * thread if the other has gone, else by the other. */
typedef struct opening {
    pthread_mutex_t mutex; /* guards is_done and is_abandoned */
    pthread_cond_t cond;
    tq_client_conf_t conf; /* its strings are ours */
    tq_client_t *client;
    tq_status_t status;
    tq_error_t error;
    bool is_done;
    bool is_abandoned;
} opening_t;

static void opening_free(opening_t *opening)
{
    pthread_cond_destroy(&opening->cond);
    pthread_mutex_destroy(&opening->mutex);
    free((char *)opening->conf.address);
    free((char *)opening->conf.name);
    free((char *)opening->conf.curve_server_key);
    free(opening);
}

static bool copy_text(const char **text)
{
    if (*text != NULL) {
        *text = strdup(*text);
        return *text != NULL;
    }
    return true;
}

static opening_t *opening_make(const tq_client_conf_t *conf)
{
    opening_t *opening = calloc(1, sizeof *opening);
    pthread_condattr_t attr;
    if (opening == NULL) {
        return NULL;
    }
    pthread_mutex_init(&opening->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&opening->cond, &attr);
    pthread_condattr_destroy(&attr);
    opening->conf = *conf;
    bool has_address = copy_text(&opening->conf.address);
    bool has_name = copy_text(&opening->conf.name);
    bool has_key = copy_text(&opening->conf.curve_server_key);
    if (has_address && has_name && has_key) {
        return opening;
    }
    opening_free(opening);
    return NULL;
}

static void *opening_run(void *arg)
{
    opening_t *opening = arg;
    tq_status_t status = tq_client_open(&opening->conf, &opening->client, &opening->error);
    pthread_mutex_lock(&opening->mutex);
    opening->status = status;
    opening->is_done = true;
    bool is_abandoned = opening->is_abandoned;
    pthread_cond_signal(&opening->cond);
    pthread_mutex_unlock(&opening->mutex);
    if (is_abandoned) {
        tq_client_close(opening->client);
        opening_free(opening);
    }
    return NULL;
}

/* Its thread takes no signals: those are the interpreter's. */
static bool opening_start(opening_t *opening)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, opening_run, opening);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0;
}

/* Waits for a slice of time; true when it is open, or could not be opened. */
static bool opening_wait(opening_t *opening)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&opening->mutex);
    if (!opening->is_done) {
        (void)pthread_cond_timedwait(&opening->cond, &opening->mutex, &until);
    }
    bool is_done = opening->is_done;
    pthread_mutex_unlock(&opening->mutex);
    return is_done;
}

/* An exception came: the thread cleans up, unless it was faster. */
static void opening_abandon(opening_t *opening)
{
    pthread_mutex_lock(&opening->mutex);
    bool is_done = opening->is_done;
    opening->is_abandoned = true;
    pthread_mutex_unlock(&opening->mutex);
    if (is_done) {
        tq_client_close(opening->client);
        opening_free(opening);
    }
}

/* tq_client_open, without the interpreter lock. False with an exception that a signal handler
 * raised; *status is the result otherwise. */
static bool open_client(const tq_client_conf_t *conf, tq_client_t **client, tq_status_t *status,
                        tq_error_t *error)
{
    opening_t *opening = opening_make(conf);
    bool is_done = false;
    if (opening == NULL || !opening_start(opening)) {
        /* Short of memory or threads, which the opening itself will tell. */
        if (opening != NULL) {
            opening_free(opening);
        }
        Py_BEGIN_ALLOW_THREADS *status = tq_client_open(conf, client, error);
        Py_END_ALLOW_THREADS return true;
    }
    while (!is_done) {
        Py_BEGIN_ALLOW_THREADS is_done = opening_wait(opening);
        Py_END_ALLOW_THREADS if (!is_done && PyErr_CheckSignals() < 0)
        {
            Py_BEGIN_ALLOW_THREADS opening_abandon(opening);
            Py_END_ALLOW_THREADS return false;
        }
    }
    *client = opening->client;
    *status = opening->status;
    *error = opening->error;
    opening_free(opening);
    return true;
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address",
                            "name",
                            "connect_timeout_ms",
                            "call_timeout_ms",
                            "fetch_timeout_ms",
                            "space_timeout_ms",
                            "copy_threads",
                            "receive_cache_bytes",
                            "curve_server_key",
                            NULL};
    tq_client_conf_t conf = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "z|$zO&O&O&O&O&O&z", names, &conf.address,
                                     &conf.name, u32_arg, &conf.connect_timeout_ms, u32_arg,
                                     &conf.call_timeout_ms, u32_arg, &conf.fetch_timeout_ms,
                                     u32_arg, &conf.space_timeout_ms, u32_arg, &conf.copy_threads,
                                     u64_arg, &conf.receive_cache_bytes, &conf.curve_server_key)) {
        return NULL;
    }
    client_t *self = (client_t *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->pid = getpid();
    self->orphans = PyList_New(0);
    if (self->orphans == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    tq_error_t error = {0};
    tq_client_t *client = NULL;
    tq_status_t status;
    if (!open_client(&conf, &client, &status, &error)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    if (status != TQ_OK) {
        Py_DECREF((PyObject *)self);
        return raise_error(PyType_GetModuleState(type), status, &error);
    }
    self->client = client;
    return (PyObject *)self;
}

static void client_shut(client_t *self)
{
    if (self->client == NULL) {
        return;
    }
    while (self->queues != NULL) {
        queue_shut(self->queues);
    }
    tq_client_t *client = self->client;
    self->client = NULL;
    Py_BEGIN_ALLOW_THREADS tq_client_close(client);
    Py_END_ALLOW_THREADS
}

static void client_dealloc(PyObject *object)
{
    client_t *self = (client_t *)object;
    if (!is_foreign(self->pid)) {
        client_shut(self);
    }
    Py_CLEAR(self->orphans);
    scratch_free(&self->orphaned);
    object_free(object);
}

PyDoc_STRVAR(client_close_doc,
             "close()\n\nEnds the session; ops under way end with E_CLOSED. Buffers stay valid.");
static PyObject *client_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    client_t *self = (client_t *)object;
    if (!is_foreign(self->pid)) {
        client_shut(self);
    }
    Py_RETURN_NONE;
}

static PyObject *client_incarnation(PyObject *object, void *unused)
{
    (void)unused;
    tq_client_t *client = client_use((client_t *)object);
    return client != NULL ? PyLong_FromUnsignedLongLong(tq_client_incarnation(client)) : NULL;
}

static PyObject *client_store_conf(PyObject *object, void *unused)
{
    (void)unused;
    tq_client_t *client = client_use((client_t *)object);
    if (client == NULL) {
        return NULL;
    }
    size_t len = 0;
    const char *text = tq_client_store_conf(client, &len);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)len, "replace");
}

/* ---- Client: calls --------------------------------------------------------------------------- */

/* One call on its way in: the op's object, the handles, and memory for its arguments. */
typedef struct call {
    client_t *client;
    tq_client_t *handle;
    queue_t *queue; /* NULL: the op will be waited for */
    tq_cq_t *cq;
    op_t *op;
} call_t;

/* False with an exception. The arguments go to op->scratch, which op_complete frees. */
static bool call_begin(call_t *call, PyObject *client, PyObject *queue)
{
    call->client = (client_t *)client;
    call->handle = client_use(call->client);
    call->queue = NULL;
    call->cq = NULL;
    call->op = NULL;
    if (call->handle == NULL) {
        return false;
    }
    if (queue != Py_None) {
        if (Py_TYPE(queue) != state_of(client)->queue_type) {
            PyErr_SetString(PyExc_TypeError, "queue must be a Queue or None");
            return false;
        }
        call->queue = (queue_t *)queue;
        call->cq = queue_use(call->queue);
        if (call->cq == NULL) {
            return false;
        }
    }
    call->op = op_new(call->client);
    if (call->op == NULL) {
        return false;
    }
    if (call->queue != NULL && PySet_Add(call->queue->ops, (PyObject *)call->op) < 0) {
        Py_CLEAR(call->op);
        return false;
    }
    return true;
}

/* The op's object after its submit returned `status`. */
static PyObject *call_end(call_t *call, tq_status_t status, const tq_error_t *error)
{
    if (status == TQ_OK) {
        return (PyObject *)call->op;
    }
    call->op->op = NULL;
    if (call->queue != NULL) {
        PySet_Discard(call->queue->ops, (PyObject *)call->op);
    }
    Py_DECREF((PyObject *)call->op);
    return raise_error(state_of((PyObject *)call->client), status, error);
}

/* For arguments that could not be read: an exception is set already. */
static PyObject *call_fail(call_t *call)
{
    if (call->op != NULL) {
        if (call->queue != NULL) {
            PySet_Discard(call->queue->ops, (PyObject *)call->op);
        }
        Py_DECREF((PyObject *)call->op);
    }
    return NULL;
}

PyDoc_STRVAR(client_put_doc,
             "put(queue, partition, rows_cnt, keys, rows, columns, tags, flags, timeout_ms, keep)\n"
             "\nkeep is whatever the memory of the columns belongs to.");
static PyObject *client_put(PyObject *self, PyObject *args)
{
    tq_put_args_t put = {0};
    PyObject *queue, *keys, *rows, *columns, *tags, *keep;
    uint32_t rows_cnt = 0;
    if (!PyArg_ParseTuple(args, "OsO&OOOOO&O&O", &queue, &put.partition, u32_arg, &put.rows_cnt,
                          &keys, &rows, &columns, &tags, u32_arg, &put.flags, u32_arg,
                          &put.timeout_ms, &keep)) {
        return NULL;
    }
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    scratch_t *scratch = &call.op->scratch;
    if (strs_arg(scratch, keys, "keys", &put.keys) < 0 ||
        rows_arg(scratch, rows, &put.rows, &rows_cnt) < 0 ||
        columns_arg(scratch, columns, put.rows_cnt, &put.columns, &put.columns_cnt) < 0 ||
        strs_arg(scratch, tags, "tags", &put.tags) < 0) {
        return call_fail(&call);
    }
    if ((put.keys != NULL && put.keys->cnt != put.rows_cnt) ||
        (put.rows != NULL && rows_cnt != put.rows_cnt) ||
        (put.tags != NULL && put.tags->cnt != put.rows_cnt)) {
        PyErr_Format(PyExc_ValueError,
                     "keys, rows and tags must have one entry for each of %u rows", put.rows_cnt);
        return call_fail(&call);
    }
    call.op->keep = PyTuple_Pack(2, columns, keep);
    if (call.op->keep == NULL) {
        return call_fail(&call);
    }
    tq_error_t error = {0};
    return call_end(&call, tq_put_submit(call.handle, call.cq, &put, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_insert_doc, "insert(queue, partition, rows_cnt, fields, timeout_ms)");
static PyObject *client_insert(PyObject *self, PyObject *args)
{
    tq_insert_args_t insert = {0};
    PyObject *queue, *fields;
    if (!PyArg_ParseTuple(args, "OsO&OO&", &queue, &insert.partition, u32_arg, &insert.rows_cnt,
                          &fields, u32_arg, &insert.timeout_ms)) {
        return NULL;
    }
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (strs_arg(&call.op->scratch, fields, "fields", &insert.fields) < 0) {
        return call_fail(&call);
    }
    tq_error_t error = {0};
    return call_end(&call,
                    tq_insert_submit(call.handle, call.cq, &insert, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_set_tags_doc, "set_tags(queue, partition, rows, tags, is_replace, timeout_ms)");
static PyObject *client_set_tags(PyObject *self, PyObject *args)
{
    tq_tags_args_t set = {0};
    PyObject *queue, *rows, *tags;
    int is_replace;
    if (!PyArg_ParseTuple(args, "OsOOpO&", &queue, &set.partition, &rows, &tags, &is_replace,
                          u32_arg, &set.timeout_ms)) {
        return NULL;
    }
    set.is_replace = is_replace != 0;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (rows_arg(&call.op->scratch, rows, &set.rows, &set.rows_cnt) < 0 ||
        strs_arg(&call.op->scratch, tags, "tags", &set.tags) < 0) {
        return call_fail(&call);
    }
    if (set.tags == NULL || set.tags->cnt != set.rows_cnt) {
        PyErr_SetString(PyExc_ValueError, "rows and tags must have the same length");
        return call_fail(&call);
    }
    tq_error_t error = {0};
    return call_end(
        &call, tq_tags_submit(call.handle, call.cq, &set, call.op, &call.op->op, &error), &error);
}

PyDoc_STRVAR(client_clear_doc, "clear(queue, partition, rows, keys, is_all, timeout_ms)");
static PyObject *client_clear(PyObject *self, PyObject *args)
{
    tq_clear_args_t clear = {0};
    PyObject *queue, *rows, *keys;
    int is_all;
    if (!PyArg_ParseTuple(args, "OsOOpO&", &queue, &clear.partition, &rows, &keys, &is_all, u32_arg,
                          &clear.timeout_ms)) {
        return NULL;
    }
    clear.is_all = is_all != 0;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (rows_arg(&call.op->scratch, rows, &clear.rows, &clear.rows_cnt) < 0 ||
        strs_arg(&call.op->scratch, keys, "keys", &clear.keys) < 0) {
        return call_fail(&call);
    }
    if (clear.keys != NULL) {
        clear.rows_cnt = clear.keys->cnt;
    }
    tq_error_t error = {0};
    return call_end(&call,
                    tq_clear_submit(call.handle, call.cq, &clear, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_reset_doc, "reset(queue, partition, task, timeout_ms)");
static PyObject *client_reset(PyObject *self, PyObject *args)
{
    tq_reset_args_t reset = {0};
    PyObject *queue;
    if (!PyArg_ParseTuple(args, "OszO&", &queue, &reset.partition, &reset.task, u32_arg,
                          &reset.timeout_ms)) {
        return NULL;
    }
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    tq_error_t error = {0};
    return call_end(&call,
                    tq_reset_submit(call.handle, call.cq, &reset, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_fetch_doc,
             "fetch(queue, partition, fields, rows_cnt, task, mode, is_polling, sampling,\n"
             "      timeout_ms)");
static PyObject *client_fetch(PyObject *self, PyObject *args)
{
    tq_fetch_args_t fetch = {0};
    PyObject *queue, *fields;
    int mode, is_polling;
    const char *sampling;
    Py_ssize_t sampling_len;
    if (!PyArg_ParseTuple(args, "OsOO&zipz#O&", &queue, &fetch.partition, &fields, u32_arg,
                          &fetch.rows_cnt, &fetch.task, &mode, &is_polling, &sampling,
                          &sampling_len, u32_arg, &fetch.timeout_ms)) {
        return NULL;
    }
    fetch.mode = (tq_fetch_mode_t)mode;
    fetch.is_polling = is_polling != 0;
    fetch.sampling = sampling;
    fetch.sampling_len = sampling != NULL ? (size_t)sampling_len : 0;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (strs_arg(&call.op->scratch, fields, "fields", &fetch.fields) < 0) {
        return call_fail(&call);
    }
    tq_error_t error = {0};
    return call_end(&call,
                    tq_fetch_submit(call.handle, call.cq, &fetch, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_resolve_doc, "resolve(queue, partition, keys, rows, is_create, timeout_ms)");
static PyObject *client_resolve(PyObject *self, PyObject *args)
{
    tq_resolve_args_t resolve = {0};
    PyObject *queue, *keys, *rows;
    int is_create;
    if (!PyArg_ParseTuple(args, "OsOOpO&", &queue, &resolve.partition, &keys, &rows, &is_create,
                          u32_arg, &resolve.timeout_ms)) {
        return NULL;
    }
    resolve.is_create = is_create != 0;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (strs_arg(&call.op->scratch, keys, "keys", &resolve.keys) < 0 ||
        rows_arg(&call.op->scratch, rows, &resolve.rows, &resolve.rows_cnt) < 0) {
        return call_fail(&call);
    }
    if (resolve.keys != NULL) {
        resolve.rows_cnt = resolve.keys->cnt;
    }
    tq_error_t error = {0};
    return call_end(
        &call, tq_resolve_submit(call.handle, call.cq, &resolve, call.op, &call.op->op, &error),
        &error);
}

PyDoc_STRVAR(client_get_doc, "get(queue, partition, keys, rows, fields, flags, timeout_ms)");
static PyObject *client_get(PyObject *self, PyObject *args)
{
    tq_get_args_t get = {0};
    PyObject *queue, *keys, *rows, *fields;
    if (!PyArg_ParseTuple(args, "OsOOOO&O&", &queue, &get.partition, &keys, &rows, &fields, u32_arg,
                          &get.flags, u32_arg, &get.timeout_ms)) {
        return NULL;
    }
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    scratch_t *scratch = &call.op->scratch;
    if (strs_arg(scratch, keys, "keys", &get.keys) < 0 ||
        rows_arg(scratch, rows, &get.rows, &get.rows_cnt) < 0 ||
        strs_arg(scratch, fields, "fields", &get.fields) < 0) {
        return call_fail(&call);
    }
    if (get.keys != NULL) {
        get.rows_cnt = get.keys->cnt;
    }
    tq_error_t error = {0};
    return call_end(&call, tq_get_submit(call.handle, call.cq, &get, call.op, &call.op->op, &error),
                    &error);
}

PyDoc_STRVAR(client_status_doc, "status(queue, partition, kind, task, fields, timeout_ms)");
static PyObject *client_status(PyObject *self, PyObject *args)
{
    tq_status_args_t ask = {0};
    PyObject *queue, *fields;
    int kind;
    if (!PyArg_ParseTuple(args, "OsizOO&", &queue, &ask.partition, &kind, &ask.task, &fields,
                          u32_arg, &ask.timeout_ms)) {
        return NULL;
    }
    ask.kind = (tq_status_kind_t)kind;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    if (strs_arg(&call.op->scratch, fields, "fields", &ask.fields) < 0) {
        return call_fail(&call);
    }
    tq_error_t error = {0};
    return call_end(
        &call, tq_status_submit(call.handle, call.cq, &ask, call.op, &call.op->op, &error), &error);
}

PyDoc_STRVAR(client_list_doc,
             "list(queue, partition, is_keys_only, is_stuck_only, want_fields, rows_max,\n"
             "     timeout_ms)");
static PyObject *client_list(PyObject *self, PyObject *args)
{
    tq_list_args_t ask = {0};
    PyObject *queue;
    int is_keys_only, is_stuck_only, want_fields;
    if (!PyArg_ParseTuple(args, "OzpppO&O&", &queue, &ask.partition, &is_keys_only, &is_stuck_only,
                          &want_fields, u64_arg, &ask.rows_max, u32_arg, &ask.timeout_ms)) {
        return NULL;
    }
    ask.is_keys_only = is_keys_only != 0;
    ask.is_stuck_only = is_stuck_only != 0;
    ask.want_fields = want_fields != 0;
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    tq_error_t error = {0};
    return call_end(
        &call, tq_list_submit(call.handle, call.cq, &ask, call.op, &call.op->op, &error), &error);
}

PyDoc_STRVAR(client_stat_doc, "stat(queue, timeout_ms)");
static PyObject *client_stat(PyObject *self, PyObject *args)
{
    PyObject *queue;
    uint32_t timeout_ms;
    if (!PyArg_ParseTuple(args, "OO&", &queue, u32_arg, &timeout_ms)) {
        return NULL;
    }
    call_t call;
    if (!call_begin(&call, self, queue)) {
        return NULL;
    }
    tq_error_t error = {0};
    return call_end(&call,
                    tq_stat_submit(call.handle, call.cq, timeout_ms, call.op, &call.op->op, &error),
                    &error);
}

/* ---- Store ----------------------------------------------------------------------------------- */

typedef struct store {
    PyObject_HEAD tq_store_t *store; /* NULL once closed */
    pid_t pid;
} store_t;

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "units_cnt",     "capacity_bytes", "sampler", "sampler_group", "sampler_group_by",
        "prealloc_rows", "user_conf",      "listen",  "advertise",     NULL};
    tq_store_conf_t conf = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$O&O&zO&zO&zzz", names, u32_arg, &conf.units_cnt, u64_arg,
            &conf.capacity_bytes, &conf.controller.sampler, u32_arg, &conf.controller.sampler_group,
            &conf.controller.sampler_group_by, u32_arg, &conf.controller.prealloc_rows,
            &conf.controller.user_conf, &conf.controller.listen, &conf.controller.advertise)) {
        return NULL;
    }
    store_t *self = (store_t *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->pid = getpid();
    tq_error_t error = {0};
    tq_store_t *store = NULL;
    tq_status_t status;
    Py_BEGIN_ALLOW_THREADS status = tq_store_open(&conf, &store, &error);
    Py_END_ALLOW_THREADS if (status != TQ_OK)
    {
        Py_DECREF((PyObject *)self);
        return raise_error(PyType_GetModuleState(type), status, &error);
    }
    self->store = store;
    return (PyObject *)self;
}

static void store_shut(store_t *self)
{
    tq_store_t *store = self->store;
    self->store = NULL;
    if (store != NULL && !is_foreign(self->pid)) {
        Py_BEGIN_ALLOW_THREADS tq_store_close(store);
        Py_END_ALLOW_THREADS
    }
}

static void store_dealloc(PyObject *object)
{
    store_shut((store_t *)object);
    object_free(object);
}

PyDoc_STRVAR(store_close_doc, "close()\n\nStops the roles. In a child of fork it only forgets.");
static PyObject *store_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    store_shut((store_t *)object);
    Py_RETURN_NONE;
}

static PyObject *store_address_of(PyObject *object, const char *(*address)(const tq_store_t *))
{
    store_t *self = (store_t *)object;
    if (self->store == NULL) {
        return raise_status(state_of(object), TQ_E_CLOSED, "the store is closed");
    }
    return PyUnicode_FromString(address(self->store));
}

static PyObject *store_address(PyObject *object, void *unused)
{
    (void)unused;
    return store_address_of(object, tq_store_address);
}

static PyObject *store_public_address(PyObject *object, void *unused)
{
    (void)unused;
    return store_address_of(object, tq_store_public_address);
}

/* ---- types and module ------------------------------------------------------------------------ */

/* A slot holds functions as void *, which ISO C has no conversion for and POSIX guarantees. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "Memory that a get filled; a writable buffer."},
    {Py_tp_dealloc, (void *)buffer_dealloc},
    {Py_bf_getbuffer, (void *)buffer_get},
    {0, NULL},
};

static PyMethodDef op_methods[] = {
    {"wait", op_wait, METH_NOARGS, op_wait_doc},
    {"cancel", op_cancel, METH_NOARGS, op_cancel_doc},
    {"check", op_check, METH_NOARGS, op_check_doc},
    {"columns", op_columns, METH_O, op_columns_doc},
    {"status_bytes", op_status_bytes, METH_VARARGS,
     "status_bytes(cnt)\n\nThe first cnt status bytes, as a bytearray."},
    {0},
};

static PyGetSetDef op_getset[] = {
    {"is_completed", op_is_completed, NULL, "Whether the op has completed and was taken.", NULL},
    {"status", op_status, NULL, "The op's status number; None before it has completed.", NULL},
    {"rows", op_rows, NULL, "Row indexes; None where a key has no row.", NULL},
    {"keys", op_keys, NULL, "Keys, one a row; None where a row has none.", NULL},
    {"tags", op_tags, NULL, "One msgpack map a row, as bytes.", NULL},
    {"fields", op_fields, NULL, "Names of fields.", NULL},
    {"schemas", op_schemas, NULL, "(encoding, dtype, is_nested, shape), one a field.", NULL},
    {"names", op_names, NULL, "Names of partitions.", NULL},
    {"units", op_units, NULL, "The storage unit of each row.", NULL},
    {"count", op_count, NULL, "Rows cleared.", NULL},
    {"is_known", op_is_known, NULL, "Whether what was asked about exists.", NULL},
    {"json", op_json, NULL, "What stat answers.", NULL},
    {"incarnation", op_incarnation, NULL, "Of the store that answered.", NULL},
    {0},
};

static PyType_Slot op_slots[] = {
    {Py_tp_doc, "One operation, then its result."},
    {Py_tp_dealloc, (void *)op_dealloc},
    {Py_tp_methods, op_methods},
    {Py_tp_getset, op_getset},
    {0, NULL},
};

static PyMethodDef queue_methods[] = {
    {"fileno", queue_fileno, METH_NOARGS, queue_fileno_doc},
    {"poll", queue_poll, METH_NOARGS, queue_poll_doc},
    {"close", queue_close, METH_NOARGS, queue_close_doc},
    {0},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, "Queue(client)\n\nA completion queue."},
    {Py_tp_new, (void *)queue_new},
    {Py_tp_dealloc, (void *)queue_dealloc},
    {Py_tp_methods, queue_methods},
    {0, NULL},
};

static PyMethodDef client_methods[] = {
    {"put", client_put, METH_VARARGS, client_put_doc},
    {"insert", client_insert, METH_VARARGS, client_insert_doc},
    {"set_tags", client_set_tags, METH_VARARGS, client_set_tags_doc},
    {"clear", client_clear, METH_VARARGS, client_clear_doc},
    {"reset", client_reset, METH_VARARGS, client_reset_doc},
    {"fetch", client_fetch, METH_VARARGS, client_fetch_doc},
    {"resolve", client_resolve, METH_VARARGS, client_resolve_doc},
    {"get", client_get, METH_VARARGS, client_get_doc},
    {"status", client_status, METH_VARARGS, client_status_doc},
    {"list", client_list, METH_VARARGS, client_list_doc},
    {"stat", client_stat, METH_VARARGS, client_stat_doc},
    {"close", client_close, METH_NOARGS, client_close_doc},
    {0},
};

static PyGetSetDef client_getset[] = {
    {"incarnation", client_incarnation, NULL, "Identity of the store.", NULL},
    {"store_conf", client_store_conf, NULL, "The text that the store's creator left.", NULL},
    {0},
};

static PyType_Slot client_slots[] = {
    {Py_tp_doc, "Client(address, **options)\n\nA session with the store at an address. Each call "
                "returns an Op; queue is None for one that will be waited for."},
    {Py_tp_new, (void *)client_new},
    {Py_tp_dealloc, (void *)client_dealloc},
    {Py_tp_methods, client_methods},
    {Py_tp_getset, client_getset},
    {0, NULL},
};

static PyMethodDef store_methods[] = {
    {"close", store_close, METH_NOARGS, store_close_doc},
    {0},
};

static PyGetSetDef store_getset[] = {
    {"address", store_address, NULL, "For clients in this process.", NULL},
    {"public_address", store_public_address, NULL, "For other processes.", NULL},
    {0},
};

static PyType_Slot store_slots[] = {
    {Py_tp_doc, "Store(**options)\n\nA controller and its units in this process."},
    {Py_tp_new, (void *)store_new},
    {Py_tp_dealloc, (void *)store_dealloc},
    {Py_tp_methods, store_methods},
    {Py_tp_getset, store_getset},
    {0, NULL},
};

static PyObject *core_set_error_factory(PyObject *module, PyObject *factory)
{
    core_state_t *state = PyModule_GetState(module);
    Py_XDECREF(state->error_factory);
    state->error_factory = Py_NewRef(factory);
    Py_RETURN_NONE;
}

static PyMethodDef core_methods[] = {
    {"set_error_factory", core_set_error_factory, METH_O,
     "set_error_factory(f)\n\nf(status, text) makes the exceptions that are raised here."},
    {0},
};

static int add_type(PyObject *module, PyTypeObject **type, const char *name, size_t size,
                    PyType_Slot *slots, unsigned int flags)
{
    PyType_Spec spec = {.name = name,
                        .basicsize = (int)size,
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | flags,
                        .slots = slots};
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return *type != NULL ? PyModule_AddType(module, *type) : -1;
}

/* name -> (number, class), and the tables of dtypes. */
static int add_tables(PyObject *module)
{
    PyObject *statuses = PyDict_New();
    PyObject *dtypes = PyDict_New();
    int rc = statuses != NULL && dtypes != NULL ? 0 : -1;
#define ADD(dict, key, format, ...)                                                                \
    if (rc == 0) {                                                                                 \
        PyObject *value = Py_BuildValue(format, __VA_ARGS__);                                      \
        rc = value != NULL ? PyDict_SetItemString(dict, key, value) : -1;                          \
        Py_XDECREF(value);                                                                         \
    }
#define ADD_STATUS(name, number, cls, text) ADD(statuses, #name, "(is)", number, #cls)
#define ADD_DTYPE(name, number, bytes) ADD(dtypes, tq_dtype_name(TQ_DTYPE_##name), "i", number)
    TQ_STATUS_TABLE(ADD_STATUS)
    TQ_DTYPE_TABLE(ADD_DTYPE)
#undef ADD_DTYPE
#undef ADD_STATUS
#undef ADD
    if (rc == 0) {
        rc = PyModule_AddObjectRef(module, "STATUSES", statuses);
    }
    if (rc == 0) {
        rc = PyModule_AddObjectRef(module, "DTYPES", dtypes);
    }
    Py_XDECREF(statuses);
    Py_XDECREF(dtypes);
    return rc;
}

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"UNIFORM", TQ_LAYOUT_UNIFORM},
        {"RAGGED", TQ_LAYOUT_RAGGED},
        {"EACH", TQ_LAYOUT_EACH},
        {"TENSOR", TQ_ENC_TENSOR},
        {"BYTES", TQ_ENC_BYTES},
        {"TEXT", TQ_ENC_TEXT},
        {"MSGPACK", TQ_ENC_MSGPACK},
        {"PICKLE", TQ_ENC_PICKLE},
        {"PUT_REPLACE_TAGS", TQ_PUT_REPLACE_TAGS},
        {"PUT_WANT_META", TQ_PUT_WANT_META},
        {"FETCH", TQ_FETCH},
        {"FETCH_ALL", TQ_FETCH_ALL},
        {"GET_SKIP_KEYS", TQ_GET_SKIP_KEYS},
        {"GET_SKIP_FIELDS", TQ_GET_SKIP_FIELDS},
        {"CONSUMPTION", TQ_STATUS_CONSUMPTION},
        {"PRODUCTION", TQ_STATUS_PRODUCTION},
        {"NDIM_MAX", TQ_NDIM_MAX},
        {"REQUEST_ROWS_MAX", TQ_REQUEST_ROWS_MAX},
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "VERSION", tq_version());
}

static int core_exec(PyObject *module)
{
    core_state_t *state = PyModule_GetState(module);
    const unsigned int made_here = Py_TPFLAGS_DISALLOW_INSTANTIATION;
    if (add_type(module, &state->buffer_type, "transfer_queue._core.Buffer", sizeof(buffer_t),
                 buffer_slots, made_here) < 0 ||
        add_type(module, &state->op_type, "transfer_queue._core.Op", sizeof(op_t), op_slots,
                 made_here) < 0 ||
        add_type(module, &state->queue_type, "transfer_queue._core.Queue", sizeof(queue_t),
                 queue_slots, 0) < 0 ||
        add_type(module, &state->client_type, "transfer_queue._core.Client", sizeof(client_t),
                 client_slots, 0) < 0 ||
        add_type(module, &state->store_type, "transfer_queue._core.Store", sizeof(store_t),
                 store_slots, 0) < 0) {
        return -1;
    }
    return add_constants(module) < 0 || add_tables(module) < 0 ? -1 : 0;
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state_t *state = PyModule_GetState(module);
    Py_VISIT(state->store_type);
    Py_VISIT(state->client_type);
    Py_VISIT(state->queue_type);
    Py_VISIT(state->op_type);
    Py_VISIT(state->buffer_type);
    Py_VISIT(state->error_factory);
    return 0;
}

static int core_clear(PyObject *module)
{
    core_state_t *state = PyModule_GetState(module);
    Py_CLEAR(state->store_type);
    Py_CLEAR(state->client_type);
    Py_CLEAR(state->queue_type);
    Py_CLEAR(state->op_type);
    Py_CLEAR(state->buffer_type);
    Py_CLEAR(state->error_factory);
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
    {0, NULL},
};

#pragma GCC diagnostic pop

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "transfer_queue._core",
    .m_doc = "The C API of tq as Python objects.",
    .m_size = sizeof(core_state_t),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
