// Shared by the parts of the native lane. Every function has a twin in Python, its oracle; what a
// function does not know it leaves to the twin. No function reads outside of [begin, end).

#ifndef QUORUMLOG_LANE_H
#define QUORUMLOG_LANE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

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

// The CRC-32C of [begin, end), RFC 3720, section 12.1.
uint32_t crc32c(const uint8_t *begin, const uint8_t *end);

// The same for every processor.
uint32_t crc32c_by_tables(const uint8_t *begin, const uint8_t *end);

#endif
