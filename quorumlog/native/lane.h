// Shared by the parts of the native lane. Every function has a twin in Python, its oracle; what a
// function does not know it leaves to the twin. No function reads outside of [begin, end).

#ifndef QUORUMLOG_LANE_H
#define QUORUMLOG_LANE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

// Record batches of format 2 (KIP-98): see quorumlog/wire/codec/records.py.
#define HEADER_BYTES 61
#define LOG_OVERHEAD_BYTES 12  // base offset and batch length; the batch length excludes them
#define CRC_END 21             // the checksum covers all bytes from here on
#define MAGIC 2
#define RECORD_BYTES_MIN 7  // seven numbers of one byte

#define COMPRESSION_MASK 0x07
#define TIMESTAMP_TYPE_BIT 0x08
#define TRANSACTIONAL_BIT 0x10
#define CONTROL_BIT 0x20

#define GIL_BYTES 65536  // a pass over as many releases the lock of the interpreter

static inline uint16_t get_uint16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t get_uint32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get_uint64(const uint8_t *at) {
    return (uint64_t)get_uint32(at) << 32 | get_uint32(at + 4);
}

static inline void put_uint32(uint8_t *at, uint32_t value) {
    for (int i = 3; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static inline void put_uint64(uint8_t *at, uint64_t value) {
    put_uint32(at, (uint32_t)(value >> 32));
    put_uint32(at + 4, (uint32_t)value);
}

// Fill the tables, once, before the first checksum: another thread may compute one later.
void prepare_crc32c(void);

// The CRC-32C of [begin, end), RFC 3720, section 12.1.
uint32_t crc32c(const uint8_t *begin, const uint8_t *end);

// The same for every processor.
uint32_t crc32c_by_tables(const uint8_t *begin, const uint8_t *end);

// The fields of a BatchHeader in Python, in its order.
typedef struct {
    int64_t base_offset;
    int32_t batch_length;
    int32_t leader_epoch;
    int8_t magic;
    uint32_t crc;
    int16_t attributes;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int32_t record_count;
} BatchHeader;

// The header of the HEADER_BYTES at `batch`, unchecked.
BatchHeader get_header(const uint8_t *batch);

// A new tuple of a type that has so many numbers. NULL with an exception: no memory.
PyObject *new_numbers(PyTypeObject *type, const int64_t *numbers, Py_ssize_t count);

// A new BatchHeader of Python; `type`: its class. NULL with an exception: no memory.
PyObject *new_header(PyTypeObject *type, const BatchHeader *header);

// Return None for an OverflowError of an argument: Python has larger numbers; else NULL.
PyObject *leave_large_numbers(void);

// Whether the batch [begin, end) is one batch of format 2 with the right checksum.
bool is_whole_batch(const uint8_t *begin, const uint8_t *end, const BatchHeader *header);

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *number);

// Read a zigzag number of at most 32 or 64 `bits`, still encoded; return the position behind it.
// NULL: it is longer, larger, or not whole. Numbers need not have the shortest encoding.
static inline const uint8_t *read_varint(
    const uint8_t *at, const uint8_t *end, int bits, uint64_t *number) {
    if (end - at >= 1 && at[0] < 0x80) {
        *number = at[0];
        return at + 1;
    }
    if (end - at >= 2 && at[1] < 0x80) {
        *number = (uint64_t)(at[0] & 0x7f) | (uint64_t)at[1] << 7;
        return at + 2;
    }
    return read_long_varint(at, end, bits, number);
}

static inline int64_t from_zigzag(uint64_t number) {
    return (int64_t)(number >> 1 ^ (0 - (number & 1)));
}

// Read a length and skip as many bytes, which begin at `*content`; NULL there: the length is -1.
// Return the position behind them. NULL: they are not whole, or the length is below -1.
static inline const uint8_t *read_bytes(
    const uint8_t *at, const uint8_t *end, const uint8_t **content, Py_ssize_t *size) {
    uint64_t length;
    at = read_varint(at, end, 32, &length);
    if (at == NULL) return NULL;
    *size = (Py_ssize_t)(length >> 1);
    if (length & 1) {
        *content = NULL;
        return length == 1 ? at : NULL;
    }
    *content = at;
    return end - at >= *size ? at + *size : NULL;
}

typedef struct {
    int64_t time_delta;
    uint64_t offset_delta;  // zigzag encoded
    const uint8_t *key;     // NULL: null
    Py_ssize_t key_size;
    const uint8_t *value;  // NULL: null
    Py_ssize_t value_size;
    const uint8_t *headers;  // behind their number: each a key, then a value, for `read_bytes`
    uint32_t header_count;
} RecordView;

// Skip the headers of a record. NULL: a key is null or not ASCII, or they are not whole.
const uint8_t *skip_headers(const uint8_t *at, const uint8_t *end, uint32_t count);

// Read a record; return the position behind it. NULL: it is invalid, or has attributes, or the
// key of a header is not ASCII. These are the checks of quorumlog/wire/codec/inspection.py, except
// of the offset.
static inline const uint8_t *read_record(
    const uint8_t *at, const uint8_t *end, RecordView *record) {
    uint64_t size, time, header_count;
    at = read_varint(at, end, 32, &size);
    if (at == NULL || size & 1 || (uint64_t)(end - at) < size >> 1) return NULL;
    end = at + (size >> 1);
    if (at == end || *at) return NULL;
    at = read_varint(at + 1, end, 64, &time);
    if (at == NULL) return NULL;
    record->time_delta = from_zigzag(time);
    at = read_varint(at, end, 32, &record->offset_delta);
    if (at == NULL) return NULL;
    at = read_bytes(at, end, &record->key, &record->key_size);
    if (at == NULL) return NULL;
    at = read_bytes(at, end, &record->value, &record->value_size);
    if (at == NULL) return NULL;
    record->headers = at = read_varint(at, end, 32, &header_count);
    if (at == NULL || header_count & 1) return NULL;
    record->header_count = (uint32_t)(header_count >> 1);
    if (header_count) at = skip_headers(at, end, record->header_count);
    return at == end ? at : NULL;
}

// Functions of the module: see produce.c, follower.c, records.c.
PyObject *match_run(PyObject *module, PyObject *args);
PyObject *admit(PyObject *module, PyObject *args);
PyObject *responses(PyObject *module, PyObject *args);
PyObject *check_copies(PyObject *module, PyObject *args);
PyObject *decode_records(PyObject *module, PyObject *args);
PyObject *decode_columns(PyObject *module, PyObject *args);

#endif
