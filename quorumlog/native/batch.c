// The header of a record batch, and the parts of its records that are seldom needed.

#include "lane.h"

BatchHeader get_header(const uint8_t *batch) {
    return (BatchHeader){
        .base_offset = (int64_t)get_uint64(batch),
        .batch_length = (int32_t)get_uint32(batch + 8),
        .leader_epoch = (int32_t)get_uint32(batch + 12),
        .magic = (int8_t)batch[16],
        .crc = get_uint32(batch + 17),
        .attributes = (int16_t)get_uint16(batch + 21),
        .last_offset_delta = (int32_t)get_uint32(batch + 23),
        .base_timestamp = (int64_t)get_uint64(batch + 27),
        .max_timestamp = (int64_t)get_uint64(batch + 35),
        .producer_id = (int64_t)get_uint64(batch + 43),
        .producer_epoch = (int16_t)get_uint16(batch + 51),
        .base_sequence = (int32_t)get_uint32(batch + 53),
        .record_count = (int32_t)get_uint32(batch + 57),
    };
}

PyObject *new_numbers(PyTypeObject *type, const int64_t *numbers, Py_ssize_t count) {
    PyObject *made = PyType_GenericAlloc(type, count);  // as `tuple.__new__` does for a subclass
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(made, i, number) < 0) Py_CLEAR(made);
    }
    return made;
}

PyObject *new_header(PyTypeObject *type, const BatchHeader *header) {
    const int64_t fields[] = {
        header->base_offset,   header->batch_length,      header->leader_epoch,
        header->magic,         header->crc,               header->attributes,
        header->last_offset_delta, header->base_timestamp, header->max_timestamp,
        header->producer_id,   header->producer_epoch,    header->base_sequence,
        header->record_count,
    };
    return new_numbers(type, fields, sizeof fields / sizeof *fields);
}

PyObject *leave_large_numbers(void) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

bool is_whole_batch(const uint8_t *begin, const uint8_t *end, const BatchHeader *header) {
    return end - begin >= HEADER_BYTES &&
           (int64_t)header->batch_length + LOG_OVERHEAD_BYTES == end - begin &&
           header->magic == MAGIC && crc32c(begin + CRC_END, end) == header->crc;
}

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; at < end && shift < bits; shift += 7) {
        uint64_t byte = *at++, part = byte & 0x7f;
        if (bits - shift < 7 && part >> (bits - shift)) return NULL;  // too large
        value |= part << shift;
        if (byte < 0x80) {
            *number = value;
            return at;
        }
    }
    return NULL;
}

const uint8_t *skip_headers(const uint8_t *at, const uint8_t *end, uint32_t count) {
    for (; count; count--) {
        const uint8_t *key, *value;
        Py_ssize_t size;
        at = read_bytes(at, end, &key, &size);
        if (at == NULL || key == NULL) return NULL;
        for (; key < at; key++)
            if (*key >= 0x80) return NULL;  // Python checks other UTF-8
        at = read_bytes(at, end, &value, &size);
        if (at == NULL) return NULL;
    }
    return at;
}
