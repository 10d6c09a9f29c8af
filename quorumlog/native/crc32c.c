// CRC-32C: by instructions of SSE 4.2 and CLMUL, or by tables of 8 bytes.

#include "lane.h"
#include <string.h>

#define POLYNOMIAL 0x82f63b78u  // of Castagnoli, bits reversed

static uint32_t tables[8][256];

static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
}

uint32_t crc32c_by_tables(const uint8_t *begin, const uint8_t *end) {
    if (tables[0][1] == 0) fill_tables();  // writes the same values whoever is first
    uint32_t crc = 0xffffffff;
    for (; end - begin >= 8; begin += 8) {
        crc ^= begin[0] | begin[1] << 8 | begin[2] << 16 | (uint32_t)begin[3] << 24;
        crc = tables[7][crc & 0xff] ^ tables[6][crc >> 8 & 0xff] ^ tables[5][crc >> 16 & 0xff] ^
              tables[4][crc >> 24] ^ tables[3][begin[4]] ^ tables[2][begin[5]] ^
              tables[1][begin[6]] ^ tables[0][begin[7]];
    }
    for (; begin < end; begin++) crc = crc >> 8 ^ tables[0][(crc ^ *begin) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define STREAM_BYTES 256  // of three streams at once: an instruction waits for the one before
#define SHIFT_ONE 0xb9e02b86      // x^(8 * STREAM_BYTES - 33) modulo the polynomial, bits reversed
#define SHIFT_TWO 0xdd7e3b0c      // the same of two streams

#define FAST __attribute__((target("sse4.2,pclmul")))

FAST static uint64_t next(uint64_t crc, const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return _mm_crc32_u64(crc, word);
}

// Multiply; `_mm_crc32_u64` of the product is the CRC behind as many zeros as `shift` stands for.
FAST static uint64_t product(uint64_t crc, uint64_t shift) {
    __m128i factors = _mm_set_epi64x((int64_t)shift, (int64_t)crc);
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(factors, factors, 0x10));
}

FAST static uint32_t by_instruction(const uint8_t *begin, const uint8_t *end) {
    uint64_t crc = 0xffffffff;
    for (; end - begin >= 3 * STREAM_BYTES; begin += 2 * STREAM_BYTES) {
        uint64_t second = 0, third = 0;
        const uint8_t *stop = begin + STREAM_BYTES;
#pragma GCC unroll 8
        for (; begin < stop; begin += 8) {
            crc = next(crc, begin);
            second = next(second, begin + STREAM_BYTES);
            third = next(third, begin + 2 * STREAM_BYTES);
        }
        crc = third ^ _mm_crc32_u64(0, product(crc, SHIFT_TWO) ^ product(second, SHIFT_ONE));
    }
    for (; end - begin >= 8; begin += 8) crc = next(crc, begin);
    for (; begin < end; begin++) crc = _mm_crc32_u8((uint32_t)crc, *begin);
    return ~(uint32_t)crc;
}

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) {
    static int has_instructions = -1;
    if (has_instructions < 0)
        has_instructions = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    return has_instructions ? by_instruction(begin, end) : crc32c_by_tables(begin, end);
}

#else

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) { return crc32c_by_tables(begin, end); }

#endif
