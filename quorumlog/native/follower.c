// A follower's one pass over the records of a fetch response. Its twins are `iterate_headers`
// (quorumlog/wire/codec/records.py) and `stamped_by_another` (storage/core/append_checks.py).

#include "lane.h"

#define COMPRESSION_MAX 4  // zstd
#define APPEND_MAX INT32_MAX  // bytes, and offsets

// Whether the batch at `at` is whole, continues a log, and is of its latest epoch.
static bool continues_log(
    const uint8_t *at, const uint8_t *end, int64_t next_offset, int32_t epoch) {
    BatchHeader header = get_header(at);
    int64_t size = (int64_t)header.batch_length + LOG_OVERHEAD_BYTES;
    int compression = header.attributes & COMPRESSION_MASK;
    return header.base_offset == next_offset && header.leader_epoch == epoch &&
           size >= HEADER_BYTES && size <= end - at && header.last_offset_delta >= 0 &&
           header.record_count >= 0 &&
           header.record_count <= (int64_t)header.last_offset_delta + 1 &&
           compression <= COMPRESSION_MAX &&
           (compression ||
            (int64_t)header.record_count * RECORD_BYTES_MIN <= size - HEADER_BYTES) &&
           (!(header.attributes & CONTROL_BIT) || header.producer_id >= 0) &&
           is_whole_batch(at, at + size, &header);
}

// Return the number of batches; 0: one is not usual.
static Py_ssize_t count_batches(
    const uint8_t *at, const uint8_t *end, int64_t next_offset, int32_t epoch) {
    int64_t first_offset = next_offset;
    Py_ssize_t count = 0;
    if (first_offset > INT64_MAX / 2 || end - at > APPEND_MAX) return 0;
    for (; at < end; count++) {
        if (end - at < HEADER_BYTES || !continues_log(at, end, next_offset, epoch)) return 0;
        BatchHeader header = get_header(at);
        next_offset += (int64_t)header.last_offset_delta + 1;
        if (next_offset - first_offset > APPEND_MAX) return 0;
        at += header.batch_length + LOG_OVERHEAD_BYTES;
    }
    return count;
}

// Add a new object to a list, and release it. False, with an exception: no memory.
static bool add(PyObject *list, PyObject *item) {
    bool is_added = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return is_added;
}

// Add the spans of all batches, and (position, header) of those that a producer has numbered.
static bool describe(const uint8_t *begin, Py_ssize_t count, PyTypeObject *header_type,
                     PyObject *spans, PyObject *numbered) {
    const uint8_t *at = begin;
    for (; count; count--) {
        BatchHeader header = get_header(at);
        int32_t size = header.batch_length + LOG_OVERHEAD_BYTES;
        long long last_offset = header.base_offset + header.last_offset_delta;
        PyObject *span = Py_BuildValue("LiL", last_offset, size, (long long)header.max_timestamp);
        if (!add(spans, span)) return false;
        if (header.producer_id >= 0) {
            PyObject *found = new_header(header_type, &header);
            if (found == NULL ||
                !add(numbered, Py_BuildValue("(nN)", (Py_ssize_t)(at - begin), found)))
                return false;
        }
        at += size;
    }
    return true;
}

// From (records, next offset, leader epoch, BatchHeader) to the spans, and (position,
// header) of each batch with a producer. None: a batch is not usual. The records do not change.
PyObject *check_copies(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    long long next_offset;
    int epoch;
    PyTypeObject *header_type;
    if (!PyArg_ParseTuple(
            args, "y*LiO!", &data, &next_offset, &epoch, &PyType_Type, &header_type))
        return leave_large_numbers();
    const uint8_t *begin = data.buf, *end = begin + data.len;
    PyThreadState *released = data.len >= GIL_BYTES ? PyEval_SaveThread() : NULL;
    Py_ssize_t count = count_batches(begin, end, next_offset, epoch);
    if (released != NULL) PyEval_RestoreThread(released);
    PyObject *result = NULL, *spans = PyList_New(0), *numbered = PyList_New(0);
    if (count == 0)
        result = Py_NewRef(Py_None);
    else if (spans != NULL && numbered != NULL &&
             describe(begin, count, header_type, spans, numbered))
        result = PyTuple_Pack(2, spans, numbered);
    Py_XDECREF(spans);
    Py_XDECREF(numbered);
    PyBuffer_Release(&data);
    return result;
}
