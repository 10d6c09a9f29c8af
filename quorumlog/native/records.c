// The records of a batch, for readers: as tuples, or as columns. The twins are `decode_body`
// (quorumlog/wire/codec/records.py) and `_table_at_once` (client/core/columns.py).

#include "lane.h"
#include <string.h>

// The fields of a BatchHeader that its records need.
typedef struct {
    int64_t base_offset, last_offset;
    int64_t last_read;  // the offset of the last record that was read
    int64_t base_timestamp;  // the largest, if the broker's clock gave it
    bool has_append_time;
    Py_ssize_t count;
} Base;

// Read them from a BatchHeader. False: it is none.
static bool get_base(PyObject *header, Base *base) {
    long long offset, first, last, producer;
    unsigned int crc;
    int length, epoch, magic, attributes, delta, producer_epoch, sequence, count;
    if (!PyTuple_Check(header) ||
        !PyArg_ParseTuple(header, "LiiiIiiLLLiii", &offset, &length, &epoch, &magic, &crc,
                          &attributes, &delta, &first, &last, &producer, &producer_epoch,
                          &sequence, &count)) {
        PyErr_Clear();
        return false;
    }
    base->base_offset = offset;
    if (__builtin_sub_overflow(base->base_offset, 1, &base->last_read) ||
        __builtin_add_overflow(base->base_offset, delta, &base->last_offset))
        return false;
    base->has_append_time = attributes & TIMESTAMP_TYPE_BIT;
    base->base_timestamp = base->has_append_time ? last : first;
    base->count = count;
    return count >= 0;
}

// Read a record, its offset and its time; return the position behind it. NULL: it is not usual.
// Offsets ascend up to the last of the batch.
static const uint8_t *read_timed(const uint8_t *at, const uint8_t *end, Base *base,
                                 RecordView *record, int64_t *offset, int64_t *time) {
    at = read_record(at, end, record);
    if (at == NULL ||
        __builtin_add_overflow(base->base_offset, from_zigzag(record->offset_delta), offset) ||
        __builtin_add_overflow(
            base->base_timestamp, base->has_append_time ? 0 : record->time_delta, time) ||
        *offset <= base->last_read || *offset > base->last_offset)
        return NULL;
    base->last_read = *offset;
    return at;
}

// A new bytes object, or None for NULL.
static PyObject *new_content(const uint8_t *begin, Py_ssize_t size) {
    if (begin == NULL) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)begin, size);
}

// A new pair of the key and the value of the header at `*at`, which goes behind it.
static PyObject *new_pair(const uint8_t **at, const uint8_t *end) {
    const uint8_t *key = NULL, *value = NULL;
    Py_ssize_t key_size = 0, value_size = 0;
    *at = read_bytes(*at, end, &key, &key_size);  // neither fails: `read_record` has read them
    *at = read_bytes(*at, end, &value, &value_size);
    PyObject *name = PyUnicode_DecodeASCII((const char *)key, key_size, NULL);
    PyObject *content = new_content(value, value_size), *pair = NULL;
    if (name != NULL && content != NULL) pair = PyTuple_Pack(2, name, content);
    Py_XDECREF(name);
    Py_XDECREF(content);
    return pair;
}

static PyObject *new_pairs(const RecordView *record, const uint8_t *end) {
    const uint8_t *at = record->headers;
    PyObject *pairs = PyTuple_New(record->header_count);
    for (uint32_t i = 0; pairs != NULL && i < record->header_count; i++) {
        PyObject *pair = new_pair(&at, end);
        if (pair == NULL || PyTuple_SetItem(pairs, i, pair) < 0) Py_CLEAR(pairs);
    }
    return pairs;
}

// Set the items from `*at` on, which goes behind them.
static void set_all(PyObject *made, Py_ssize_t *at, PyObject *items, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SetItem(made, (*at)++, Py_NewRef(PyTuple_GetItem(items, i)));
}

typedef struct {
    PyTypeObject *type;  // of the tuples
    PyObject *before, *behind;  // items of each tuple, around the fields of its record
    Py_ssize_t before_count, behind_count;
    PyObject *time;  // of the last record: often that of the next, too
    int64_t time_ms;
} Shape;

static PyObject *new_time(Shape *shape, int64_t time_ms) {
    if (shape->time == NULL || time_ms != shape->time_ms) {
        Py_XDECREF(shape->time);
        shape->time = PyLong_FromLongLong(time_ms);
        shape->time_ms = time_ms;
    }
    return Py_XNewRef(shape->time);
}

static PyObject *new_record(Shape *shape, const RecordView *record, const uint8_t *end,
                            int64_t offset, int64_t time) {
    PyObject *fields[] = {
        PyLong_FromLongLong(offset),
        new_time(shape, time),
        new_content(record->key, record->key_size),
        new_content(record->value, record->value_size),
        new_pairs(record, end),
    };
    const int count = sizeof fields / sizeof *fields;
    Py_ssize_t at = 0, size = shape->before_count + count + shape->behind_count;
    PyObject *made = PyType_GenericAlloc(shape->type, size);  // as `tuple.__new__` for a subclass
    if (made != NULL) set_all(made, &at, shape->before, shape->before_count);
    for (int i = 0; i < count; i++)
        if (fields[i] == NULL)
            Py_CLEAR(made);
        else if (made == NULL)
            Py_DECREF(fields[i]);
        else
            PyTuple_SetItem(made, at++, fields[i]);
    if (made != NULL) set_all(made, &at, shape->behind, shape->behind_count);
    return made;
}

// Add the records from `first_offset` on. False without an exception: one is not usual.
static bool add_records(PyObject *list, Shape *shape, const uint8_t *at, const uint8_t *end,
                        Base *base, int64_t first_offset) {
    for (Py_ssize_t left = base->count; left; left--) {
        RecordView record;
        int64_t offset, time;
        at = read_timed(at, end, base, &record, &offset, &time);
        if (at == NULL) return false;
        if (offset < first_offset) continue;
        PyObject *made = new_record(shape, &record, at, offset, time);
        bool is_added = made != NULL && PyList_Append(list, made) == 0;
        Py_XDECREF(made);
        if (!is_added) return false;
    }
    return at == end;
}

// From (body, BatchHeader, first offset, type, before, behind) to the records from that offset on,
// each a tuple of this type between the other items. None: a record is not usual.
PyObject *decode_records(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    PyObject *header;
    long long first_offset;
    Base base;
    Shape shape = {.time = NULL};
    if (!PyArg_ParseTuple(args, "y*OLO!O!O!", &data, &header, &first_offset, &PyType_Type,
                          &shape.type, &PyTuple_Type, &shape.before, &PyTuple_Type,
                          &shape.behind))
        return leave_large_numbers();
    shape.before_count = PyTuple_Size(shape.before);
    shape.behind_count = PyTuple_Size(shape.behind);
    const uint8_t *begin = data.buf;
    PyObject *list = PyList_New(0);
    bool is_usual = list != NULL && get_base(header, &base) &&
                    add_records(list, &shape, begin, begin + data.len, &base, first_offset);
    PyBuffer_Release(&data);
    Py_XDECREF(shape.time);
    if (is_usual) return list;
    Py_XDECREF(list);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

enum { OFFSET, TIME, KEY, KEY_SIZE, VALUE, VALUE_SIZE, HEADER_COUNT, HEADERS, COLUMNS };

// Columns of `rows` numbers each. A position counts from the start of all bytes, and does not
// decrease; the size of null is -1. HEADERS is the position behind the number of headers.
typedef struct {
    int64_t *numbers;
    Py_ssize_t rows, filled;
    const uint8_t *begin, *end;  // of all bytes
} Columns;

// Fill the rows of one batch; return its end. NULL: a record is not usual.
static const uint8_t *fill(Columns *columns, const uint8_t *at, const uint8_t *end, Base *base) {
    for (; base->count; base->count--) {
        RecordView record;
        int64_t offset, time, *row = columns->numbers + columns->filled++;
        const uint8_t *begin = at;
        at = read_timed(at, end, base, &record, &offset, &time);
        if (at == NULL) return NULL;
        const int64_t values[COLUMNS] = {
            offset,
            time,
            (record.key != NULL ? record.key : begin) - columns->begin,
            record.key != NULL ? record.key_size : -1,
            (record.value != NULL ? record.value : begin) - columns->begin,
            record.value != NULL ? record.value_size : -1,
            record.header_count,
            record.headers - columns->begin,
        };
        for (int i = 0; i < COLUMNS; i++) row[i * columns->rows] = values[i];
    }
    return at;
}

// Fill the columns from the pairs (BatchHeader, body). False: a record is not usual.
static bool fill_all(Columns *columns, PyObject *batches) {
    const uint8_t *at = columns->begin;
    for (Py_ssize_t i = 0; i < PyList_Size(batches); i++) {
        PyObject *header, *body;
        Base base;
        if (!PyArg_ParseTuple(PyList_GetItem(batches, i), "OS", &header, &body)) return false;
        Py_ssize_t size = PyBytes_Size(body);
        if (!get_base(header, &base) || size > columns->end - at ||
            base.count > columns->rows - columns->filled)
            return false;
        PyThreadState *released = size >= GIL_BYTES ? PyEval_SaveThread() : NULL;
        const uint8_t *end = fill(columns, at, at + size, &base);
        if (released != NULL) PyEval_RestoreThread(released);
        if (end != at + size) return false;
        at = end;
    }
    return at == columns->end && columns->filled == columns->rows;
}

// Add the pairs of all headers, in order. False, with an exception: no memory.
static bool add_pairs(PyObject *list, const Columns *columns) {
    const int64_t *headers = columns->numbers + HEADERS * columns->rows;
    const int64_t *counts = columns->numbers + HEADER_COUNT * columns->rows;
    for (Py_ssize_t row = 0; row < columns->rows; row++) {
        const uint8_t *at = columns->begin + headers[row];
        for (int64_t left = counts[row]; left; left--) {
            PyObject *pair = new_pair(&at, columns->end);
            bool is_added = pair != NULL && PyList_Append(list, pair) == 0;
            Py_XDECREF(pair);
            if (!is_added) return false;
        }
    }
    return true;
}

// From (bytes, [(BatchHeader, part of the bytes)], number of records) to their columns of int64, and
// the pairs of all headers. None: a record is not usual.
PyObject *decode_columns(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    PyObject *batches;
    Columns columns = {.filled = 0};
    if (!PyArg_ParseTuple(args, "y*O!n", &data, &PyList_Type, &batches, &columns.rows))
        return leave_large_numbers();
    columns.begin = data.buf;
    columns.end = columns.begin + data.len;
    PyObject *result = NULL, *numbers = NULL, *pairs = NULL;
    bool may_fit = columns.rows >= 0 && columns.rows <= data.len / RECORD_BYTES_MIN;
    if (may_fit) {
        numbers = PyByteArray_FromStringAndSize(
            NULL, columns.rows * COLUMNS * (Py_ssize_t)sizeof(int64_t));
        pairs = PyList_New(0);
    }
    if (numbers != NULL && pairs != NULL) {
        columns.numbers = (int64_t *)PyByteArray_AsString(numbers);
        if (fill_all(&columns, batches) && add_pairs(pairs, &columns))
            result = PyTuple_Pack(2, numbers, pairs);
    }
    PyBuffer_Release(&data);
    Py_XDECREF(numbers);
    Py_XDECREF(pairs);
    if (result == NULL && !PyErr_Occurred()) result = Py_NewRef(Py_None);
    return result;
}
