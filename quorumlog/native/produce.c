// What a run of produce requests needs for each of its batches. Its twins in Python:
// quorumlog/wire/codec/produce_template.py, broker/partitions/core/admission.py and
// storage/core/append_checks.py. Decisions stay there: these functions know the usual case only.

#include "lane.h"
#include <string.h>

#define START_BYTES 12  // of a frame: its length, API and version, correlation id
#define LENGTH_BYTES 4
#define NUMBERS_BYTES 24  // of a response: base offset, append time and log start
#define WORTH_A_RELEASE (64 * 1024)  // bytes: below, other threads would wait for less time

// --- Frames ---

typedef struct {
    const char *api, *head, *behind;  // behind: the bytes behind the records
    Py_ssize_t api_size, head_size, behind_size, frame_max_bytes;
} Template;

typedef struct {
    const uint8_t *records, *records_end, *end;
} Match;

// Whether the frame at `at` is whole and has the bytes of the template, as `match` in Python.
static bool match_frame(
    const uint8_t *at, const uint8_t *end, const Template *template, Match *match) {
    if (end - at < START_BYTES) return false;
    int64_t size = (int32_t)get_uint32(at);
    if (size > end - at - LENGTH_BYTES || size > template->frame_max_bytes) return false;
    if (size < START_BYTES - LENGTH_BYTES + template->head_size + template->behind_size)
        return false;
    match->end = at + LENGTH_BYTES + size;
    match->records_end = match->end - template->behind_size;
    if (memcmp(at + LENGTH_BYTES, template->api, (size_t)template->api_size)) return false;
    at += START_BYTES;
    if (memcmp(at, template->head, (size_t)template->head_size)) return false;
    if (memcmp(match->records_end, template->behind, (size_t)template->behind_size)) return false;
    at += template->head_size;
    int64_t length = -1;
    if (template->behind_size) {  // flexible: the length plus 1, in the shortest encoding
        uint64_t number;
        const uint8_t *behind = read_varint(at, match->records_end, 32, &number);
        if (behind == NULL || (behind - at > 1 && !behind[-1])) return false;
        at = behind;
        length = (int64_t)number - 1;
    } else if (match->records_end - at >= LENGTH_BYTES) {
        length = (int32_t)get_uint32(at);
        at += LENGTH_BYTES;
    }
    match->records = at;
    return length == match->records_end - at;
}

// Return (correlation id, records, position behind the frame).
static PyObject *new_match(PyObject *view, const uint8_t *begin, const uint8_t *at, Match *match) {
    PyObject *records =
        PySequence_GetSlice(view, match->records - begin, match->records_end - begin);
    if (records == NULL) return NULL;
    return Py_BuildValue("iNn", (int)get_uint32(at + 8), records, match->end - begin);
}

PyObject *match_run(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *view;
    Py_ssize_t start, end, count_max;
    Template template;
    if (!PyArg_ParseTuple(
            args, "Onny#y#y#nn", &view, &start, &end, &template.api, &template.api_size,
            &template.head, &template.head_size, &template.behind, &template.behind_size,
            &count_max, &template.frame_max_bytes))
        return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *run = PyList_New(0);
    if (start >= 0 && end <= buffer.len && template.api_size == LENGTH_BYTES) {
        const uint8_t *begin = buffer.buf, *at = begin + start;
        Match match;
        for (Py_ssize_t i = 0; run != NULL && i < count_max; i++, at = match.end) {
            if (!match_frame(at, begin + end, &template, &match)) break;
            PyObject *found = new_match(view, begin, at, &match);
            if (found == NULL || PyList_Append(run, found) < 0) Py_CLEAR(run);
            Py_XDECREF(found);
        }
    }
    PyBuffer_Release(&buffer);
    return run;
}

// --- Admission ---

typedef struct {
    int64_t message_bytes_max, items_max;
    int64_t earliest, latest;  // timestamps, in milliseconds
    int keys_are_needed;
} Limits;

typedef struct {
    Py_buffer buffer;
    BatchHeader header;
} Batch;

// Whether a header needs no change and breaks no rule: `_judge_frame` and `_flaw`.
static bool is_usual_header(const BatchHeader *header) {
    if (header->attributes & (COMPRESSION_MASK | TIMESTAMP_TYPE_BIT | CONTROL_BIT)) return false;
    if (header->base_offset || header->record_count < 1) return false;
    if (header->record_count - 1 != header->last_offset_delta) return false;
    if (header->producer_id < 0) return !(header->attributes & TRANSACTIONAL_BIT);
    return header->producer_epoch >= 0 && header->base_sequence >= 0;
}

// Whether the records are valid and within the limits, and `max_timestamp` is true:
// `inspect_records` and `_judge_records`.
static bool are_usual_records(
    const uint8_t *at, const uint8_t *end, const BatchHeader *header, const Limits *limits) {
    int64_t least = INT64_MAX, most = INT64_MIN;
    int64_t count = header->record_count, items_left = limits->items_max - count;
    bool has_null_key = false;
    for (int64_t index = 0; index < count; index++) {
        RecordView record;
        at = read_record(at, end, &record);
        if (at == NULL || record.offset_delta != 2 * (uint64_t)index) return false;
        if (record.time_delta < least) least = record.time_delta;
        if (record.time_delta > most) most = record.time_delta;
        has_null_key |= record.key == NULL;
        items_left -= record.header_count;
    }
    if (at != end || items_left < 0 || (has_null_key && limits->keys_are_needed)) return false;
    int64_t min_timestamp, max_timestamp;
    if (__builtin_add_overflow(header->base_timestamp, least, &min_timestamp)) return false;
    if (__builtin_add_overflow(header->base_timestamp, most, &max_timestamp)) return false;
    return min_timestamp >= limits->earliest && max_timestamp <= limits->latest &&
           header->max_timestamp == (max_timestamp < -1 ? -1 : max_timestamp);
}

static bool is_usual(Batch *batch, const Limits *limits) {
    const uint8_t *begin = batch->buffer.buf, *end = begin + batch->buffer.len;
    if (end - begin < HEADER_BYTES || end - begin > limits->message_bytes_max) return false;
    batch->header = get_header(begin);
    return is_usual_header(&batch->header) && is_whole_batch(begin, end, &batch->header) &&
           are_usual_records(begin + HEADER_BYTES, end, &batch->header, limits);
}

static Py_ssize_t count_usual(Batch *batches, Py_ssize_t count, const Limits *limits) {
    Py_ssize_t usual = 0;
    while (usual < count && is_usual(&batches[usual], limits)) usual++;
    return usual;
}

// Get the buffers of leading batches, of `bytes_max` bytes in all, but at least one. Return their
// number, and that of their bytes in `*bytes`; -1 with an exception: an object is no buffer.
static Py_ssize_t get_batches(
    PyObject *objects, Batch *batches, Py_ssize_t count, Py_ssize_t bytes_max, Py_ssize_t *bytes) {
    *bytes = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i && *bytes >= bytes_max) return i;
        PyObject *object = PySequence_GetItem(objects, i);
        int error = object == NULL || PyObject_GetBuffer(object, &batches[i].buffer, PyBUF_SIMPLE);
        Py_XDECREF(object);  // the buffer holds it
        if (error) {
            while (i--) PyBuffer_Release(&batches[i].buffer);
            return -1;
        }
        *bytes += batches[i].buffer.len;
    }
    return count;
}

PyObject *admit(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *objects, *type, *headers = NULL;
    Limits limits;
    Py_ssize_t bytes_max, bytes;
    if (!PyArg_ParseTuple(
            args, "OO!LLLpLn", &objects, &PyType_Type, &type, &limits.message_bytes_max, &limits.earliest,
            &limits.latest, &limits.keys_are_needed, &limits.items_max, &bytes_max))
        return NULL;
    Py_ssize_t count = PySequence_Size(objects);
    if (count < 0) return NULL;
    Batch *batches = PyMem_Malloc((size_t)count * sizeof *batches);
    if (batches == NULL) return PyErr_NoMemory();
    count = get_batches(objects, batches, count, bytes_max, &bytes);
    if (count >= 0) {
        PyThreadState *state = bytes >= WORTH_A_RELEASE ? PyEval_SaveThread() : NULL;
        Py_ssize_t usual = count_usual(batches, count, &limits);
        if (state != NULL) PyEval_RestoreThread(state);
        headers = PyList_New(0);
        for (Py_ssize_t i = 0; headers != NULL && i < usual; i++) {
            PyObject *header = new_header((PyTypeObject *)type, &batches[i].header);
            if (header == NULL || PyList_Append(headers, header) < 0) Py_CLEAR(headers);
            Py_XDECREF(header);
        }
        while (count--) PyBuffer_Release(&batches[count].buffer);
    }
    PyMem_Free(batches);
    return headers;
}

// --- Responses ---

// The integer at a place of a sequence. -1 with an exception: there is none.
static int64_t get_item(PyObject *sequence, Py_ssize_t at) {
    PyObject *item = PySequence_GetItem(sequence, at);
    if (item == NULL) return -1;
    int64_t value = PyLong_AsLongLong(item);
    Py_DECREF(item);
    return value;
}

PyObject *responses(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *response;  // with the bytes of any correlation id and numbers
    Py_ssize_t size, numbers_at;
    PyObject *correlation_ids, *base_offsets;
    long long append_time_ms, log_start_offset;
    if (!PyArg_ParseTuple(
            args, "y#nOOLL", &response, &size, &numbers_at, &correlation_ids, &base_offsets,
            &append_time_ms, &log_start_offset))
        return NULL;
    Py_ssize_t count = PySequence_Size(base_offsets);
    if (numbers_at < START_BYTES || size - numbers_at < NUMBERS_BYTES) PyErr_BadArgument();
    if (PyErr_Occurred()) return NULL;
    PyObject *joined = PyBytes_FromStringAndSize(NULL, count * size);
    if (joined == NULL) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(joined);
    for (Py_ssize_t i = 0; i < count; i++, at += size) {
        int64_t correlation_id = get_item(correlation_ids, i);
        int64_t base_offset = get_item(base_offsets, i);
        if (PyErr_Occurred()) {
            Py_DECREF(joined);
            return NULL;
        }
        memcpy(at, response, (size_t)size);
        put_uint32(at + LENGTH_BYTES, (uint32_t)correlation_id);
        put_uint64(at + numbers_at, (uint64_t)base_offset);
        put_uint64(at + numbers_at + 8, (uint64_t)append_time_ms);
        put_uint64(at + numbers_at + 16, (uint64_t)log_start_offset);
    }
    return joined;
}
